"""`ActionTape`: what was played in the episodes that are still running, so that they can be played again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 100_000
"""Steps that are kept; an episode that is longer cannot be played again, and memory stays bounded."""


class ActionTape:
    """The actions of E copies, group by group, from the start of the oldest running episode on.

    Call `start` for each copy whose episode begins and `add` after each step of all.
    """

    def __init__(self, num_envs: int) -> None:
        self._steps: deque[dict[str, NDArray[Any]]] = deque(maxlen=LONGEST)
        self._count = 0
        self._starts = [0] * num_envs

    def start(self, copy: int) -> None:
        """The next step is the first of an episode of this copy."""
        self._starts[copy] = self._count

    def add(self, actions: Mapping[str, NDArray[Any]]) -> None:
        """Keep one step's actions, (E, A, ...) per group."""
        for _ in range(min(self._starts) - (self._count - len(self._steps))):
            self._steps.popleft()
        # Copies: actions come in arrays that are filled anew at every step.
        self._steps.append({name: np.array(array) for name, array in actions.items()})
        self._count += 1

    def clear(self) -> None:
        """Forget everything; all copies start anew."""
        self._steps.clear()
        self._count = 0
        self._starts = [0] * len(self._starts)

    def episodes(self) -> list[dict[str, NDArray[Any]] | None]:
        """The actions (L, A, ...) per group of each copy's running episode; None where it began before the tape does."""
        first = self._count - len(self._steps)
        whole = {name: np.stack([step[name] for step in self._steps]) for name in self._names()}
        return [
            None
            if start < first
            else {name: array[start - first :, copy].copy() for name, array in whole.items()}
            for copy, start in enumerate(self._starts)
        ]

    def refill(self, episodes: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Go on from `episodes`; an empty mapping is an episode without a step."""
        self.clear()
        lengths = [len(next(iter(played.values()), ())) for played in episodes]
        self._count = max(lengths, default=0)
        self._starts = [self._count - length for length in lengths]
        for step in range(self._count):
            row: dict[str, NDArray[Any]] = {}
            for name in {name for played in episodes for name in played}:
                shape = next(played[name].shape[1:] for played in episodes if name in played)
                kind = next(played[name].dtype for played in episodes if name in played)
                row[name] = np.zeros((len(episodes), *shape), kind)
            for copy, (played, start) in enumerate(zip(episodes, self._starts, strict=True)):
                if step >= start:
                    for name, array in played.items():
                        row[name][copy] = array[step - start]
            self._steps.append(row)

    def _names(self) -> list[str]:
        return list(self._steps[0]) if self._steps else []
