"""Counting in arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def occurrence(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many equal entries stand before each entry of ``values``, (N,)."""
    order = np.argsort(values, kind="stable")
    inside, place = values[order], np.arange(len(values))
    first = np.ones(len(values), np.bool_)
    first[1:] = inside[1:] != inside[:-1]
    before = np.empty(len(values), np.int64)
    before[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return before
