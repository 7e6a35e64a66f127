"""What a shield adds to the rewards, so that policies learn to propose what need not be overridden."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.store import TableStore, by_cell


class Shaping:
    """The reward modes of `ShieldConfig` over the tables of A agents."""

    def __init__(self, config: ShieldConfig, store: TableStore) -> None:
        self.config, self.store = config, store
        self.potential: NDArray[np.float32] | None = None
        """(A, C) least posterior-mean risk by the key's row; None until it is frozen."""
        self._agents = np.arange(len(store.actions))

    def freeze(self) -> None:
        """Take the potential from the tables as they are."""
        self.potential = self.store.mean[:, -1].min(-1)

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
        if mode == "penalty":
            return np.where(overridden, -self.config.penalty, 0.0)
        if mode == "bayesian":
            store, cells = self.store.read(self._agents, k_left[:, None], key_ids[:, None])
            mean = by_cell(store.mean)
            more = mean[cells, proposed] - mean[cells].min(-1)
            return np.zeros(overridden.shape) - weight * more
        if mode == "bayesian_potential":
            now, then = self._least_risk(key_ids), self._least_risk(next_key_ids)
            return weight * (now - gamma * np.where(terminated, 0.0, then))
        return np.zeros(overridden.shape)

    def _least_risk(self, key_ids: NDArray[np.integer]) -> NDArray[np.float64]:
        """Frozen least posterior-mean risk (E, A); 1 at keys that came later."""
        if self.potential is None:
            return np.ones((len(key_ids), len(self._agents)))
        rows = np.asarray(key_ids, np.intp) + 1
        known = np.where(rows < self.potential.shape[1], rows, 0)
        return self.potential[:, known].T.astype(np.float64)
