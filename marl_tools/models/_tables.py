"""The current transition table of a world model, renewed only in the rows that were looked at anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from marl_tools.core.bounds import Interval, Schedule, rank_level
from marl_tools.core.transitions import TransitionTable
from marl_tools.models._credible import CredibleSets, credible_sets
from marl_tools.models._rows import Ints, RowCounts
from marl_tools.models._topology import Topology


class Settings(NamedTuple):
    """What the credible sets hang on besides the counts."""

    delta: float
    schedule: Schedule
    interval: Interval
    newest: bool


class CurrentTable:
    """Remembers the last table and which draws stand behind each of its rows."""

    def __init__(self) -> None:
        self.table: TransitionTable | None = None
        self.settings: Settings | None = None
        self._upto: Ints = np.zeros(0, np.int64)  # (R,)
        self._sets: CredibleSets | None = None

    def stale(self, rows: RowCounts) -> Ints:
        """Rows whose sets are missing or rest on an earlier look."""
        stale = np.ones(len(rows), np.bool_)
        stale[: len(self._upto)] = self._upto != self._behind(rows)[: len(self._upto)]
        return np.flatnonzero(stale)

    def renew(self, known: Topology, settings: Settings) -> TransitionTable:
        """The table under ``settings``: the same object as before if no row was looked at anew."""
        rows = known.rows
        if settings != self.settings:
            self.__init__()
            self.settings = settings
        stale = self.stale(rows)
        if self.table is not None and not stale.size:
            return self.table
        if known.closed:
            level = np.full(
                stale.shape, settings.delta / max(1, np.count_nonzero(rows.known[: len(rows)] > 1))
            )
        else:
            level = rank_level(settings.delta, stale + 1)
        sets = credible_sets(
            rows,
            stale,
            level,
            schedule=settings.schedule,
            interval=settings.interval,
            newest=settings.newest,
            max_successors=known.max_successors,
        )
        if self._sets is not None:
            pairs = zip(self._sets, sets, strict=True)
            sets = CredibleSets(*(_renewed(old, new, stale, len(rows)) for old, new in pairs))
        self._sets, self._upto = sets, self._behind(rows).copy()
        self.table = _as_table(rows, sets, known.actions, len(known.keys))
        return self.table

    def _behind(self, rows: RowCounts) -> Ints:
        newest = self.settings is not None and self.settings.newest
        return (rows.draws if newest else rows.look)[: len(rows)]


def _renewed(old: np.ndarray, new: np.ndarray, index: Ints, size: int) -> np.ndarray:
    """A copy of ``old`` grown to ``size`` lines, those at ``index`` being ``new``; tables in use stay as they are."""
    width = tuple(max(pair) for pair in zip(old.shape[1:], new.shape[1:], strict=True))
    full = np.zeros((size, *width), old.dtype)
    full[(slice(len(old)), *map(slice, old.shape[1:]))] = old
    full[(index, *map(slice, new.shape[1:]))] = new
    return full


def _as_table(rows: RowCounts, sets: CredibleSets, actions: Sequence[int], num_keys: int) -> TransitionTable:
    size, width = sets.shown.shape
    agents = np.arange(len(actions))
    bits = (
        np.where(sets.shown, rows.violated[:size, :width], 0),
        np.where(sets.shown, rows.ended[:size, :width], 0),
    )
    violated, ended = ((number[..., None] >> agents & 1).astype(np.bool_) for number in bits)
    return TransitionTable(
        actions=tuple(actions),
        num_keys=num_keys,
        row_key=rows.key[:size].copy(),
        row_joint=rows.joint[:size].copy(),
        succ=np.where(sets.shown, rows.succ[:size, :width], -1),
        violated=violated,
        ended=ended,
        lo=sets.lo,
        hi=sets.hi,
        unseen=sets.unseen,
        mean=sets.mean,
        mean_unseen=sets.mean_unseen,
    )
