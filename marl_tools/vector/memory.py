"""`SharedArrays`: the arrays of a vector env in memory that worker processes see as well."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.spaces import AgentGroup
from marl_tools.vector.buffers import Arrays, array_shapes

_CACHE_LINE = 64


class SharedArrays:
    """The arrays of every group in one block, filled with zeros; masks allow everything.

    The block has no name in the file system: it is handed to a process as that is started, at any time, and goes with the
    last process that holds it, however that ends.

    Args:
        groups: the groups of the vector env.
        num_envs: copies in all processes together.
        context: what the processes are started with.
    """

    def __init__(self, groups: Sequence[AgentGroup], num_envs: int, context: BaseContext) -> None:
        self._groups, self._num_envs = tuple(groups), num_envs
        size = max((end for *_, end in self._places()), default=0)
        self._block: Any = context.RawArray(ctypes.c_byte, size)
        self._arrays = self._carve()
        for arrays in self._arrays.values():
            if "action_mask" in arrays:
                arrays["action_mask"].fill(True)

    def of(self, group: str, copies: slice) -> Arrays:
        """The rows of some copies in the arrays of a group."""
        return {name: array[copies] for name, array in self._arrays[group].items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_arrays"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._arrays = self._carve()

    def _carve(self) -> dict[str, dict[str, NDArray[Any]]]:
        arrays: dict[str, dict[str, NDArray[Any]]] = {group.name: {} for group in self._groups}
        for group, name, shape, dtype, start, _ in self._places():
            flat = np.frombuffer(self._block, dtype, count=math.prod(shape), offset=start)
            arrays[group][name] = flat.reshape(shape)
        return arrays

    def _places(self) -> Iterator[tuple[str, str, tuple[int, ...], np.dtype, int, int]]:
        """Group, name, shape and type of each array, and where in the block it starts and ends."""
        start = 0
        for group in self._groups:
            for name, (shape, dtype) in array_shapes(group, self._num_envs).items():
                end = start + math.prod(shape) * dtype.itemsize
                yield group.name, name, shape, dtype, start, end
                start = -(-end // _CACHE_LINE) * _CACHE_LINE
