"""The shield of a team too large to look at as a whole: factors, whose bounds add up."""

from __future__ import annotations

from collections.abc import Sequence

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import TransitionTable
from marl_tools.core.types import AgentID
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.factor_store import FactorStore, Groups, Split
from marl_tools.safety.rows import Opponents
from marl_tools.safety.rule import Fallback
from marl_tools.safety.shield import TeamShield
from marl_tools.safety.tables import RiskTables


class FactoredShield(TeamShield):
    """A `TeamShield` over factors (`core.transitions.Factors`); ``split`` tells which keys those have at a key of the whole.

    In factor f let V^f_k be the most that an agent can be made to violate there within k steps while it plays its backup
    action, and Q^f_k(a) the same for a now and the backup after, over all laws in the factor's sets and all behaviours
    of the others in it. Let V and Q be the sums over the agent's factors. An agent violates iff it does in one
    of them, so that V bounds its risk under the backup. The ledger is the plain one over V and Q, with price
    max(0, Q - V). V_k + s is a supermartingale: the sum of the V^f_{k-1} that follows is expected to be at most Q_k(a), which
    is at most V_k plus the price. It starts at max(rho, V_T(start)), and is at least 1 once a factor is violated. So the
    probability of a violation within T is at most that, as far as the conditions of `TeamShield` hold in each factor.
    The backup is free, so there is no deadlock. The bound is weaker than that of a team looked at as a whole: V counts joint
    violations twice, and the agent is supposed to do nothing cleverer than its backup.

    The optimistic Q is the sum of the factors' as well: an action is UNSAFE if the best laws in all sets would not
    make the rule admit it. Others may do anything: what an agent does at a factor's key depends on
    more than that key, so no floor under it can be counted.
    """

    def __init__(
        self,
        agents: Sequence[AgentID],
        actions: Sequence[int],
        config: ShieldConfig,
        groups: Groups,
        split: Split,
        *,
        num_envs: int,
        fallback: Fallback | None = None,
    ) -> None:
        if config.reward_mode == "bayesian_potential":
            raise ConfigError(
                "reward_mode='bayesian_potential' needs a value for every state of the whole, and factors have no list of "
                "those: use 'bayesian'."
            )
        self.groups, self._split = groups, split
        super().__init__(agents, actions, config, num_envs=num_envs, fallback=fallback)

    def _make_store(self) -> FactorStore:
        config, groups = self.config, self.groups
        store = FactorStore(
            self.actions,
            groups,
            self._split,
            config.horizon,
            config.level,
            with_lower=config.patience > 0,
        )
        self.tables = [
            [
                RiskTables(
                    place,
                    self.actions[agent],
                    config.horizon,
                    config.level,
                    store=part,
                    later=groups.backup[agent],
                )
                for place, agent in enumerate(group)
            ]
            for group, part in zip(groups.members, store.parts, strict=True)
        ]
        """For each factor those of its agents."""
        return store

    def refresh_factors(
        self, tables: Sequence[TransitionTable], guesses: Sequence[Opponents] | None = None
    ) -> int:
        """`refresh` with the table of each factor, and guesses at how its agents behave for the posterior mean."""
        guesses = [None] * len(tables) if guesses is None else guesses
        parts = list(zip(tables, guesses, self.tables, strict=True))
        return self._renew(
            lambda: sum(risk.update(table, None, guess) for table, guess, group in parts for risk in group)
        )

    def _again(self, num_envs: int) -> FactoredShield:
        shield = FactoredShield(
            self.agents,
            self.actions,
            self.config.evaluating(),
            self.groups,
            self._split,
            num_envs=num_envs,
            fallback=self.fallback,
        )
        shield.tables = self.tables
        return shield
