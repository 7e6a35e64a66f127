"""The shield's rule: which actions it admits, what they cost, and what is played instead of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.counting import occurrence
from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.store import TableStore
from marl_tools.safety.tables import slack_levels

Fallback = Callable[[AgentID, NDArray[np.integer], NDArray[np.integer], NDArray[np.float64]], Any]
"""``fallback(agent, key_ids (m,), proposed (m,), q (m, n))`` returns the m actions to play where none is safe."""


Who = int | NDArray[np.intp]
"""Whose states are looked at: one agent's, by its slot in the tables, or (N,) the agent of each state."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the tables say about N states, each an agent at a key with some steps and slack left."""

    store: TableStore
    who: Who
    rows: NDArray[np.intp]  # (N,) in the tables
    k: NDArray[np.integer]  # (N,) steps that the tables are read at
    value: NDArray[np.float64]  # (N,)
    slack: NDArray[np.int32]  # (N,) levels
    within: NDArray[np.bool_]  # (N,) the key can have safe actions at all

    @property
    def price(self) -> NDArray[np.int32]:
        """(N, n) levels."""
        return self._read(self.store.price).astype(np.int32)

    @property
    def lower(self) -> NDArray[np.float32]:
        """(N, n) optimistic Q."""
        assert self.store.lower is not None
        return self._read(self.store.lower)

    @property
    def mean(self) -> NDArray[np.float32]:
        """(N, n) posterior-mean Q."""
        return self._read(self.store.mean)

    @property
    def safe(self) -> NDArray[np.bool_]:
        """(N, n) actions that count as safe."""
        return (self.price <= self.slack[:, None]) & self.within[:, None]

    def price_of(self, actions: NDArray[np.integer]) -> NDArray[np.int32]:
        """(N,) levels that one action a state costs."""
        return self.store.price[self.who, self.k, self.rows, actions].astype(np.int32)

    def __getitem__(self, index: NDArray[np.intp]) -> Look:
        who = self.who if isinstance(self.who, int) else self.who[index]
        return Look(
            self.store,
            who,
            self.rows[index],
            self.k[index],
            self.value[index],
            self.slack[index],
            self.within[index],
        )

    def _read(self, table: NDArray) -> NDArray:
        read = table[self.who, self.k, self.rows]
        return read[:, : self.store.actions[self.who]] if isinstance(self.who, int) else read


@dataclass(slots=True)
class Verdict:
    """What one agent plays in N states."""

    executed: NDArray[np.int64]
    overridden: NDArray[np.bool_]
    fallback: NDArray[np.bool_]
    unverified: NDArray[np.bool_]


class Rule:
    """What a shield decides, for many states at once. It knows no episodes: slack and steps left are handed in.

    With theta = V + slack an action is SAFE if Q <= theta and theta <= ``max_risk``, UNSAFE if its optimistic Q is above
    theta, else UNKNOWN. UNKNOWN actions are allowed for the first ``patience`` such plays of a (key, action), later and in
    evaluation they are refused. What is refused is replaced by the action of least Q; ties go to the least
    posterior-mean risk, then to the likeliest action of the policy. Keys without an id share one count of plays.

    ``visits`` (A, C, n) counts the plays of UNKNOWN actions; a key's row is its id + 1, and C grows with the keys.
    """

    def __init__(self, agents: Sequence[AgentID], store: TableStore, config: ShieldConfig) -> None:
        self.agents, self.store, self.config = tuple(agents), store, config
        self.visits = np.zeros((len(agents), 1, store.price.shape[-1]), np.int32)

    def start(self, who: Who, key_ids: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Slack (N,) in levels and bound (N,) of episodes that start at these keys; NaN where the rule bounds nothing."""
        if self.config.rule == "step":
            return np.zeros(len(key_ids), np.int32), np.full(len(key_ids), np.nan)
        value = self.store.value[who, -1, self.store.rows(key_ids)]
        slack = slack_levels(self.config.max_risk - value, self.config.level)
        return slack, np.maximum(self.config.max_risk, value)

    def steps_ahead(self, k_left: NDArray[np.integer]) -> NDArray[np.integer]:
        """Steps (N,) that the rule reads the tables at with ``k_left`` (N,) left."""
        return k_left if self.config.rule == "ledger" else np.full_like(k_left, self.config.step_horizon)

    def look(
        self, who: Who, key_ids: NDArray[np.integer], k_left: NDArray[np.integer], slack: NDArray[np.int32]
    ) -> Look:
        """Read the tables. The step rule looks ``step_horizon`` ahead and has what ``max_risk`` leaves there as slack."""
        config, rows = self.config, self.store.rows(key_ids)
        k = self.steps_ahead(k_left)
        value = self.store.value[who, k, rows]
        room = np.floor((config.max_risk - value) / config.level + 1e-9)
        if config.rule == "step":
            slack = np.maximum(room, 0).astype(np.int32)
        within = room >= slack if config.over_budget == "fallback" else np.ones(len(rows), bool)
        return Look(self.store, who, rows, k, value, slack, within)

    def decide(
        self,
        key_ids: NDArray[np.integer],
        look: Look,
        proposed: NDArray[np.integer],
        *,
        active: NDArray[np.bool_] | None = None,
        probabilities: NDArray[np.floating] | None = None,
        legal: NDArray[np.bool_] | None = None,
        fallback: Fallback | None = None,
    ) -> Verdict:
        """Replace the proposals (N,) that are refused; plays of UNKNOWN actions are counted.

        Raises:
            ConfigError: a user's fallback returned something else than one action a state.
        """
        executed = np.array(proposed, np.int64)
        unverified, fell_back = np.zeros((2, len(executed)), bool)
        refused = ~((look.price_of(proposed) <= look.slack) & look.within)
        if active is not None:
            refused &= active
        index = np.flatnonzero(refused)
        if len(index) and self.config.patience:
            allowed = self._try(key_ids[index], look[index], executed[index])
            unverified[index[allowed]] = True
            index = index[~allowed]
        if len(index):
            here = look[index]
            usable = None if legal is None else legal[index]
            likely = None if probabilities is None else probabilities[index]
            executed[index] = self.safest(here, executed[index], likely, usable)
            safe = here.safe if usable is None else here.safe & usable
            lost = index[~safe.any(1)]
            fell_back[lost] = True
            if fallback is not None and len(lost):
                executed[lost] = self._ask(fallback, key_ids[lost], proposed[lost], look[lost])
        return Verdict(executed, executed != proposed, fell_back, unverified)

    def offer(
        self, key_ids: NDArray[np.integer], look: Look, legal: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """For masked policies: admitted actions (N, n), those of them that are unverified (N, n), and fallbacks (N,).

        Copies of an env that stand at one key in one step can overshoot ``patience``, since plays count when they are made.
        """
        admitted = look.safe
        unverified = np.zeros_like(admitted)
        if self.config.patience:
            self.count_keys(key_ids)
            waiting = self.visits[look.who, np.asarray(key_ids, np.intp) + 1] < self.config.patience
            waiting = waiting[:, : admitted.shape[1]]
            unverified = self.unknown(look) & waiting
        if legal is not None:
            admitted, unverified = admitted & legal, unverified & legal
        admitted = admitted | unverified
        fell_back = np.logical_not(admitted.any(1))
        lost = np.flatnonzero(fell_back)
        if len(lost):
            usable = None if legal is None else legal[lost]
            admitted[lost, self.safest(look[lost], np.full(len(lost), -1), None, usable)] = True
        return admitted, unverified, fell_back

    def unknown(self, look: Look) -> NDArray[np.bool_]:
        """(N, n) actions that are neither SAFE nor UNSAFE."""
        theta = look.value + look.slack * self.config.level
        return ~look.safe & (look.lower <= theta[:, None])

    def safest(
        self,
        look: Look,
        proposed: NDArray[np.integer],
        probabilities: NDArray[np.floating] | None = None,
        legal: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """(N,) the replacement; without the policy's probabilities the last tie goes to the proposal, if it takes part."""
        price = look.price if legal is None else np.where(legal, look.price, np.iinfo(np.int32).max)
        best = price == price.min(1, keepdims=True)
        mean = np.where(best, look.mean, np.inf)
        best = mean <= mean.min(1, keepdims=True) + 1e-6
        liked = proposed[:, None] == np.arange(best.shape[1]) if probabilities is None else probabilities
        return np.where(best, liked, -1.0).argmax(1)

    def count(self, who: Who, key_ids: NDArray[np.integer], actions: NDArray[np.integer]) -> None:
        """Add plays of UNKNOWN actions."""
        np.add.at(self.visits.reshape(-1), self._places(who, key_ids, actions), 1)

    def _try(self, key_ids: NDArray[np.integer], look: Look, actions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which refused proposals (m,) are UNKNOWN and still within patience, counted one after the other."""
        theta = look.value + look.slack * self.config.level
        lower = self.store.lower
        assert lower is not None
        # Refused, hence not SAFE: what is left is to be UNSAFE.
        unknown = np.flatnonzero(lower[look.who, look.k, look.rows, actions] <= theta)
        allowed = np.zeros(len(actions), bool)
        if len(unknown):
            keys, who, tried = key_ids[unknown], look[unknown].who, actions[unknown]
            at = self._places(who, keys, tried)
            visits = self.visits.reshape(-1)
            waits = visits[at] < self.config.patience
            if waits.any():
                waits &= visits[at] + occurrence(at) < self.config.patience
                allowed[unknown] = waits
                np.add.at(visits, at, waits)
        return allowed

    def _ask(
        self, fallback: Fallback, key_ids: NDArray[np.integer], proposed: NDArray[np.integer], look: Look
    ) -> NDArray[np.int64]:
        who = np.broadcast_to(look.who, key_ids.shape)
        q = look.value[:, None] + look.price * self.config.level
        chosen = np.empty(len(key_ids), np.int64)
        for slot in np.unique(who).tolist():
            at, limit, name = who == slot, self.store.actions[slot], self.agents[slot]
            actions = np.asarray(fallback(name, key_ids[at], proposed[at], q[at, :limit]))
            fits = actions.shape == key_ids[at].shape and actions.dtype.kind in "iu"
            if not fits or (actions < 0).any() or (actions >= limit).any():
                raise ConfigError(
                    f"the fallback of agent {name!r} returned {actions!r}: it must return {np.count_nonzero(at)} whole "
                    f"numbers from 0 to {limit - 1}, one a state."
                )
            chosen[at] = actions
        return chosen

    def _places(
        self, who: Who, key_ids: NDArray[np.integer], actions: NDArray[np.integer]
    ) -> NDArray[np.intp]:
        """Places (N,) of the counts of these plays in the flat ``visits``."""
        self.count_keys(key_ids)
        _, keys, size = self.visits.shape
        return (who * keys + np.asarray(key_ids, np.intp) + 1) * size + actions

    def count_keys(self, key_ids: NDArray[np.integer]) -> None:
        """Make room in the counts for all these keys."""
        missing = int(np.max(key_ids, initial=-1)) + 2 - self.visits.shape[1]
        if missing > 0:
            more = max(missing, self.visits.shape[1] // 2)
            room = np.zeros((len(self.visits), more, self.visits.shape[2]), np.int32)
            self.visits = np.concatenate([self.visits, room], axis=1)
