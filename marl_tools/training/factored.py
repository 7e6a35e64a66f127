"""A shielded team that is looked at in factors: models, shield and claim of each, and what follows for the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.transitions import Factors, TransitionTable
from marl_tools.core.types import AgentID
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.factors import FactoredShield
from marl_tools.training.factored_models import FactoredModels, Support
from marl_tools.training.shielding import ShieldedTeam


class FactoredTeam(ShieldedTeam):
    """A `ShieldedTeam` over the factors that its env declares; see `safety.factors` for what its bound means.

    The bounds cover any behaviour of the others: ``monotone_floor`` is ``worst_case`` here, since no floor can be counted.
    Delta is split over the factors evenly.

    Args:
        factors: the env's declaration.
        supports: which outcomes are possible in each factor, None where nothing is known.
        exact: the supports hold the true laws, and nothing is learned.

    Raises:
        ConfigError: a declaration that does not fit the team, or settings that factors cannot serve.
    """

    models: FactoredModels  # pyright: ignore[reportIncompatibleVariableOverride]
    shield: FactoredShield

    def __init__(
        self,
        groups: Sequence[AgentGroup],
        agents: Sequence[AgentID],
        config: ShieldConfig,
        factors: Factors,
        *,
        num_envs: int,
        env_name: str,
        supports: Sequence[Support | None],
        exact: bool = False,
        gamma: float = 0.99,
    ) -> None:
        if config.opponent_mode not in ("worst_case", "monotone_floor"):
            raise ConfigError(
                f"opponent_mode={config.opponent_mode!r} for {env_name}, which is looked at in factors: use 'worst_case'"
            )
        self._factors, self._supports = factors, list(supports)
        self._laws = [support[1] for support in supports if support is not None] if exact else None
        super().__init__(groups, agents, config, num_envs=num_envs, env_name=env_name, gamma=gamma)

    def _make_models(self, delta: float) -> FactoredModels:
        return FactoredModels(
            self._factors, self.agents, self.actions, delta, env_name=self.env_name, supports=self._supports
        )

    def _make_shield(self, num_envs: int) -> FactoredShield:
        models = self.models
        return FactoredShield(
            self.agents, self.actions, self.config, models.groups, models.split, num_envs=num_envs
        )

    def forget_floors(self) -> None:
        """There are none."""

    def settle_floors(self) -> None:
        """There are no floors: the tables are brought up to date."""
        self.refresh()

    def refresh(self) -> None:
        """Bring the tables of all factors up to date; ``tables`` are what the bounds rest on then."""
        parts = self.models.parts
        self.tables: list[TransitionTable] = self._laws or [
            part.world.table(self.config.credible_delta / len(parts), schedule=self.config.credible_schedule)
            for part in parts
        ]
        guesses = [
            [part.opponents.guess(place, table.num_keys) for place in range(len(part.actions))]
            for part, table in zip(parts, self.tables, strict=True)
        ]
        self.shield.refresh_factors(self.tables, guesses)

    def least_risk(self) -> NDArray[np.float64]:
        """(A, 1) the sum over an agent's factors of the most that V is at any of their keys at which somebody acts."""
        risk = np.zeros((len(self.agents), 1))
        for group, table, tables in zip(
            self.models.groups.members, self.tables, self.shield.tables, strict=True
        ):
            live = np.unique(table.row_key)
            for agent, one in zip(group, tables, strict=True):
                risk[agent] += one.value[-1, one.rows(live)].max() if len(live) else 1.0
        return np.minimum(risk, 1.0)
