"""The shield of one agent, alone or as part of a team's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.types import AgentID
from marl_tools.safety.config import LEVELS, ShieldConfig
from marl_tools.safety.look import Look
from marl_tools.safety.rule import Favour, Rule
from marl_tools.safety.tables import RiskTables, slack_levels


class AgentShield:
    """The rule of one agent over its risk tables: its part of a team's `Rule`, or one of its own."""

    def __init__(
        self,
        name: AgentID,
        agent: int,
        num_actions: int,
        config: ShieldConfig,
        team: Rule | None = None,
    ) -> None:
        self.name, self.num_actions, self.config = name, num_actions, config
        self.slot = 0 if team is None else agent
        self.tables = RiskTables(
            agent,
            num_actions,
            config.horizon,
            config.level,
            with_lower=config.patience > 0,
            store=None if team is None else team.store,
        )
        self.rule = Rule([name], self.tables.store, config) if team is None else team

    @property
    def visits(self) -> NDArray[np.int32]:
        """(C, n) plays of UNKNOWN actions; a key's row is its id + 1."""
        return self.rule.visits[self.slot, :, : self.num_actions]

    def restore_visits(self, visits: NDArray[np.int32]) -> None:
        """Take the counts (C, n) of a saved state."""
        self.rule.count_keys(len(visits) - 1)
        self.visits[: len(visits)] = visits

    def start(self, key_ids: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """See `Rule.start`."""
        return self.rule.start(self.slot, key_ids)

    def steps_ahead(self, k_left: NDArray[np.integer]) -> NDArray[np.integer]:
        """See `Rule.steps_ahead`."""
        return self.rule.steps_ahead(k_left)

    def look(
        self, key_ids: NDArray[np.integer], k_left: NDArray[np.integer], slack: NDArray[np.int32]
    ) -> Look:
        """See `Rule.look`."""
        return self.rule.look(self.slot, key_ids, k_left, slack)

    def safest(
        self,
        look: Look,
        proposed: NDArray[np.integer],
        favour: Favour | None = None,
        legal: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """See `Rule.safest`."""
        return self.rule.safest(look, proposed, favour, legal)

    def always_admitted(self) -> NDArray[np.bool_]:
        """(K, n) actions that are played as proposed whatever slack and time are, as long as the tables stay as they are.

        Only their floors hold for the other agents. Under ``over_budget="fallback"`` this takes more than a price of 0:
        slack that is left counts against a key, so its V must be 0 as well.
        """
        known, config = slice(1, self.tables.num_keys + 1), self.config
        price, value = self.tables.price[:, known], self.tables.value[:, known]
        strict = config.over_budget == "fallback"
        if config.rule == "step":
            price, value = price[config.step_horizon], value[config.step_horizon]
            payable = price <= slack_levels(config.max_risk - value, config.level)[:, None]
            return payable & (value <= config.max_risk)[:, None] if strict else payable
        free = (price == 0).all(0)
        harmless = slack_levels(config.max_risk - value[-1], config.level) >= LEVELS
        return free & harmless[:, None] if strict else free

    def tried(self, key_id: int, action: int) -> int:
        """Plays of an action at a key while its risk was UNKNOWN, as ``patience`` counts them."""
        return int(self.visits[key_id + 1, action]) if key_id + 1 < len(self.visits) else 0
