"""What a shield adds to the rewards, so that policies learn to propose what need not be overridden."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.tables import RiskTables


class Shaping:
    """The reward modes of `ShieldConfig` over the tables of A agents."""

    def __init__(self, config: ShieldConfig, tables: Sequence[RiskTables]) -> None:
        self.config, self.tables = config, tables
        self.potential: list[NDArray[np.float32]] | None = None
        """Per agent the least posterior-mean risk by the key's row; None until it is frozen."""

    def freeze(self) -> None:
        """Take the potential from the tables as they are."""
        self.potential = [tables.mean[-1].min(-1) for tables in self.tables]

    def added(
        self,
        key_ids: NDArray[np.integer],
        k_left: NDArray[np.integer],
        proposed: NDArray[np.integer],
        overridden: NDArray[np.bool_],
        next_key_ids: NDArray[np.integer],
        terminated: NDArray[np.bool_],
        gamma: float,
    ) -> NDArray[np.float64]:
        """Additions (E, A) to the rewards of a step; see `TeamShield.shaping`."""
        mode, weight = self.config.reward_mode, self.config.risk_weight
        added = np.zeros(overridden.shape)
        if mode == "penalty":
            return added - self.config.penalty * overridden
        for index, tables in enumerate(self.tables):
            if mode == "bayesian":
                mean = tables.mean[k_left, tables.rows(key_ids)]
                chosen = mean[np.arange(len(mean)), proposed[:, index]]
                added[:, index] = -weight * (chosen - mean.min(1))
            elif mode == "bayesian_potential":
                now, then = self._least_risk(index, key_ids), self._least_risk(index, next_key_ids)
                added[:, index] = weight * (now - gamma * np.where(terminated[:, index], 0.0, then))
        return added

    def _least_risk(self, index: int, key_ids: NDArray[np.integer]) -> NDArray[np.float64]:
        """Frozen least posterior-mean risk (E,); 1 at keys that came later."""
        if self.potential is None:
            return np.ones(len(key_ids))
        risk, rows = self.potential[index], np.asarray(key_ids, np.intp) + 1
        return risk[np.where(rows < len(risk), rows, 0)].astype(np.float64)
