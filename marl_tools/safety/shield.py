"""The shield of a team: slack, bounds and decisions of all agents in many copies of an env."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import TransitionTable
from marl_tools.core.types import AgentID
from marl_tools.safety.agent import AgentShield
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.decision import Decision
from marl_tools.safety.look import Look
from marl_tools.safety.notes import Note, Notebook
from marl_tools.safety.rows import Opponents
from marl_tools.safety.rule import Fallback, Favour, Rule, Verdict
from marl_tools.safety.shaping import Shaping
from marl_tools.safety.store import TableStore

Probabilities = Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.floating]]
"""``probabilities(copies (m,), agents (m,))`` gives the policy's own (m, n), n being the most actions of any agent."""
Legal = Sequence[NDArray[np.bool_] | None] | None


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
        store = self._make_store()
        self.rule = Rule(self.agents, store, config)
        self.shields = [
            AgentShield(name, index, size, config, self.rule)
            for index, (name, size) in enumerate(zip(self.agents, self.actions, strict=True))
        ]
        self._who = np.arange(len(self.agents))
        self.key_ids = np.full(num_envs, -1, np.int64)
        self.k_left = np.full(num_envs, config.horizon, np.int64)
        self.slack = np.zeros((num_envs, len(self.agents)), np.int32)
        self.bounds = np.full(self.slack.shape, np.nan)
        """(E, A) bound of the running episode; NaN where there is none."""
        self._shaping = Shaping(config, store)
        self._notebook = Notebook(self.agents, num_envs)
        self._restored_value: NDArray[np.float64] | None = None
        self._offers: tuple[NDArray[np.bool_], ...] | None = None

    def _make_store(self) -> TableStore:
        # Overrides look up E copies and A agents at once; most of a step's cost is that of calls, not of numbers.
        return TableStore(self.actions, self.config.horizon, with_lower=self.config.patience > 0)

    def begin(self, envs: NDArray[np.bool_], key_ids: NDArray[np.integer]) -> None:
        """Start an episode in the copies ``envs`` (E,), at ``key_ids`` (E,); -1 is a key without an id."""
        self._begin(np.flatnonzero(envs), key_ids)

    def decide(
        self,
        proposed: NDArray[np.integer],
        active: NDArray[np.bool_] | None = None,
        probabilities: Probabilities | None = None,
        legal: Legal = None,
    ) -> Decision:
        """Override what the policies propose (E, A) where the rule refuses it, and pay for what is executed.

        ``probabilities`` is asked where two replacements are equally good; ``legal[i]`` (E, n_i) is what the env allows.

        Raises:
            ConfigError: the shield masks; call `masks` and `play`.
        """
        self._expect("override")
        active = np.ones(self.slack.shape, bool) if active is None else active
        verdict = self.rule.decide(
            self.key_ids,
            self._look(),
            proposed.ravel(),
            active=active.ravel(),
            favour=self._favour(probabilities),
            legal=self._flat(legal),
            fallback=self.fallback,
        )
        return self._commit(proposed, active, verdict)

    def masks(
        self, legal: Legal = None, probabilities: Probabilities | None = None
    ) -> list[NDArray[np.bool_]]:
        """Per agent (E, n_i) the actions that its policy may sample from; hand what it sampled to `play`.

        Where nothing is safe that is the one action that `decide` would play.

        Raises:
            ConfigError: the shield overrides; call `decide`.
        """
        self._expect("mask")
        favour = self._favour(probabilities)
        self._offers = self.rule.offer(self.key_ids, self._look(), favour, self._flat(legal))
        admitted = self._offers[0].reshape(*self.slack.shape, -1)
        return [admitted[:, index, :size] for index, size in enumerate(self.actions)]

    def play(self, sampled: NDArray[np.integer], active: NDArray[np.bool_] | None = None) -> Decision:
        """Pay for actions (E, A) sampled under the last `masks`.

        Raises:
            ConfigError: an action outside its mask, or no masks were asked for.
        """
        self._expect("mask")
        if self._offers is None:
            raise ConfigError("play: no masks to sample from; call masks() once before each play().")
        active = np.ones(self.slack.shape, bool) if active is None else active
        admitted, unverified, lost = self._offers
        actions, acts = sampled.astype(np.int64).ravel(), active.ravel()
        chosen = (np.arange(len(actions)), actions)
        outside = np.flatnonzero(acts & ~admitted[chosen])
        if len(outside):
            env, index = divmod(int(outside[0]), len(self.agents))
            raise ConfigError(
                f"agent {self.agents[index]!r} in copy {env} plays {actions[outside[0]]}, outside its mask: sample from "
                "masks()."
            )
        tried = acts & unverified[chosen]
        at = np.flatnonzero(tried)
        self.rule.count(self.key_ids, at, actions[at])
        self._offers = None
        price = self._look().price_of(actions)
        verdict = Verdict(actions, np.zeros(len(actions), bool), lost & acts, tried, price)
        return self._commit(sampled, active, verdict)

    def observe(self, key_ids: NDArray[np.integer], done: NDArray[np.bool_]) -> None:
        """Take in the keys (E,) to act on next; copies that are ``done`` begin a new episode there."""
        self.k_left -= 1
        self.key_ids[:] = key_ids
        new = np.flatnonzero(done)
        if len(new):
            self._begin(new, key_ids)
        again = np.flatnonzero(self.k_left == 0)
        if len(again):
            self.k_left[again] = self.config.horizon
            before = self.bounds[again]
            self._open_ledgers(again)
            self.bounds[again] = np.minimum(1.0, before + self.bounds[again])

    def refresh(self, table: TransitionTable, floors: Opponents = None, guesses: Opponents = None) -> int:
        """Bring the tables up to date between two steps; returns how many (key, k) were computed, all agents together.

        A running episode keeps its total, s = max(0, V_old + s_old - V_new) at the key where it stands; where V has risen
        above that total, the bound rises by as much. Floors and guesses are per agent, (K, n_i) or None; see `RiskTables`.
        """
        return self._renew(
            lambda: sum(shield.tables.update(table, floors, guesses) for shield in self.shields)
        )

    def _renew(self, update: Callable[[], int]) -> int:
        """`refresh` by whatever updates the tables."""
        before = self._values() if self._restored_value is None else self._restored_value
        self._restored_value = None
        computed = update()
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
        shield = self._again(num_envs)
        shield.rule.store = self.rule.store
        for mine, other in zip(self.shields, shield.shields, strict=True):
            other.tables = mine.tables
        return shield

    def _again(self, num_envs: int) -> TeamShield:
        """One for evaluation that knows nothing yet."""
        return TeamShield(
            self.agents, self.actions, self.config.evaluating(), num_envs=num_envs, fallback=self.fallback
        )

    def always_admitted(self) -> list[NDArray[np.bool_]]:
        """Per agent (K, n_i) the actions whose floors may be relied on; see `AgentShield.always_admitted`."""
        return [shield.always_admitted() for shield in self.shields]

    def notes(self, decision: Decision) -> list[Note]:
        """What `VectorEnv.step` takes to each copy's episode log; bounds and slack where they changed."""
        ledger = self.config.rule == "ledger"
        slack = self.slack.astype(np.float64) * self.config.level if ledger else self.bounds
        events = (decision.overridden, decision.fallback, decision.unverified)
        return self._notebook.write(events, decision.active, self.bounds, slack)

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
        """Inverse of `state`; see `load`."""
        shield = cls(agents, actions, config, num_envs=len(state["key_ids"]), fallback=fallback)
        shield.load(state)
        return shield

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from the `state` of as many copies; call `refresh` before the first decision.

        Raises:
            ConfigError: it is of other agents.
        """
        if tuple(state["actions"].tolist()) != self.actions:
            raise ConfigError(
                f"a shield's state for agents with {state['actions'].tolist()} actions cannot serve {list(self.agents)} "
                f"with {list(self.actions)}: load one that was saved with this environment."
            )
        self.key_ids, self.k_left = state["key_ids"].copy(), state["k_left"].copy()
        self.slack, self.bounds = state["slack"].copy(), state["bounds"].copy()
        self._restored_value = state["values"]
        for index, one in enumerate(self.shields):
            one.restore_visits(state[f"visits_{index}"])
        if "potential_0" in state:
            self._shaping.potential = np.stack([state[f"potential_{i}"] for i in range(len(self.agents))])

    def _begin(self, envs: NDArray[np.intp], key_ids: NDArray[np.integer]) -> None:
        """Start episodes in the copies ``envs`` (m,)."""
        self.key_ids[envs] = key_ids[envs]
        self.k_left[envs] = self.config.horizon
        self._open_ledgers(envs)
        self._notebook.forget(envs)

    def _favour(self, probabilities: Probabilities | None) -> Favour | None:
        """The same as asked by the rule, whose states lie copy by copy."""
        if probabilities is None:
            return None
        return lambda states: probabilities(*np.divmod(states, len(self.agents)))

    def _flat(self, per_agent: Sequence[NDArray[Any] | None] | None) -> NDArray[Any] | None:
        """(E * A, n) from arrays per agent; an agent without one has anything alike."""
        if per_agent is None or all(one is None for one in per_agent):
            return None
        given = next(one for one in per_agent if one is not None)
        flat = np.zeros((*self.slack.shape, max(self.actions)), given.dtype)
        for index, (one, size) in enumerate(zip(per_agent, self.actions, strict=True)):
            flat[:, index, :size] = 1 if one is None else one
        return flat.reshape(-1, flat.shape[2])

    def _look(self) -> Look:
        """All states, copy by copy."""
        return self.rule.look(self._who, self.key_ids[:, None], self.k_left[:, None], self.slack)

    def _open_ledgers(self, envs: NDArray[np.intp]) -> None:
        """Slack and bounds of new ledgers in the copies ``envs`` (m,), where they stand."""
        self.slack[envs], self.bounds[envs] = self.rule.start(self._who, self.key_ids[envs, None])

    def _values(self) -> NDArray[np.float64]:
        """(E, A) V of each agent where its copy stands."""
        store, cells = self.rule.store.read(self._who, self.k_left[:, None], self.key_ids[:, None])
        return store.value.take(cells)

    def _commit(self, proposed: NDArray[np.integer], active: NDArray[np.bool_], verdict: Verdict) -> Decision:
        """Pay for what is executed. An action beyond the slack, or an unverified one, ends the episode's bound."""
        shape = self.slack.shape
        unverified = verdict.unverified.reshape(shape)
        if self.config.rule == "ledger":
            price = np.where(active, verdict.price.reshape(shape), 0)
            self.bounds[(price > self.slack) | unverified] = np.nan
            self.slack = np.maximum(0, self.slack - price)
        return Decision(
            key_ids=self.key_ids.copy(),
            k_left=self.k_left.copy(),
            active=active,
            proposed=np.array(proposed, np.int64),
            executed=verdict.executed.reshape(shape),
            overridden=verdict.overridden.reshape(shape),
            fallback=verdict.fallback.reshape(shape),
            unverified=unverified,
        )

    def _expect(self, action: str) -> None:
        if self.config.action != action:
            raise ConfigError(
                f"the shield was made with action={self.config.action!r}: override takes decide(), mask takes masks() and "
                "play(); never both."
            )
