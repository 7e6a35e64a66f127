"""The shield of one agent: which actions its rule admits, what they cost, and what is played instead of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID
from marl_tools.safety.config import LEVELS, ShieldConfig
from marl_tools.safety.tables import RiskTables, slack_levels

Fallback = Callable[[AgentID, NDArray[np.integer], NDArray[np.integer], NDArray[np.float64]], Any]
"""``fallback(agent, key_ids (m,), proposed (m,), q (m, n))`` returns the m actions to play where none is safe."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the tables say about N states, each a key with some steps and slack left."""

    rows: NDArray[np.intp]  # (N,) in the tables
    k: NDArray[np.integer]  # (N,) steps that the tables are read at
    value: NDArray[np.float64]  # (N,)
    slack: NDArray[np.int32]  # (N,) levels
    price: NDArray[np.int32]  # (N, n) levels
    within: NDArray[np.bool_]  # (N,) the key can have safe actions at all

    @property
    def safe(self) -> NDArray[np.bool_]:
        """(N, n) actions that count as safe."""
        return (self.price <= self.slack[:, None]) & self.within[:, None]

    def __getitem__(self, index: NDArray[np.intp]) -> Look:
        return Look(
            self.rows[index],
            self.k[index],
            self.value[index],
            self.slack[index],
            self.price[index],
            self.within[index],
        )


@dataclass(slots=True)
class Verdict:
    """What one agent plays in N states."""

    executed: NDArray[np.int64]
    overridden: NDArray[np.bool_]
    fallback: NDArray[np.bool_]
    unverified: NDArray[np.bool_]


class AgentShield:
    """The rule of one agent over its risk tables. It knows no episodes: slack and steps left are handed in.

    With theta = V + slack an action is SAFE if Q <= theta and theta <= ``max_risk``, UNSAFE if its optimistic Q is above
    theta, else UNKNOWN. UNKNOWN actions are allowed for the first ``patience`` such plays of a (key, action), later and in
    evaluation they are refused. What is refused is replaced by the action of least Q; ties go to the least
    posterior-mean risk, then to the likeliest action of the policy. Keys without an id share one count of plays.
    """

    def __init__(self, name: AgentID, agent: int, num_actions: int, config: ShieldConfig) -> None:
        self.name, self.num_actions, self.config = name, num_actions, config
        self.tables = RiskTables(
            agent, num_actions, config.horizon, config.level, with_lower=config.patience > 0
        )
        self.visits = np.zeros((1, num_actions), np.int32)

    def start(self, key_ids: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Slack (N,) in levels and bound (N,) of episodes that start at these keys; NaN where the rule bounds nothing."""
        if self.config.rule == "step":
            return np.zeros(len(key_ids), np.int32), np.full(len(key_ids), np.nan)
        value = self.tables.value[-1, self.tables.rows(key_ids)]
        slack = slack_levels(self.config.max_risk - value, self.config.level)
        return slack, np.maximum(self.config.max_risk, value)

    def steps_ahead(self, k_left: NDArray[np.integer]) -> NDArray[np.integer]:
        """Steps (N,) that the rule reads the tables at with ``k_left`` (N,) left."""
        return k_left if self.config.rule == "ledger" else np.full_like(k_left, self.config.step_horizon)

    def look(
        self, key_ids: NDArray[np.integer], k_left: NDArray[np.integer], slack: NDArray[np.int32]
    ) -> Look:
        """Read the tables. The step rule looks ``step_horizon`` ahead and has what ``max_risk`` leaves there as slack."""
        config, rows = self.config, self.tables.rows(key_ids)
        k = self.steps_ahead(k_left)
        value = self.tables.value[k, rows]
        room = np.floor((config.max_risk - value) / config.level + 1e-9)
        if config.rule == "step":
            slack = np.maximum(room, 0).astype(np.int32)
        within = room >= slack if config.over_budget == "fallback" else np.ones(len(rows), bool)
        return Look(rows, k, value, slack, self.tables.price[k, rows].astype(np.int32), within)

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
        refused = ~((_at(look.price, proposed) <= look.slack) & look.within)
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
            self._count_keys(key_ids)
            waiting = self.visits[np.asarray(key_ids, np.intp) + 1] < self.config.patience
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
        assert self.tables.lower is not None
        theta = look.value + look.slack * self.config.level
        return ~look.safe & (self.tables.lower[look.k, look.rows] <= theta[:, None])

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
        mean = np.where(best, self.tables.mean[look.k, look.rows], np.inf)
        best = mean <= mean.min(1, keepdims=True) + 1e-6
        liked = proposed[:, None] == np.arange(self.num_actions) if probabilities is None else probabilities
        return np.where(best, liked, -1.0).argmax(1)

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

    def count(self, key_ids: NDArray[np.integer], actions: NDArray[np.integer]) -> None:
        """Add plays of UNKNOWN actions."""
        self._count_keys(key_ids)
        np.add.at(self.visits, (np.asarray(key_ids, np.intp) + 1, actions), 1)

    def _try(self, key_ids: NDArray[np.integer], look: Look, actions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which refused proposals (m,) are UNKNOWN and still within patience, counted one after the other."""
        unknown = np.flatnonzero(_at(self.unknown(look), actions))
        allowed = np.zeros(len(actions), bool)
        if len(unknown):
            keys, tried = key_ids[unknown], actions[unknown]
            self._count_keys(keys)
            earlier = _earlier(np.asarray(keys, np.int64) * self.num_actions + tried)
            waits = self.visits[np.asarray(keys, np.intp) + 1, tried] + earlier < self.config.patience
            allowed[unknown] = waits
            self.count(keys[waits], tried[waits])
        return allowed

    def _ask(
        self, fallback: Fallback, key_ids: NDArray[np.integer], proposed: NDArray[np.integer], look: Look
    ) -> NDArray[np.int64]:
        q = look.value[:, None] + look.price * self.config.level
        actions = np.asarray(fallback(self.name, key_ids, proposed, q))
        fits = actions.shape == key_ids.shape and actions.dtype.kind in "iu"
        if not fits or (actions < 0).any() or (actions >= self.num_actions).any():
            raise ConfigError(
                f"the fallback of agent {self.name!r} returned {actions!r}: it must return {len(key_ids)} whole numbers "
                f"from 0 to {self.num_actions - 1}, one a state."
            )
        return actions.astype(np.int64)

    def _count_keys(self, key_ids: NDArray[np.integer]) -> None:
        """Make room in the counts for all these keys."""
        missing = int(np.max(key_ids, initial=-1)) + 2 - len(self.visits)
        if missing > 0:
            more = max(missing, len(self.visits) // 2)
            self.visits = np.concatenate([self.visits, np.zeros((more, self.num_actions), np.int32)])


def _at(array: NDArray, actions: NDArray[np.integer]) -> NDArray:
    """Entry of each row (N, n) at its action."""
    return array[np.arange(len(array)), actions]


def _earlier(codes: NDArray[np.int64]) -> NDArray[np.intp]:
    """How many equal codes come before each."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    first = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    runs = np.diff(first, append=len(codes))
    rank = np.empty(len(codes), np.intp)
    rank[order] = np.arange(len(codes)) - np.repeat(first, runs)
    return rank
