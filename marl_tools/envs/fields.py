"""States as rows of whole numbers: their exact keys, and what an env that is written on them tells of its law."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import Key
from marl_tools.envs.grid import Bools, Ints

Floats = NDArray[np.float64]


class Laws(NamedTuple):
    """M outcomes of many (state, joint action) at once, those of a row side by side and merged."""

    row: Ints  # (M,) which of the states given
    probability: Floats  # (M,) sums to 1 over a row
    state: Ints  # (M, F)
    violated: Bools  # (M, A)
    ended: Bools  # (M, A)


class FieldGame(ABC):
    """A game whose state is a row of F whole numbers, field f below ``sizes[f]``, and whose law can be told.

    Attributes:
        name, agents, actions: of the environment, its A agents, and the number of actions of each.
    """

    name: str
    agents: tuple[str, ...]
    actions: tuple[int, ...]
    sizes: tuple[int, ...]

    @abstractmethod
    def start_law(self) -> tuple[Floats, Ints]:
        """Probabilities (S,) and states (S, F) of all possible starts."""

    @abstractmethod
    def laws(self, state: Ints, actions: Ints) -> Laws:
        """All outcomes of N (state, joint action): states (N, F), actions (N, A), those of ended agents ignored."""

    @abstractmethod
    def ended(self, state: Ints) -> Bools:
        """Which agents (N, A) play nothing any more in states (N, F)."""

    @property
    @abstractmethod
    def obs_size(self) -> int:
        """How many numbers from 0 to 1 an agent sees."""

    @abstractmethod
    def observe(self, state: Ints) -> NDArray[np.float32]:
        """Observations (N, A, obs_size)."""

    def masks(self, state: Ints) -> Bools | None:
        """What the agents may do, (N, A, n); None where they may do anything."""
        return None

    def ids(self, state: Ints) -> Ints:
        """One number (N,) a state, exact: the fields in mixed radix."""
        return state @ self._places

    def state_of_ids(self, ids: Ints) -> Ints:
        """Inverse of `ids`."""
        return ids[:, None] // self._places % np.array(self.sizes)

    @cached_property
    def _places(self) -> Ints:
        sizes = np.array(self.sizes, np.int64)
        return np.concatenate([np.cumprod(sizes[::-1])[::-1][1:], [1]]).astype(np.int64)

    def keys(self, state: Ints) -> list[Key]:
        """The exact bytes of each state: two a field, little-endian."""
        rows = np.ascontiguousarray(state, dtype="<u2")
        return rows.view(np.dtype((np.void, 2 * state.shape[1]))).ravel().tolist()

    def states(self, keys: Sequence[Key]) -> Ints:
        """Inverse of `keys`.

        Raises:
            ConfigError: a key is not one of this game.
        """
        fields = len(self.sizes)
        for key in keys:
            if len(key) != 2 * fields:
                raise ConfigError(
                    f"{key!r} is no key of {self.name}, whose keys have {2 * fields} bytes; use state_key()"
                )
        state = np.frombuffer(b"".join(keys), "<u2").reshape(-1, fields).astype(np.int64)
        if (state >= np.array(self.sizes)).any():
            wrong = keys[int(np.flatnonzero((state >= np.array(self.sizes)).any(axis=1))[0])]
            raise ConfigError(f"{wrong!r} is no key of {self.name}: a field is too large; use state_key()")
        return state

    def merged(self, row: Ints, probability: Floats, state: Ints, violated: Bools) -> Laws:
        """The outcomes (M,) of N rows with equal ones made one, in the order of the rows.

        Raises:
            ConfigError: more states than whole numbers of 64 bits can tell apart.
        """
        agents, ended = len(self.agents), self.ended(state)
        bits = np.concatenate([violated, ended], axis=1) @ (1 << np.arange(2 * agents))
        span = int(np.prod(self.sizes, dtype=object)) << 2 * agents
        if (int(row.max(initial=0)) + 1) * span >= 1 << 63:
            raise ConfigError(f"{self.name} has too many states to enumerate its law: shrink its map or team")
        code = row * span + (self.ids(state) << 2 * agents) + bits
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return Laws(
            row[first],
            np.asarray(np.bincount(inverse.ravel(), probability), np.float64),
            state[first],
            violated[first],
            ended[first],
        )
