"""What a shield's bound rests on, held against what was seen while its frozen team played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.bounds import ppr_interval, rank_level
from marl_tools.core.transitions import Key, TransitionTable, joint_choices, joint_index
from marl_tools.core.types import AgentID
from marl_tools.models.world import WorldModel
from marl_tools.safety.decision import Decision

LEVEL = 0.001
"""The probability that an audit finds a contradiction where there is none."""

Ints = NDArray[np.int64]


class _Step(NamedTuple):
    """One step of a frozen team; flags and actions as tuples over the agents."""

    episode: int
    step: int
    key: int
    joint: int
    next_key: int
    violated: int
    ended: int
    proposed: tuple[int, ...]
    active: tuple[bool, ...]


class Audited(Protocol):
    """What an audit asks of a team, or of a factor of one."""

    @property
    def agents(self) -> tuple[AgentID, ...]: ...
    @property
    def actions(self) -> tuple[int, ...]: ...
    @property
    def world(self) -> WorldModel: ...
    @property
    def table(self) -> TransitionTable: ...
    @property
    def floors(self) -> list[NDArray[np.float64]] | None: ...


class Audit:
    """Remembers the steps of a frozen team, and tells what in them contradicts its world model or its floors.

    The bound needs keys that are Markov, a law inside the credible sets, and others who propose each action at least as
    often as its floor says. Each is tested from all steps, and again from those of one context alone (the row before, the
    number of the step, the 2^i-th to 2^(i+1)-th episode): a Markov key makes the context irrelevant. An outcome is
    contradicted if the prior-posterior-ratio intervals of its probability, which hold at any number of draws, have no
    point in common with each other and with the model's set; a floor, if an interval lies below it. If nothing is wrong,
    anything is found with probability at most `LEVEL`; finding nothing proves nothing.
    """

    def __init__(self, team: Audited) -> None:
        self.team = team
        self.start_bounds: list[NDArray[np.float64]] = []
        """(A,) bound of each episode as it started."""
        self._steps: list[_Step] = []
        self._beyond: dict[Key, int] = {}
        self._ended = np.zeros(len(team.agents), bool)
        self._number = 0
        self._bit = 1 << np.arange(len(team.agents))

    def start(self, bounds: NDArray[np.float64]) -> None:
        """An episode starts with these bounds (A,)."""
        self.start_bounds.append(bounds.copy())
        self._ended[:] = False
        self._number = 0

    def add(
        self,
        decision: Decision,
        next_key: Key,
        violated: NDArray[np.bool_],
        terminated: NDArray[np.bool_],
    ) -> None:
        """Take in a step: what was decided, the key that it led to, and which agents (A,) violated and ended."""
        team, active = self.team, decision.active[0]
        self._ended |= terminated
        self._number += 1
        next_id = team.world.key_id(next_key)
        if next_id < 0:
            next_id = len(team.world.keys) + self._beyond.setdefault(next_key, len(self._beyond))
        choices = np.where(active, decision.executed[0], team.actions)
        self._steps.append(
            _Step(
                len(self.start_bounds),
                self._number,
                int(decision.key_ids[0]),
                int(joint_index(team.actions, choices)),
                next_id,
                int(violated @ self._bit),
                int((self._ended & ~violated) @ self._bit),
                tuple(decision.proposed[0].tolist()),
                tuple(active.tolist()),
            )
        )

    def contradictions(self, level: float = LEVEL) -> list[str]:
        """Why the shield's bound does not apply to what was seen, in words; nothing if nothing speaks against it."""
        if not self._steps:
            return []
        columns = [np.array(column) for column in zip(*self._steps, strict=True)]
        episode, step, key, joint, next_key, violated, ended, proposed, active = columns
        outcome = np.stack([next_key, violated, ended], 1)
        before = np.where(step > 1, np.roll(key * np.prod(np.array(self.team.actions) + 1) + joint, 1), -1)
        contexts = [np.zeros(len(step), np.int64), before, step, np.frexp(episode)[1].astype(np.int64)]
        return [
            *self._transitions(key, joint, outcome, contexts, level / 2),
            *self._proposals(key, proposed, active, contexts, level / 2),
        ]

    def _transitions(
        self, key: Ints, joint: Ints, outcome: Ints, contexts: Sequence[Ints], level: float
    ) -> Iterator[str]:
        team, table = self.team, self.team.table
        row = _find_rows(table, key, joint)
        # Without a row all risk is 1 already: nothing that happens there can be worse.
        seen = np.flatnonzero(row >= 0)
        rows, thing = np.unique(row[seen], return_inverse=True)
        slots, lo, hi = _slots(table, rows, thing, outcome[seen])
        for place, slot in np.argwhere(
            _torn(thing, slots, [c[seen] for c in contexts], lo, hi, level)
        ).tolist():
            at = rows[place]
            count = int(((thing == place) & (slots == slot)).sum())
            choices = tuple(joint_choices(team.actions, table.row_joint[at]).tolist())
            what = (
                "an outcome unknown there" if slot == 0 else f"key {self._key(int(table.succ[at, slot - 1]))}"
            )
            yield (
                f"transitions contradict the world model: {choices} at key {self._key(int(table.row_key[at]))} led to {what} "
                f"{count} times in {int((thing == place).sum())}; the key is not Markov, or the env has changed"
            )

    def _proposals(
        self, key: Ints, proposed: Ints, active: Ints, contexts: Sequence[Ints], level: float
    ) -> Iterator[str]:
        team = self.team
        for agent, floor in enumerate(team.floors or ()):
            relied = np.append(floor.any(1), False)  # the last stands for keys beyond the table
            place = np.where((key >= 0) & (key < len(floor)), key, len(floor))
            seen = np.flatnonzero(active[:, agent] & relied[place])
            keys, thing = np.unique(key[seen], return_inverse=True)
            share = level / len(team.agents)
            slots, hi = proposed[seen, agent], np.ones((len(keys), floor.shape[1]))
            parts = [c[seen] for c in contexts]
            for at, action in np.argwhere(
                _torn(thing, slots, parts, floor[keys], hi, share, one_law=False)
            ).tolist():
                draws = thing == at
                yield (
                    f"agent {team.agents[agent]!r} proposed {action} at key {self._key(int(keys[at]))} "
                    f"{int((draws & (slots == action)).sum())} times in {int(draws.sum())}, where the others' bounds count on "
                    f"{floor[keys[at], action]:.3f} of them: its policy has changed since the floors were counted"
                )

    def _key(self, key_id: int) -> str:
        return self.team.world.keys[key_id].hex()


def _find_rows(table: TransitionTable, key: Ints, joint: Ints) -> Ints:
    """Rows (N,) of keys and joint actions, -1 where there is none."""
    width = int(np.prod(np.array(table.actions, np.int64) + 1))
    codes = table.row_key.astype(np.int64) * width + table.row_joint
    order = np.argsort(codes)
    wanted = key.astype(np.int64) * width + joint
    place = (
        order[np.minimum(np.searchsorted(codes, wanted, sorter=order), len(codes) - 1)] if len(codes) else key
    )
    found = (codes[place] == wanted) if len(codes) else np.zeros(len(key), bool)
    return np.where(found & (key >= 0), place, -1)


def _slots(
    table: TransitionTable, rows: Ints, thing: Ints, outcome: Ints
) -> tuple[Ints, NDArray[np.float64], NDArray[np.float64]]:
    """Which outcome (N,) of its row each draw had, 0 for one that was never seen, and the sets (R, S + 1) of all."""
    bit = 1 << np.arange(len(table.actions))
    same = table.succ[rows][thing] == outcome[:, :1]
    for flags, column in ((table.violated, 1), (table.ended, 2)):
        same &= (flags[rows] @ bit)[thing] == outcome[:, column : column + 1]
    lo = np.concatenate([np.zeros((len(rows), 1)), table.lo[rows]], 1)
    hi = np.concatenate([table.unseen[rows, None], table.hi[rows]], 1)
    return np.where(same.any(1), same.argmax(1) + 1, 0), lo, hi


def _torn(
    thing: Ints,
    outcome: Ints,
    contexts: Sequence[Ints],
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
    level: float,
    *,
    one_law: bool = True,
) -> NDArray[np.bool_]:
    """Which outcomes (G, S) of G things have no probability in [lo, hi] that all contexts allow.

    Without ``one_law`` each context may have a probability of its own in there.
    """
    torn = np.zeros(lo.shape, bool)
    least, most = lo.copy(), hi.copy()
    for context in contexts:
        pairs = np.stack([thing, context], 1)
        _, first, group = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        count = np.zeros((len(first), lo.shape[1]), np.int64)
        np.add.at(count, (group.ravel(), outcome), 1)
        # Groups share the level by order of appearance, which is settled before their first draw.
        rank = np.argsort(np.argsort(first)) + 1
        share = rank_level(level / len(contexts) / lo.shape[1], rank)[:, None]
        low, high = ppr_interval(count, count.sum(1, keepdims=True), share)
        owner = thing[first]
        np.logical_or.at(torn, owner, (low > hi[owner]) | (high < lo[owner]))
        np.maximum.at(least, owner, low)
        np.minimum.at(most, owner, high)
    return torn | (least > most) if one_law else torn
