"""Storage of the risk tables of a team: agents side by side, so that one gather serves all of them in all copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.safety.rows import Side

NEVER = np.iinfo(np.uint16).max
"""Price that no slack pays."""


def by_cell(table: NDArray) -> NDArray:
    """A table (A, T+1, C, n) as (A * (T+1) * C, n), in the same memory."""
    return table.reshape(-1, table.shape[-1])


class TableStore:
    """Arrays of A agents for k = 0..T steps left; a key's row is its id + 1, row 0 is any key not known yet.

    ``values[side]`` are (A, T+1, C); ``price``, ``lower`` (None where it is not kept) and ``mean`` are (A, T+1, C, n), where n
    is the most actions of any agent: those that an agent does not have are never affordable. C leaves room for keys to come.
    A store for parts of a sum keeps ``q`` (A, T+1, C, n) in place of prices, which only the sum has; ``width`` is its n.
    """

    def __init__(
        self,
        actions: Sequence[int],
        horizon: int,
        *,
        with_lower: bool,
        with_q: bool = False,
        width: int | None = None,
    ) -> None:
        self.actions, self.horizon, self.num_keys = tuple(actions), horizon, 0
        sides: tuple[Side, ...] = ("upper", "lower", "mean") if with_lower else ("upper", "mean")
        shape = (len(self.actions), horizon + 1, 0)
        wide = (*shape, width or max(self.actions))
        self.values = {side: np.empty(shape) for side in sides}
        self.price = np.empty(wide, np.uint16)
        self.q = np.empty(wide) if with_q else None
        self.lower = np.empty(wide, np.float32) if with_lower else None
        self.mean = np.empty(wide, np.float32)
        self.reserve(0)

    @property
    def value(self) -> NDArray[np.float64]:
        """V, the pessimistic side's."""
        return self.values["upper"]

    def rows(self, key_ids: NDArray[np.integer]) -> NDArray[np.intp]:
        """Rows of key ids; that of the unknown key for -1 and for ids that came after the last update."""
        rows = np.asarray(key_ids, np.intp) + 1
        return np.where(rows <= self.num_keys, rows, 0)

    def cells(self, who: Any, k: Any, key_ids: NDArray[np.integer]) -> NDArray[np.intp]:
        """Where agents, steps left and key ids, broadcast together, are in the flat ``value`` and in `by_cell` tables.

        One index for all: with three, NumPy's look-ups take several times as long.
        """
        _, steps, rows = self.value.shape
        return (who * steps + k) * rows + self.rows(key_ids)

    @classmethod
    def of_states(
        cls,
        actions: Sequence[int],
        value: NDArray[np.float64],
        price: NDArray[np.uint16],
        lower: NDArray[np.float32] | None,
        mean: NDArray[np.float32],
    ) -> TableStore:
        """One that tells of N states only: V (N,), the others (N, n); cell i is state i's."""
        store = cls(actions, 0, with_lower=False)
        store.values = {"upper": value}
        store.price, store.lower, store.mean = price, lower, mean
        return store

    def read(self, who: Any, k: Any, key_ids: NDArray[np.integer]) -> tuple[TableStore, NDArray[np.intp]]:
        """Tables that tell of these states, and the states' `cells` in them."""
        return self, self.cells(who, k, key_ids)

    def reserve(self, num_keys: int) -> None:
        """Make room for keys; what is not computed yet reads as unknown: risk 1, optimistic risk 0, no price."""
        rows = self.value.shape[2]
        if num_keys < rows:
            return
        more = max(num_keys + 1 - rows, rows // 2)
        for side, values in self.values.items():
            self.values[side] = self._extend(values, more, float(side != "lower"))
        if self.q is None:
            self.price = self._extend(self.price, more, 0, NEVER)
        else:
            self.q = self._extend(self.q, more, 1, np.inf)
        self.mean = self._extend(self.mean, more, 1, np.inf)
        if self.lower is not None:
            self.lower = self._extend(self.lower, more, 0, np.inf)

    def _extend(self, array: NDArray, more: int, fill: float, absent: float = 0.0) -> NDArray:
        """The array with ``more`` rows of ``fill``; 0 at k = 0, where nothing can happen any more."""
        new = np.full((*array.shape[:2], more, *array.shape[3:]), fill, array.dtype)
        new[:, 0] = 0
        if array.ndim == 4:
            for agent, count in enumerate(self.actions):
                new[agent, ..., count:] = absent
        return np.concatenate([array, new], axis=2)
