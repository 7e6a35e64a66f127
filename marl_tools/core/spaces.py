"""What a policy needs to know of an agent's spaces, and the grouping of agents whose spaces are equal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.types import AgentID

ActionType = Literal["discrete", "continuous", "multi_discrete", "multi_binary"]
_ACTION_TYPES: dict[type, ActionType] = {
    gym_spaces.Discrete: "discrete",
    gym_spaces.Box: "continuous",
    gym_spaces.MultiDiscrete: "multi_discrete",
    gym_spaces.MultiBinary: "multi_binary",
}
_ARRAY_KINDS = (*_ACTION_TYPES, gym_spaces.Dict, gym_spaces.Tuple)


@dataclass(frozen=True)
class AgentSpaces:
    """One agent's observation and action space, seen from the policy's side.

    A ``Dict`` observation with the keys ``observation`` and ``action_mask`` follows PettingZoo's convention: the
    mask is taken out and the rest is what the network sees. The policy's side of an action is an array: an
    index counted from 0 for Discrete, (n,) indices for MultiDiscrete, (n,) zeros and ones for MultiBinary, and for Box
    (n,) floats in which [-1, 1] spans the bounds; dimensions that lack a bound pass through.

    Raises:
        ConfigError: at construction, for a space that has no fixed-size array form (Text, Graph, Sequence) or an
            action space that no policy here can play (Dict, Tuple, complex Box).
    """

    observation_space: gymnasium.Space
    action_space: gymnasium.Space

    def __post_init__(self) -> None:
        _refuse_shapeless(self.observation_space, "observation")
        if not isinstance(self.action_space, tuple(_ACTION_TYPES)):
            raise ConfigError(
                f"action space {self.action_space} cannot be played: a policy needs Discrete, Box, MultiDiscrete or "
                "MultiBinary. Flatten it in a wrapper of your own."
            )

    @property
    def masked(self) -> bool:
        """Whether the observation itself carries an action mask."""
        space = self.observation_space
        return isinstance(space, gym_spaces.Dict) and {"observation", "action_mask"} == set(space.spaces)

    @cached_property
    def network_space(self) -> gymnasium.Space:
        """The observation space without the action mask."""
        space = self.observation_space
        return space["observation"] if self.masked and isinstance(space, gym_spaces.Dict) else space

    @cached_property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of `encode`'s result: a Box keeps its shape, all else is flattened (Discrete one-hot, a number (1,))."""
        space = self.network_space
        return (
            space.shape if isinstance(space, gym_spaces.Box) and space.shape else (gym_spaces.flatdim(space),)
        )

    @cached_property
    def obs_dtype(self) -> np.dtype:
        """uint8 stays (images are kept small), everything else becomes float32."""
        space = self.network_space
        keeps = isinstance(space, gym_spaces.Box) and space.dtype == np.uint8
        return np.dtype(np.uint8 if keeps else np.float32)

    def encode(self, observation: Any) -> NDArray[Any]:
        """The array, of `obs_shape`, that the network sees of an observation from the env."""
        if self.masked:
            observation = observation["observation"]
        if isinstance(self.network_space, gym_spaces.Box) and self.network_space.shape:
            return observation
        return np.asarray(gym_spaces.flatten(self.network_space, observation))

    # The names of SLM-Lab's Body.
    @property
    def observable_dim(self) -> dict[str, int | tuple[int, ...]]:
        return {"state": self.state_dim}

    @property
    def state_dim(self) -> int | tuple[int, ...]:
        """Length of a flat observation, or the shape of an image."""
        return self.obs_shape[0] if len(self.obs_shape) == 1 else self.obs_shape

    @property
    def is_discrete(self) -> bool:
        return self.action_type != "continuous"

    @cached_property
    def action_type(self) -> ActionType:
        return next(name for kind, name in _ACTION_TYPES.items() if isinstance(self.action_space, kind))

    @cached_property
    def action_dim(self) -> int:
        """Number of outputs that a policy needs for its choice: choices, dimensions or bits."""
        space = self.action_space
        if isinstance(space, gym_spaces.Discrete):
            return int(space.n)
        if isinstance(space, gym_spaces.MultiDiscrete):
            return int(space.nvec.sum())
        return int(np.prod(space.shape or ()))

    @cached_property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action on the policy's side: () or (n,)."""
        space = self.action_space
        return () if isinstance(space, gym_spaces.Discrete) else (int(np.prod(space.shape or ())),)

    @property
    def action_dtype(self) -> np.dtype:
        return np.dtype(np.float32 if self.action_type == "continuous" else np.int64)

    def to_env(self, actions: NDArray[Any]) -> list[Any]:
        """Actions for the env from a batch (n, `action_shape`) on the policy's side.

        Box: clipped to [-1, 1] and scaled to the bounds, dimension by dimension, and rounded for an integer Box. A
        dimension without a bound on either side is taken as it is, one with a single bound is clipped there.
        """
        space = self.action_space
        if isinstance(space, gym_spaces.Discrete):
            return (actions + int(space.start)).tolist()
        if isinstance(space, gym_spaces.Box):
            centre, half, bounded = self._scale
            scaled = centre + np.clip(actions, -1.0, 1.0) * half
            actions = np.where(bounded, scaled, actions).clip(space.low.reshape(-1), space.high.reshape(-1))
            if space.dtype.kind != "f":
                actions = np.rint(actions)
        elif isinstance(space, gym_spaces.MultiDiscrete):
            actions = actions + space.start.reshape(-1)
        shape = space.shape or ()
        return [row.reshape(shape) for row in actions.astype(space.dtype)]  # pyright: ignore[reportArgumentType]

    def to_policy(self, action: Any) -> NDArray[Any]:
        """Inverse of `to_env` for one action."""
        space = self.action_space
        action = np.asarray(action).reshape(self.action_shape)
        if isinstance(space, gym_spaces.Discrete):
            return (action - int(space.start)).astype(np.int64)
        if isinstance(space, gym_spaces.MultiDiscrete):
            return (action - space.start.reshape(-1)).astype(np.int64)
        if isinstance(space, gym_spaces.Box):
            centre, half, bounded = self._scale
            scaled = (action - centre) / np.where(half > 0, half, 1.0)
            return np.where(bounded, scaled, action).astype(np.float32)
        return action.astype(np.int64)

    def one_hot(self, action: Any) -> NDArray[np.float32]:
        """The action from the env as a flat float vector of `action_dim`: one-hot, bits or [-1, 1] values."""
        policy = self.to_policy(action)
        space = self.action_space
        if isinstance(space, gym_spaces.Discrete):
            return np.eye(int(space.n), dtype=np.float32)[policy]
        if isinstance(space, gym_spaces.MultiDiscrete):
            rows = [
                np.eye(n, dtype=np.float32)[i] for n, i in zip(space.nvec.reshape(-1), policy, strict=True)
            ]
            return np.concatenate(rows)
        return policy.astype(np.float32)

    @cached_property
    def _scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Of a Box: the middle and half the width of each dimension that is bounded on both sides, and which are."""
        space = self.action_space
        assert isinstance(space, gym_spaces.Box)
        low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
        # Asked of the space, since the infinite bounds of an integer Box are the ends of its dtype.
        bounded = (space.bounded_below & space.bounded_above).reshape(-1)
        low, high = np.where(bounded, low, 0.0), np.where(bounded, high, 0.0)
        return 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low, bounded


@dataclass(frozen=True)
class AgentGroup:
    """Agents with equal spaces: one batched forward pass, whether or not they share parameters."""

    name: str
    agents: tuple[AgentID, ...]
    spaces: AgentSpaces


def group_agents(agents: Sequence[AgentID], spaces: Mapping[AgentID, AgentSpaces]) -> tuple[AgentGroup, ...]:
    """Group agents by equal spaces, in the order of their first member. Names come from the agents' common stem."""
    members: list[tuple[AgentSpaces, list[AgentID]]] = []
    for agent in agents:
        for known, group in members:
            if known == spaces[agent]:
                group.append(agent)
                break
        else:
            members.append((spaces[agent], [agent]))
    groups, used = [], set()
    for space, group in members:
        stems = {re.sub(r"[\W_]*\d*$", "", str(agent)) for agent in group}
        stem = stems.pop() if len(stems) == 1 else "agents"
        name, suffix = stem or "agents", 2
        while name in used:
            name, suffix = f"{stem or 'agents'}-{suffix}", suffix + 1
        used.add(name)
        groups.append(AgentGroup(name, tuple(group), space))
    return tuple(groups)


def _refuse_shapeless(space: gymnasium.Space, what: str) -> None:
    if not isinstance(space, _ARRAY_KINDS):
        raise ConfigError(
            f"{what} space {space} has no array of fixed size, which a network needs. "
            "Encode it in a wrapper of your own (Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple work)."
        )
    if isinstance(space, gym_spaces.Dict | gym_spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, gym_spaces.Dict) else space.spaces
        for part in parts:
            _refuse_shapeless(part, what)


def space_to_json(space: gymnasium.Space) -> dict[str, Any]:
    """A plain description that `space_from_json` turns back into an equal space."""
    # Gymnasium 1.0's Discrete takes no dtype, so the usual one goes unsaid.
    dtype = {} if space.dtype in (None, np.int64) else {"dtype": str(space.dtype)}
    if isinstance(space, gym_spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), **dtype}
    if isinstance(space, gym_spaces.Box):
        bounds = {
            name: array.flat[0].item() if array.size and (array == array.flat[0]).all() else array.tolist()
            for name, array in (("low", space.low), ("high", space.high))
        }
        return {"kind": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, gym_spaces.MultiDiscrete):
        ranges = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"kind": "MultiDiscrete", **ranges, **dtype}
    if isinstance(space, gym_spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, gym_spaces.Dict):
        return {"kind": "Dict", "spaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, gym_spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise ConfigError(f"space {space} has no plain description")


def space_from_json(row: Mapping[str, Any]) -> gymnasium.Space:
    """The space that `space_to_json` described.

    Raises:
        CorruptFileError: an unknown kind, or fields that do not make a space.
    """
    try:
        dtype: dict[str, Any] = {"dtype": np.dtype(row["dtype"]).type} if "dtype" in row else {}
        match row["kind"]:
            case "Discrete":
                return gym_spaces.Discrete(row["n"], start=row["start"], **dtype)
            case "Box":
                shape = tuple(row["shape"])
                low, high = (
                    np.broadcast_to(np.array(row[name], row["dtype"]), shape).copy()
                    for name in ("low", "high")
                )
                return gym_spaces.Box(low, high, shape, **dtype)
            case "MultiDiscrete":
                nvec, start = np.array(row["nvec"]), np.array(row["start"])
                return gym_spaces.MultiDiscrete(nvec, start=start, **dtype)
            case "MultiBinary":
                return gym_spaces.MultiBinary(row["n"])
            case "Dict":
                # Pairs, since a dict would be sorted, and the order is that of the network's inputs.
                return gym_spaces.Dict([(key, space_from_json(part)) for key, part in row["spaces"].items()])
            case "Tuple":
                return gym_spaces.Tuple([space_from_json(part) for part in row["spaces"]])
            case kind:
                raise CorruptFileError(f"unknown space kind {kind!r}")
    except CorruptFileError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AssertionError,
        AttributeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise CorruptFileError(f"not a space: {row!r} ({error})") from error
