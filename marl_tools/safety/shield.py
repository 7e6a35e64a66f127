"""The shield of a team: slack, bounds and decisions of all agents in many copies of an env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import TransitionTable
from marl_tools.core.types import AgentID
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.rows import Opponents
from marl_tools.safety.rule import AgentShield, Fallback, Look, Verdict
from marl_tools.safety.shaping import Shaping

Probabilities = Sequence[NDArray[np.floating] | None] | None
Legal = Sequence[NDArray[np.bool_] | None] | None


@dataclass(slots=True, kw_only=True)
class Decision:
    """One step of E copies and A agents; rows of agents that do not act are False, and played as proposed."""

    key_ids: NDArray[np.int64]  # (E,)
    k_left: NDArray[np.int64]  # (E,)
    active: NDArray[np.bool_]  # (E, A) and so are all below
    proposed: NDArray[np.int64]
    executed: NDArray[np.int64]
    overridden: NDArray[np.bool_]
    fallback: NDArray[np.bool_]
    unverified: NDArray[np.bool_]


class TeamShield:
    """Shields all agents of E copies of an env, each agent on its own.

    The ledger: an agent starts with slack s = max(0, rho - V_T(key_0)), pays the price Q_k - V_k of each action that it
    executes, and may execute what it can pay; the safest action is free. V_k + s is then a supermartingale under every law in
    the agent's sets, starts at max(rho, V_T(key_0)) and is at least 1 once violated. So the probability of a violation
    within T is at most max(rho, V_T(key_0)), given that keys are Markov, that the opponents' executed behaviour
    lies in the covered set after every history and is drawn independently, that policies and tables are frozen, that no
    UNKNOWN action is executed, and that the truth lies in the sets (probability at least 1 - delta). While policies still
    learn it is a mechanism with a logged bound; only frozen policies get the claim. Probabilities are exact up to 1e-12.

    Args:
        agents: their names, in the order of the transition tables.
        actions: number of actions of each.
        fallback: replaces the choice of an action where none is safe; see `Fallback`.

    References:
        Jansen et al. 2020, Safe Reinforcement Learning Using Probabilistic Shields (the ``step`` rule).
    """

    def __init__(
        self,
        agents: Sequence[AgentID],
        actions: Sequence[int],
        config: ShieldConfig,
        *,
        num_envs: int,
        fallback: Fallback | None = None,
    ) -> None:
        self.agents, self.actions, self.config = tuple(agents), tuple(actions), config
        self.num_envs, self.fallback = num_envs, fallback
        self.shields = [
            AgentShield(name, index, size, config)
            for index, (name, size) in enumerate(zip(agents, actions, strict=True))
        ]
        self.key_ids = np.full(num_envs, -1, np.int64)
        self.k_left = np.full(num_envs, config.horizon, np.int64)
        self.slack = np.zeros((num_envs, len(self.agents)), np.int32)
        self.bounds = np.full(self.slack.shape, np.nan)
        """(E, A) bound of the running episode; NaN where there is none."""
        self._shaping = Shaping(config, [shield.tables for shield in self.shields])
        self._noted = np.full((2, *self.slack.shape), np.inf)
        self._restored_value: NDArray[np.float64] | None = None
        self._offers: list[tuple[NDArray[np.bool_], ...]] = []

    def begin(self, envs: NDArray[np.bool_], key_ids: NDArray[np.integer]) -> None:
        """Start an episode in the copies ``envs`` (E,), at ``key_ids`` (E,); -1 is a key without an id."""
        self.key_ids[envs] = key_ids[envs]
        self.k_left[envs] = self.config.horizon
        for index, shield in enumerate(self.shields):
            self.slack[envs, index], self.bounds[envs, index] = shield.start(self.key_ids[envs])
        self._noted[:, envs] = np.inf

    def decide(
        self,
        proposed: NDArray[np.integer],
        active: NDArray[np.bool_] | None = None,
        probabilities: Probabilities = None,
        legal: Legal = None,
    ) -> Decision:
        """Override what the policies propose (E, A) where the rule refuses it, and pay for what is executed.

        ``probabilities[i]`` (E, n_i) are the policy's own, for ties; ``legal[i]`` (E, n_i) what the env allows.

        Raises:
            ConfigError: the shield masks; call `masks` and `play`.
        """
        self._expect("override")
        active = np.ones(self.slack.shape, bool) if active is None else active
        verdicts = [
            shield.decide(
                self.key_ids,
                self._look(index),
                proposed[:, index],
                active=active[:, index],
                probabilities=_of(probabilities, index),
                legal=_of(legal, index),
                fallback=self.fallback,
            )
            for index, shield in enumerate(self.shields)
        ]
        return self._commit(proposed, active, verdicts)

    def masks(self, legal: Legal = None) -> list[NDArray[np.bool_]]:
        """Per agent (E, n_i) the actions that its policy may sample from; hand what it sampled to `play`.

        Raises:
            ConfigError: the shield overrides; call `decide`.
        """
        self._expect("mask")
        self._offers = [
            shield.offer(self.key_ids, self._look(index), _of(legal, index))
            for index, shield in enumerate(self.shields)
        ]
        return [offer[0] for offer in self._offers]

    def play(self, sampled: NDArray[np.integer], active: NDArray[np.bool_] | None = None) -> Decision:
        """Pay for actions (E, A) sampled under the last `masks`.

        Raises:
            ConfigError: an action outside its mask, or no masks were asked for.
        """
        self._expect("mask")
        if len(self._offers) != len(self.shields):
            raise ConfigError("play: no masks to sample from; call masks() once before each play().")
        active = np.ones(self.slack.shape, bool) if active is None else active
        verdicts = []
        for index, (shield, (admitted, unverified, lost)) in enumerate(
            zip(self.shields, self._offers, strict=True)
        ):
            actions, acts = sampled[:, index].astype(np.int64), active[:, index]
            chosen = (np.arange(self.num_envs), actions)
            if (acts & ~admitted[chosen]).any():
                env = int(np.flatnonzero(acts & ~admitted[chosen])[0])
                raise ConfigError(
                    f"agent {shield.name!r} in copy {env} plays {actions[env]}, outside its mask: sample from masks()."
                )
            tried = acts & unverified[chosen]
            shield.count(self.key_ids[tried], actions[tried])
            verdicts.append(Verdict(actions, np.zeros(self.num_envs, bool), lost & acts, tried))
        self._offers = []
        return self._commit(sampled, active, verdicts)

    def observe(self, key_ids: NDArray[np.integer], done: NDArray[np.bool_]) -> None:
        """Take in the keys (E,) to act on next; copies that are ``done`` begin a new episode there."""
        self.k_left -= 1
        self.key_ids[:] = key_ids
        again = (self.k_left == 0) & ~done
        if again.any():
            self.k_left[again] = self.config.horizon
            for index, shield in enumerate(self.shields):
                self.slack[again, index], more = shield.start(self.key_ids[again])
                self.bounds[again, index] = np.minimum(1.0, self.bounds[again, index] + more)
        self.begin(done, key_ids)

    def refresh(self, table: TransitionTable, floors: Opponents = None, guesses: Opponents = None) -> int:
        """Bring the tables up to date between two steps; returns how many (key, k) were computed, all agents together.

        A running episode keeps its total, s = max(0, V_old + s_old - V_new) at the key where it stands; where V has risen
        above that total, the bound rises by as much. Floors and guesses are per agent, (K, n_i) or None; see `RiskTables`.
        """
        before = self._values() if self._restored_value is None else self._restored_value
        self._restored_value = None
        computed = sum(shield.tables.update(table, floors, guesses) for shield in self.shields)
        if self.config.rule == "ledger":
            left = self.slack + (before - self._values()) / self.config.level
            self.bounds = np.minimum(1.0, self.bounds + np.maximum(0.0, -left) * self.config.level)
            limit = np.iinfo(np.uint16).max - 1
            self.slack = np.clip(np.floor(left + 1e-9), 0, limit).astype(np.int32)
        if self._shaping.potential is None and self.config.reward_mode == "bayesian_potential":
            self.freeze_potential()
        return computed

    def frozen(self, num_envs: int) -> TeamShield:
        """A shield for evaluation in other copies: no patience, and the same tables (do not refresh them meanwhile)."""
        shield = TeamShield(
            self.agents, self.actions, self.config.evaluating(), num_envs=num_envs, fallback=self.fallback
        )
        for mine, other in zip(self.shields, shield.shields, strict=True):
            other.tables = mine.tables
        return shield

    def always_admitted(self) -> list[NDArray[np.bool_]]:
        """Per agent (K, n_i) the actions whose floors may be relied on; see `AgentShield.always_admitted`."""
        return [shield.always_admitted() for shield in self.shields]

    def notes(self, decision: Decision) -> list[dict[str, dict[AgentID, Any]]]:
        """What `VectorEnv.step` takes to each copy's episode log; bounds and slack where they changed."""
        notes: list[dict[str, dict[AgentID, Any]]] = [{} for _ in range(self.num_envs)]
        for name, flags in (
            ("overrides", decision.overridden),
            ("fallbacks", decision.fallback),
            ("unverified", decision.unverified),
        ):
            for env, agent in np.argwhere(flags).tolist():
                notes[env].setdefault(name, {})[self.agents[agent]] = 1
        slack = self.slack * self.config.level if self.config.rule == "ledger" else self.bounds
        for name, now, noted in zip(("bound", "slack"), (self.bounds, slack), self._noted, strict=True):
            changed = decision.active & (now != noted) & ~(np.isnan(now) & np.isnan(noted))
            for env, agent in np.argwhere(changed).tolist():
                value = float(now[env, agent])
                notes[env].setdefault(name, {})[self.agents[agent]] = None if np.isnan(value) else value
            noted[changed] = now[changed]
        return notes

    def shaping(
        self,
        decision: Decision,
        next_key_ids: NDArray[np.integer],
        terminated: NDArray[np.bool_],
        *,
        gamma: float,
    ) -> NDArray[np.float64]:
        """What ``reward_mode`` adds to the rewards (E, A) of a step.

        ``next_key_ids`` (E,) are the keys that the step led to, the final one where an episode ended; ``terminated``
        (E, A) agents have no future potential. Only the potential reads these two and ``gamma``.
        """
        added = self._shaping.added(
            decision.key_ids,
            decision.k_left,
            decision.proposed,
            decision.overridden,
            next_key_ids,
            terminated,
            gamma,
        )
        return np.where(decision.active, added, 0.0)

    def freeze_potential(self) -> None:
        """Take the potential from the tables as they are; shaping changes no optimal policy until the next call.

        The first `refresh` does it; later calls let the potential catch up with what was learned.
        """
        self._shaping.freeze()

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything but the tables, which `refresh` makes anew from the models."""
        state: dict[str, NDArray[Any]] = {
            "actions": np.array(self.actions),
            "key_ids": self.key_ids.copy(),
            "k_left": self.k_left.copy(),
            "slack": self.slack.copy(),
            "bounds": self.bounds.copy(),
            "values": self._values(),
        }
        for index, shield in enumerate(self.shields):
            state[f"visits_{index}"] = shield.visits.copy()
            if self._shaping.potential is not None:
                state[f"potential_{index}"] = self._shaping.potential[index].copy()
        return state

    @classmethod
    def from_state(
        cls,
        agents: Sequence[AgentID],
        actions: Sequence[int],
        config: ShieldConfig,
        state: Mapping[str, NDArray[Any]],
        *,
        fallback: Fallback | None = None,
    ) -> TeamShield:
        """Inverse of `state`; call `refresh` before the first decision.

        Raises:
            ConfigError: the state is of other agents.
        """
        if tuple(state["actions"].tolist()) != tuple(actions):
            raise ConfigError(
                f"a shield's state for agents with {state['actions'].tolist()} actions cannot serve {list(agents)} "
                f"with {list(actions)}: load one that was saved with this environment."
            )
        shield = cls(agents, actions, config, num_envs=len(state["key_ids"]), fallback=fallback)
        shield.key_ids, shield.k_left = state["key_ids"].copy(), state["k_left"].copy()
        shield.slack, shield.bounds = state["slack"].copy(), state["bounds"].copy()
        shield._restored_value = state["values"]
        for index, one in enumerate(shield.shields):
            one.visits = state[f"visits_{index}"].copy()
        if "potential_0" in state:
            shield._shaping.potential = [
                state[f"potential_{index}"].copy() for index in range(len(shield.agents))
            ]
        return shield

    def _look(self, index: int) -> Look:
        return self.shields[index].look(self.key_ids, self.k_left, self.slack[:, index])

    def _values(self) -> NDArray[np.float64]:
        """(E, A) V of each agent where its copy stands."""
        columns = [
            shield.tables.value[self.k_left, shield.tables.rows(self.key_ids)] for shield in self.shields
        ]
        return np.stack(columns, 1)

    def _commit(
        self, proposed: NDArray[np.integer], active: NDArray[np.bool_], verdicts: list[Verdict]
    ) -> Decision:
        """Pay for what is executed. An action beyond the slack, or an unverified one, ends the episode's bound."""
        executed, overridden, fell_back, unverified = (
            np.stack([getattr(verdict, name) for verdict in verdicts], 1)
            for name in ("executed", "overridden", "fallback", "unverified")
        )
        if self.config.rule == "ledger":
            for index, shield in enumerate(self.shields):
                tables = shield.tables
                price = tables.price[self.k_left, tables.rows(self.key_ids), executed[:, index]].astype(
                    np.int32
                )
                price[~active[:, index]] = 0
                unpaid = (price > self.slack[:, index]) | unverified[:, index]
                self.bounds[unpaid, index] = np.nan
                self.slack[:, index] = np.maximum(0, self.slack[:, index] - price)
        return Decision(
            key_ids=self.key_ids.copy(),
            k_left=self.k_left.copy(),
            active=active,
            proposed=np.array(proposed, np.int64),
            executed=executed,
            overridden=overridden,
            fallback=fell_back,
            unverified=unverified,
        )

    def _expect(self, action: str) -> None:
        if self.config.action != action:
            raise ConfigError(
                f"the shield was made with action={self.config.action!r}: override takes decide(), mask takes masks() and "
                "play(); never both."
            )


def _of(per_agent: Sequence[Any] | None, index: int) -> Any:
    return None if per_agent is None else per_agent[index]
