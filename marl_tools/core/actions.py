"""Actions seen from the policy's side: arrays in which choices count from 0 and [-1, 1] spans the bounds of a Box."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError

ActionType = Literal["discrete", "continuous", "multi_discrete", "multi_binary", "composite"]


class ActionCodec(Protocol):
    """One action space from both sides. ``inputs`` is the length of a one-hot vector, ``shape`` that of one action."""

    kind: ActionType
    inputs: int
    shape: tuple[int, ...]
    discrete: bool

    def to_env(self, actions: NDArray[Any]) -> list[Any]:
        """Actions for the env from a batch (n, `shape`) of the policy."""
        ...

    def to_policy(self, action: Any) -> NDArray[Any]:
        """Inverse of `to_env` for one action."""
        ...

    def to_vector(self, action: NDArray[Any]) -> NDArray[np.float32]:
        """One action of the policy as a flat vector (`inputs`,): one-hot, bits or the numbers themselves."""
        ...

    def from_vector(self, vector: NDArray[Any]) -> NDArray[Any]:
        """Inverse of `to_vector`; of scores that are not one-hot the greatest counts."""
        ...


class DiscreteCodec:
    """One choice: an index () counted from 0."""

    kind: ActionType = "discrete"
    shape: tuple[int, ...] = ()
    discrete = True

    def __init__(self, space: gym_spaces.Discrete[Any]) -> None:
        self.inputs, self._start = int(space.n), int(space.start)
        self.sizes = (self.inputs,)

    def to_env(self, actions: NDArray[Any]) -> list[Any]:
        return (actions + self._start).tolist()

    def to_policy(self, action: Any) -> NDArray[Any]:
        return np.asarray(int(action) - self._start, np.int64)

    def to_vector(self, action: NDArray[Any]) -> NDArray[np.float32]:
        return np.eye(self.inputs, dtype=np.float32)[action]

    def from_vector(self, vector: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.argmax(vector), np.int64)


class MultiDiscreteCodec:
    """Several choices: indices (n,), each counted from 0."""

    kind: ActionType = "multi_discrete"
    discrete = True

    def __init__(self, space: gym_spaces.MultiDiscrete) -> None:
        self.space = space
        self._sizes, self._start = space.nvec.reshape(-1), space.start.reshape(-1)
        self.sizes = tuple(self._sizes.tolist())
        self._ends = np.cumsum(self._sizes)
        self.inputs, self.shape = int(self._ends[-1]), self._sizes.shape

    def to_env(self, actions: NDArray[Any]) -> list[Any]:
        return _rows(actions + self._start, self.space)

    def to_policy(self, action: Any) -> NDArray[Any]:
        return (np.asarray(action, np.int64).reshape(-1) - self._start).astype(np.int64)

    def to_vector(self, action: NDArray[Any]) -> NDArray[np.float32]:
        vector = np.zeros(self.inputs, np.float32)
        vector[self._ends - self._sizes + action] = 1.0
        return vector

    def from_vector(self, vector: NDArray[Any]) -> NDArray[Any]:
        return np.array([np.argmax(part) for part in np.split(vector, self._ends[:-1])], np.int64)


class MultiBinaryCodec:
    """Bits: zeros and ones (n,)."""

    kind: ActionType = "multi_binary"
    discrete = True

    def __init__(self, space: gym_spaces.MultiBinary) -> None:
        self.space, self.inputs = space, int(np.prod(space.shape))
        self.shape = (self.inputs,)

    def to_env(self, actions: NDArray[Any]) -> list[Any]:
        return _rows(actions, self.space)

    def to_policy(self, action: Any) -> NDArray[Any]:
        return np.asarray(action).reshape(-1).astype(np.int64)

    def to_vector(self, action: NDArray[Any]) -> NDArray[np.float32]:
        return action.astype(np.float32)

    def from_vector(self, vector: NDArray[Any]) -> NDArray[Any]:
        return (vector >= 0.5).astype(np.int64)


class BoxCodec:
    """Numbers (n,): [-1, 1] spans the two bounds of a dimension, and one that lacks a bound passes through."""

    kind: ActionType = "continuous"
    discrete = False

    def __init__(self, space: gym_spaces.Box) -> None:
        self.space, self.inputs = space, int(np.prod(space.shape))
        self.shape = (self.inputs,)
        self._whole = space.dtype.kind != "f"
        low, high = (_inside(bound.reshape(-1)) for bound in (space.low, space.high))
        # Asked of the space, since the infinite bounds of an integer Box are the ends of its dtype.
        self.bounded = (space.bounded_below & space.bounded_above).reshape(-1)
        self._closed = bool(self.bounded.all())
        self.low, self.high = low, high
        low, high = np.where(self.bounded, low, 0.0), np.where(self.bounded, high, 0.0)
        self._centre, self._half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low

    @cached_property
    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Least and greatest action of the policy, (n,): -1 and 1, or the env's own bound where only one is there."""
        return np.where(self.bounded, -1.0, self.low), np.where(self.bounded, 1.0, self.high)

    def to_env(self, actions: NDArray[Any]) -> list[Any]:
        return _rows(self.played(actions), self.space)

    def played(self, actions: NDArray[Any]) -> NDArray[Any]:
        """`to_env` in one array (..., n): clipped to the bounds, and rounded for an integer Box."""
        # Not np.clip, which takes several times as long on a few numbers.
        played = self._centre + np.minimum(np.maximum(actions, -1.0), 1.0) * self._half
        if not self._closed:
            played = np.where(self.bounded, played, actions)
        # Rounding may have led beyond a bound.
        played = np.minimum(np.maximum(played, self.low), self.high)
        return (np.rint(played) if self._whole else played).astype(self.space.dtype)

    def to_policy(self, action: Any) -> NDArray[Any]:
        """In float64: a float32 would not lead back to the very same action."""
        action = np.asarray(action, np.float64).reshape(-1)
        scaled = (action - self._centre) / np.where(self._half > 0, self._half, 1.0)
        return np.where(self.bounded, scaled, action)

    def to_vector(self, action: NDArray[Any]) -> NDArray[np.float32]:
        return action.astype(np.float32)

    def from_vector(self, vector: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(vector, np.float64)


class CompositeCodec:
    """A Dict or Tuple of action spaces, nested or not: the numbers of all its parts (n,), side by side in their order."""

    kind: ActionType = "composite"

    def __init__(self, space: gym_spaces.Dict | gym_spaces.Tuple) -> None:
        self._named = isinstance(space, gym_spaces.Dict)
        parts: dict[Any, gymnasium.Space] = dict(
            space.spaces.items() if isinstance(space, gym_spaces.Dict) else enumerate(space.spaces)
        )
        self._keys = tuple(parts)
        self.parts = tuple(map(action_codec, parts.values()))
        if not self.parts:
            raise ConfigError(f"action space {space} has no part: there is nothing to choose")
        self.inputs = sum(part.inputs for part in self.parts)
        self._sizes = [int(np.prod(part.shape)) for part in self.parts]
        self.shape = (sum(self._sizes),)
        self.discrete = all(part.discrete for part in self.parts)

    def split(self, actions: NDArray[Any]) -> list[NDArray[Any]]:
        """The parts' own actions (..., `shape` of the part) of a batch (..., n)."""
        slices = _cut(actions, self._sizes)
        return [
            (part.astype(np.int64) if codec.discrete else part).reshape((*actions.shape[:-1], *codec.shape))
            for codec, part in zip(self.parts, slices, strict=True)
        ]

    def to_env(self, actions: NDArray[Any]) -> list[Any]:
        columns = [codec.to_env(part) for codec, part in zip(self.parts, self.split(actions), strict=True)]
        rows = zip(*columns, strict=True)
        return [dict(zip(self._keys, row, strict=True)) if self._named else row for row in rows]

    def to_policy(self, action: Any) -> NDArray[Any]:
        return self._join(
            codec.to_policy(action[key]) for key, codec in zip(self._keys, self.parts, strict=True)
        )

    def to_vector(self, action: NDArray[Any]) -> NDArray[np.float32]:
        return self._join(
            codec.to_vector(part) for codec, part in zip(self.parts, self.split(action), strict=True)
        )

    def from_vector(self, vector: NDArray[Any]) -> NDArray[Any]:
        slices = _cut(vector, [part.inputs for part in self.parts])
        return self._join(codec.from_vector(part) for codec, part in zip(self.parts, slices, strict=True))

    def _join(self, parts: Iterator[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([part.reshape(-1) for part in parts])


def action_codec(space: gymnasium.Space) -> ActionCodec:
    """The codec of an action space.

    Raises:
        ConfigError: a space that no policy can play (Text, Graph, Sequence, OneOf).
    """
    match space:
        case gym_spaces.Discrete():
            return DiscreteCodec(space)
        case gym_spaces.MultiDiscrete():
            return MultiDiscreteCodec(space)
        case gym_spaces.MultiBinary():
            return MultiBinaryCodec(space)
        case gym_spaces.Box():
            return BoxCodec(space)
        case gym_spaces.Dict() | gym_spaces.Tuple():
            return CompositeCodec(space)
    raise ConfigError(
        f"action space {space} cannot be played: a policy needs Discrete, Box, MultiDiscrete, MultiBinary, or a Dict or "
        "Tuple of them. Turn it into one of these in a wrapper of your own."
    )


def _rows(actions: NDArray[Any], space: Any) -> list[NDArray[Any]]:
    """A batch (n, size) as n arrays of the space's own shape and type."""
    batch = actions.astype(space.dtype, copy=False).reshape(-1, *space.shape)
    # The ellipsis keeps an action of shape () an array.
    return [batch[row, ...] for row in range(len(batch))]


def _cut(array: NDArray[Any], sizes: list[int]) -> list[NDArray[Any]]:
    """Consecutive pieces of these sizes along the last axis."""
    bounds = np.cumsum([0, *sizes])
    return [array[..., start:end] for start, end in pairwise(bounds)]


def _inside(bound: NDArray[Any]) -> NDArray[np.float64]:
    """Bounds as floats, never beyond the integers that they stand for: 2**63 - 1 would be rounded up, and overflow."""
    floats = bound.astype(np.float64)
    if bound.dtype.kind not in "iu":
        return floats
    beyond = np.array([abs(int(f)) > abs(int(b)) for f, b in zip(floats, bound, strict=True)], bool)
    return np.where(beyond, np.nextafter(floats, 0.0), floats)
