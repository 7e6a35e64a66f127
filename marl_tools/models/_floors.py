"""Counts and floors of one opponent: rows over key ids, in arrays that grow as keys turn up."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.bounds import ppr_lower, rank_level
from marl_tools.core.counting import occurrence
from marl_tools.models._rows import Ints

Floats = NDArray[np.float64]

FLOOR_ARRAYS = ("counts", "total", "floor", "rank", "stream", "read", "broken")


def first(array: NDArray[Any], size: int, fill: float = 0) -> NDArray[Any]:
    """A copy of the first ``size`` lines of ``array``, lines beyond it being ``fill``."""
    full = np.full((size, *array.shape[1:]), fill, array.dtype)
    full[: len(array)] = array[:size]
    return full


class Floors:
    """Per key: ``counts`` (K, n) in this stream, ``total`` (K, n) in all, ``floor`` (K, n), ``rank`` of discovery (0: never
    seen), ``stream`` (the share that this one has, from 1), ``read`` (somebody relied on this stream's floor),
    ``broken`` (it contradicted itself).

    A stream that ends before anybody read its floors leaves its share to the next: of the streams with one share at most
    one is relied on, and the shares of those sum to the level. Whether a stream is read must not hang on what it saw.
    """

    def __init__(self, actions: int, level: float) -> None:
        self._level = level  # of one action at all keys and streams together
        self.counts: Ints = np.zeros((0, actions), np.int64)
        self.total: Ints = np.zeros((0, actions), np.int64)
        self.floor: Floats = np.zeros((0, actions))
        self.rank: Ints = np.zeros(0, np.int64)
        self.stream: Ints = np.ones(0, np.int64)
        self.read: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.broken: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._pending: list[tuple[Ints, Ints]] = []

    def add(self, key: Ints, action: Ints) -> None:
        """Take draws (N,), in order; what follows from them is worked out at the next `count`."""
        self._pending.append((key, action))

    def count(self) -> None:
        """Count the draws taken. A floor can only rise at a draw of its own action, so those are all that matter."""
        if not self._pending:
            return
        key, action = self._drain()
        hits = self.counts[key, action] + occurrence(key * self.counts.shape[1] + action) + 1
        draws = self.counts[key].sum(1) + occurrence(key) + 1
        np.maximum.at(self.floor, (key, action), ppr_lower(hits, draws, self._levels(key)))
        np.add.at(self.counts, (key, action), 1)
        self._break_contradictions()

    def rely(self, num_keys: int) -> Floats:
        """The floors (K, n) of the first K keys, for somebody's bound to rest on."""
        self.count()
        self.read[:num_keys] |= self.counts[:num_keys].any(1)
        return first(self.floor, num_keys)

    def absorb(self, other: Floors, ids: NDArray[np.integer]) -> None:
        """Append the other's stream to ours; its key i is our key ``ids[i]``. The order of its draws is not known."""
        self.count()
        other.count()
        seen = np.argsort(other.rank, kind="stable")[np.count_nonzero(other.rank == 0) :]
        key = np.asarray(ids, np.int64)[seen]
        self._discover(key)
        self.counts[key] += other.counts[seen]
        self.total[key] += other.total[seen]
        self.broken[key] |= other.broken[seen]
        counts = self.counts[key]
        lower = ppr_lower(counts, counts.sum(1, keepdims=True), self._levels(key)[:, None])
        self.floor[key] = np.maximum(self.floor[key], lower)
        self._break_contradictions()

    def new_stream(self, drift: Floats) -> None:
        """Start afresh: floors fall by ``drift``, of all keys () or each (K,), and to 0 where it is NaN or missing."""
        if np.isnan(drift).all():
            # Their floors end here: not worth working out.
            self._drain()
        else:
            self.count()
        drift = np.full(len(self.floor), drift) if drift.ndim == 0 else first(drift, len(self.floor), np.nan)
        carried = np.maximum(self.floor - drift[:, None], 0)
        self.floor = np.where(np.isnan(carried), 0, carried)
        self.stream = self.stream + (self.read | (self.counts.any(1) & ~np.isnan(drift)))
        self.counts = np.zeros_like(self.counts)
        self.read = np.zeros_like(self.read)
        self.broken = np.zeros_like(self.broken)

    def _drain(self) -> tuple[Ints, Ints]:
        """All draws (N,) that wait, counted in ``total`` alone."""
        empty = np.zeros(0, np.int64)
        key, action = (np.concatenate(part) for part in zip((empty, empty), *self._pending, strict=True))
        self._pending.clear()
        self._discover(key)
        np.add.at(self.total.reshape(-1), key * self.total.shape[1] + action, 1)
        return key, action

    def _levels(self, key: Ints) -> Floats:
        return rank_level(rank_level(self._level, self.rank[key]), self.stream[key])

    def _discover(self, key: Ints) -> None:
        size = int(key.max(initial=-1)) + 1
        if size > len(self.rank):
            size = max(64, 1 << (size - 1).bit_length())
            for name in FLOOR_ARRAYS:
                setattr(self, name, first(getattr(self, name), size, fill=name == "stream"))
        new, at = np.unique(key[self.rank[key] == 0], return_index=True)
        self.rank[new[np.argsort(at)]] = np.arange(len(new)) + np.count_nonzero(self.rank) + 1

    def _break_contradictions(self) -> None:
        # Floors that sum to more than 1 cannot all be right: trust none of them until the next stream.
        self.broken |= self.floor.sum(1) > 1
        self.floor[self.broken] = 0
