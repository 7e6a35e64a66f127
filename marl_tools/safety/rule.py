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
from marl_tools.safety.look import Look
from marl_tools.safety.store import TableStore, by_cell
from marl_tools.safety.tables import slack_levels

Fallback = Callable[[AgentID, NDArray[np.integer], NDArray[np.integer], NDArray[np.float64]], Any]
"""``fallback(agent, key_ids (m,), proposed (m,), q (m, n))`` returns the m actions to play where none is safe."""


Who = int | NDArray[np.intp]
"""Whose states are looked at: one agent's, by its slot in the tables, or the agent of each state."""

Favour = Callable[[NDArray[np.intp]], NDArray[np.floating]]
"""``favour(states (m,))`` gives the policy's own probabilities (m, n) of all actions in some of N states; asked at ties only."""


@dataclass(slots=True)
class Verdict:
    """What is played in N states, and what it costs."""

    executed: NDArray[np.int64]
    overridden: NDArray[np.bool_]
    fallback: NDArray[np.bool_]
    unverified: NDArray[np.bool_]
    price: NDArray[np.int32]  # levels


class Rule:
    """What a shield decides, for many states at once. It knows no episodes: slack and steps left are handed in.

    With theta = V + slack an action is SAFE if Q <= theta and theta <= ``max_risk``, UNSAFE if its optimistic Q is above
    theta, else UNKNOWN. UNKNOWN actions are allowed for the first ``patience`` such plays of a (key, action), later and in
    evaluation they are refused. What is refused is replaced by the action of least Q; ties go to the least
    posterior-mean risk, then to the likeliest action of the policy. Keys without an id share one count of plays.

    `decide` and `offer` take the states of all agents in E copies, (E * A,), copy by copy; their keys are (E,).

    ``visits`` (A, C, n) counts the plays of UNKNOWN actions; a key's row is its id + 1, and C grows with the keys.
    """

    def __init__(self, agents: Sequence[AgentID], store: TableStore, config: ShieldConfig) -> None:
        self.agents, self.store, self.config = tuple(agents), store, config
        self.visits = np.zeros((len(agents), 1, store.price.shape[-1]), np.int32)

    def start(self, who: Who, key_ids: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Slack in levels and bound of episodes that start at these keys; NaN where the rule bounds nothing.

        ``who`` and the keys broadcast, and so the two are shaped.
        """
        store, cells = self.store.read(who, self.store.horizon, key_ids)
        value = store.value.take(cells)
        if self.config.rule == "step":
            return np.zeros(value.shape, np.int32), np.full(value.shape, np.nan)
        slack = slack_levels(self.config.max_risk - value, self.config.level)
        return slack, np.minimum(1.0, np.maximum(self.config.max_risk, value))

    def steps_ahead(self, k_left: NDArray[np.integer]) -> NDArray[np.integer]:
        """Steps that the rule reads the tables at with ``k_left`` left."""
        return k_left if self.config.rule == "ledger" else np.full_like(k_left, self.config.step_horizon)

    def look(
        self, who: Who, key_ids: NDArray[np.integer], k_left: NDArray[np.integer], slack: NDArray[np.int32]
    ) -> Look:
        """Read the tables at states whose parts broadcast to one shape; they are flat then, (N,).

        The step rule looks ``step_horizon`` ahead and has what ``max_risk`` leaves there as slack.
        """
        config = self.config
        store, cells = self.store.read(who, self.steps_ahead(k_left), key_ids)
        cells = cells.ravel()
        value = store.value.take(cells)
        room = (config.max_risk - value) / config.level + 1e-9
        slack = slack.ravel() if config.rule == "ledger" else np.maximum(np.floor(room), 0).astype(np.int32)
        within = room >= slack if config.over_budget == "fallback" else np.ones(len(cells), bool)
        size = store.actions[who] if isinstance(who, int) else max(store.actions)
        return Look(store, size, cells, value, slack, within)

    def decide(
        self,
        key_ids: NDArray[np.integer],
        look: Look,
        proposed: NDArray[np.integer],
        *,
        active: NDArray[np.bool_],
        favour: Favour | None = None,
        legal: NDArray[np.bool_] | None = None,
        fallback: Fallback | None = None,
    ) -> Verdict:
        """Replace the proposals (N,) that are refused; plays of UNKNOWN actions are counted.

        Raises:
            ConfigError: a user's fallback returned something else than one action a state.
        """
        executed = np.array(proposed, np.int64)
        overridden, fell_back, unverified = np.zeros((3, len(executed)), bool)
        price = look.price_of(executed)
        index = np.flatnonzero(((price > look.slack) | ~look.within) & active)
        if len(index) and self.config.patience:
            allowed = self._try(key_ids, look, index, executed.take(index))
            unverified[index[allowed]] = True
            index = index[~allowed]
        if len(index):
            here, before = look[index], executed.take(index)
            usable = None if legal is None else legal[index]
            among = None if favour is None else lambda tied: favour(index[tied])
            chosen = self.safest(here, before, among, usable)
            # The safest action of all is free.
            safe = here.within if usable is None else (here.safe & usable).any(1)
            lost = np.flatnonzero(~safe)
            if fallback is not None and len(lost):
                chosen[lost] = self._ask(fallback, key_ids, index[lost], before[lost], here[lost])
            executed[index], price[index] = chosen, here.price_of(chosen)
            overridden[index], fell_back[index] = chosen != before, ~safe
        return Verdict(executed, overridden, fell_back, unverified, price)

    def offer(
        self,
        key_ids: NDArray[np.integer],
        look: Look,
        favour: Favour | None = None,
        legal: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """For masked policies: admitted actions (N, n), those of them that are unverified (N, n), and fallbacks (N,).

        Copies of an env that stand at one key in one step can overshoot ``patience``, since plays count when they are made.
        """
        admitted = look.safe
        unverified = np.zeros_like(admitted)
        if self.config.patience:
            who, keys = self._whose(key_ids, np.arange(len(admitted)))
            self.count_keys(int(key_ids.max()) + 1)
            unverified = self.unknown(look) & (self.visits[who, keys + 1] < self.config.patience)
        if legal is not None:
            admitted, unverified = admitted & legal, unverified & legal
        admitted = admitted | unverified
        fell_back = np.logical_not(admitted.any(1))
        lost = np.flatnonzero(fell_back)
        if len(lost):
            usable = None if legal is None else legal[lost]
            among = None if favour is None else lambda tied: favour(lost[tied])
            admitted[lost, self.safest(look[lost], np.full(len(lost), -1), among, usable)] = True
        return admitted, unverified, fell_back

    def unknown(self, look: Look) -> NDArray[np.bool_]:
        """(N, n) actions that are neither SAFE nor UNSAFE."""
        theta = look.value + look.slack * self.config.level
        return ~look.safe & (look.lower <= theta[:, None])

    def safest(
        self,
        look: Look,
        proposed: NDArray[np.integer],
        favour: Favour | None = None,
        legal: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """(N,) the replacement. The last tie goes to the policy's likeliest action, the first of several.

        Where nobody can say which that is, it goes to the proposal, if it takes part.
        """
        price = look.price
        if legal is not None:
            price = np.where(legal, price, np.iinfo(np.int32).max)
        best = price == price.min(1, keepdims=True)
        mean = np.where(best, look.mean, np.inf)
        best = mean <= mean.min(1, keepdims=True) + 1e-6
        if favour is None:
            return np.where(best, proposed[:, None] == np.arange(best.shape[1]), -1).argmax(1)
        tied = np.flatnonzero(best.sum(1) > 1)
        chosen = best.argmax(1)
        if len(tied):
            chosen[tied] = np.where(best[tied], favour(tied), -1.0).argmax(1)
        return chosen

    def count(
        self, key_ids: NDArray[np.integer], states: NDArray[np.intp], actions: NDArray[np.integer]
    ) -> None:
        """Add plays of UNKNOWN actions (m,) in some of the states."""
        np.add.at(self.visits.reshape(-1), self._places(key_ids, states, actions), 1)

    def count_keys(self, number: int) -> None:
        """Make room in the counts for the first ``number`` keys."""
        missing = number + 1 - self.visits.shape[1]
        if missing > 0:
            more = max(missing, self.visits.shape[1] // 2)
            room = np.zeros((len(self.visits), more, self.visits.shape[2]), np.int32)
            self.visits = np.concatenate([self.visits, room], axis=1)

    def _try(
        self,
        key_ids: NDArray[np.integer],
        look: Look,
        states: NDArray[np.intp],
        actions: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Which refused proposals (m,) are UNKNOWN and still within patience, counted one after the other."""
        assert look.store.lower is not None
        theta = look.value.take(states) + look.slack.take(states) * self.config.level
        # Refused, hence not SAFE: what is left is to be UNSAFE.
        allowed = by_cell(look.store.lower)[look.cells.take(states), actions] <= theta
        unknown = np.flatnonzero(allowed)
        if len(unknown):
            at = self._places(key_ids, states[unknown], actions[unknown])
            visits, patience = self.visits.reshape(-1), self.config.patience
            seen = visits.take(at)
            waits = seen < patience
            if waits.any():
                # Only counts near the end can be overrun within one step.
                if (seen[waits].max() + len(seen)) > patience:
                    waits &= seen + occurrence(at) < patience
                np.add.at(visits, at, waits)
            allowed[unknown] = waits
        return allowed

    def _ask(
        self,
        fallback: Fallback,
        key_ids: NDArray[np.integer],
        states: NDArray[np.intp],
        proposed: NDArray[np.integer],
        look: Look,
    ) -> NDArray[np.int64]:
        who, keys = self._whose(key_ids, states)
        q = look.value[:, None] + look.price * self.config.level
        chosen = np.empty(len(keys), np.int64)
        for slot in np.unique(who).tolist():
            at, limit, name = who == slot, self.store.actions[slot], self.agents[slot]
            actions = np.asarray(fallback(name, keys[at], proposed[at], q[at, :limit]))
            fits = actions.shape == keys[at].shape and actions.dtype.kind in "iu"
            if not fits or (actions < 0).any() or (actions >= limit).any():
                raise ConfigError(
                    f"the fallback of agent {name!r} returned {actions!r}: it must return {np.count_nonzero(at)} whole "
                    f"numbers from 0 to {limit - 1}, one a state."
                )
            chosen[at] = actions
        return chosen

    def _whose(
        self, key_ids: NDArray[np.integer], states: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.integer]]:
        """Agents and keys (m,) of some of the states."""
        env, who = np.divmod(states, len(self.agents))
        return who, key_ids.take(env)

    def _places(
        self, key_ids: NDArray[np.integer], states: NDArray[np.intp], actions: NDArray[np.integer]
    ) -> NDArray[np.intp]:
        """Places (m,) of the counts of these plays in the flat ``visits``."""
        who, keys = self._whose(key_ids, states)
        self.count_keys(int(keys.max(initial=-1)) + 1)
        _, rows, size = self.visits.shape
        return (who * rows + keys + 1) * size + actions
