"""What a shield's rule reads of the risk tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marl_tools.safety.store import TableStore, by_cell


@dataclass(frozen=True, slots=True)
class Look:
    """What the tables say about N states, each an agent at a key with some steps and slack left."""

    store: TableStore
    size: int  # actions that are read
    cells: NDArray[np.intp]  # (N,) where the states are in the tables; see `TableStore.cells`
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
        return by_cell(self.store.price)[self.cells, actions].astype(np.int32)

    def __getitem__(self, index: NDArray[np.intp]) -> Look:
        return Look(
            self.store,
            self.size,
            self.cells.take(index),
            self.value.take(index),
            self.slack.take(index),
            self.within.take(index),
        )

    def _read(self, table: NDArray) -> NDArray:
        return by_cell(table).take(self.cells, 0)[:, : self.size]
