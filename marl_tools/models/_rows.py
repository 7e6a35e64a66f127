"""Counts of the outcomes of each row (key, joint action), with a snapshot of every row at its last look."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.bounds import epoch_start
from marl_tools.core.counting import occurrence

Ints = NDArray[np.int64]


class Outcomes(NamedTuple):
    """N outcomes, (N,) each: the next key, and which agents violated and ended, one bit an agent."""

    succ: Ints
    violated: Ints
    ended: Ints

    def take(self, index: NDArray[np.integer]) -> Outcomes:
        """The outcomes at ``index``."""
        return Outcomes(*(column[index] for column in self))


ROW_ARRAYS = {
    "key": np.int32,
    "joint": np.int64,
    "draws": np.int64,
    "look": np.int64,
    "known": np.int32,
    "declared": np.bool_,
}
SLOT_ARRAYS = {
    "succ": np.int32,
    "violated": np.int64,
    "ended": np.int64,
    "count": np.int64,
    "look_count": np.int64,
    "found": np.int64,
}


def _blank(name: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    return np.full(shape, -1 if name == "succ" else 0, ROW_ARRAYS.get(name) or SLOT_ARRAYS[name])


class RowCounts:
    """Arrays over rows in order of discovery; they have spare room, so only the first ``len(rows)`` lines count.

    Per row: ``key``, ``joint``, ``draws``, ``look`` (the draw of the last snapshot), ``known`` outcomes, ``declared``.
    Per row and slot, in order of discovery: ``succ`` (-1: free), ``violated``, ``ended`` (bits), ``count``, ``look_count``
    (the count at the look) and ``found`` (the row's draw that discovered the outcome, 0 if it was declared).
    """

    key: NDArray[np.int32]
    joint: Ints
    draws: Ints
    look: Ints
    known: NDArray[np.int32]
    declared: NDArray[np.bool_]
    succ: NDArray[np.int32]
    violated: Ints
    ended: Ints
    count: Ints
    look_count: Ints
    found: Ints

    def __init__(self, joints: int) -> None:
        self._joints = joints
        self._place: dict[int, int] = {}
        for name in ROW_ARRAYS:
            setattr(self, name, _blank(name, (64,)))
        for name in SLOT_ARRAYS:
            setattr(self, name, _blank(name, (64, 2)))

    def __len__(self) -> int:
        return len(self._place)

    def find(self, key: int, joint: int) -> int:
        """The row of a key and a joint action, or -1."""
        return self._place.get(key * self._joints + joint, -1)

    def append(self, key: int, joint: int) -> int:
        """Append one undeclared row without draws; returns its number."""
        row = len(self)
        self._make_room(row + 1)
        self.key[row], self.joint[row] = key, joint
        self._place[key * self._joints + joint] = row
        return row

    def extend(
        self, key: NDArray[np.integer], joint: NDArray[np.integer], declared: NDArray[np.bool_]
    ) -> Ints:
        """Append rows without draws, (M,), none of which is there yet; returns their numbers."""
        new = np.arange(len(self), len(self) + len(key))
        self._make_room(len(self) + len(key))
        self.key[new], self.joint[new], self.declared[new] = key, joint, declared
        codes = np.asarray(key, np.int64) * self._joints + joint
        self._place.update(zip(codes.tolist(), new.tolist(), strict=True))
        return new

    def _make_room(self, size: int) -> None:
        if size > len(self.key):
            room = max(size, 2 * len(self.key)) - len(self.key)
            for name in ROW_ARRAYS | SLOT_ARRAYS:
                full = getattr(self, name)
                setattr(self, name, np.concatenate([full, _blank(name, (room, *full.shape[1:]))]))

    def find_slots(self, row: Ints, outcomes: Outcomes) -> Ints:
        """Slots (N,) of outcomes within their rows, -1 where one is new."""
        width = max(1, int(self.known[row].max(initial=0)))
        same = self.succ[row, :width] == outcomes.succ[:, None]
        same &= self.violated[row, :width] == outcomes.violated[:, None]
        same &= self.ended[row, :width] == outcomes.ended[:, None]
        return np.where(same.any(1), same.argmax(1), -1)

    def extend_outcomes(self, row: Ints, outcomes: Outcomes) -> Ints:
        """Append outcomes that are new to their rows, (M,), without counts; returns their slots."""
        slot = self.known[row] + occurrence(row)
        room = int(slot.max(initial=-1)) + 1 - self.succ.shape[1]
        if room > 0:
            room = max(room, self.succ.shape[1])
            for name in SLOT_ARRAYS:
                full = getattr(self, name)
                setattr(self, name, np.concatenate([full, _blank(name, (len(full), room))], axis=1))
        self.succ[row, slot], self.violated[row, slot], self.ended[row, slot] = outcomes
        np.add.at(self.known, row, 1)
        return slot

    def record(self, row: Ints, slot: Ints, nth: Ints) -> None:
        """Count draws (N,), in order; ``nth`` are their numbers within their rows, counted from 1.

        A row that reaches or passes a power of two takes its snapshot as of exactly that draw.
        """
        last = self.draws[row].copy()
        np.add.at(self.draws, row, 1)
        reached = epoch_start(self.draws[row])
        looked = reached > last
        self.look[row[looked]] = reached[looked]
        self.look_count[row[looked]] = self.count[row[looked]]
        early = nth <= self.look[row]
        np.add.at(self.look_count, (row[early], slot[early]), 1)
        np.add.at(self.count, (row, slot), 1)

    def absorb(self, other: RowCounts, row: Ints, edges: tuple[Ints, ...], slot: Ints) -> None:
        """Append the other's draws to ours: its rows are our ``row`` (R,), its outcomes at ``edges`` our ``slot`` (M,).

        Of those draws only the counts are known. A row of ours that had draws keeps its snapshot, unless its new
        number of draws is itself a power of two; one that had none takes over the other's.
        """
        size, at = len(other), (row[edges[0]], slot)
        fresh = self.draws[row] == 0
        self.count[at] += other.count[edges]
        self.draws[row] += other.draws[:size]
        self.look[row[fresh]] = other.look[:size][fresh]
        taken = fresh[edges[0]]
        self.look_count[at[0][taken], slot[taken]] = other.look_count[edges][taken]
        exact = row[~fresh & (other.draws[:size] > 0)]
        exact = exact[epoch_start(self.draws[exact]) == self.draws[exact]]
        self.look[exact] = self.draws[exact]
        self.look_count[exact] = self.count[exact]
