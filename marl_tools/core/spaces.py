"""What a policy needs to know of an agent's spaces, and the grouping of agents whose spaces are equal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from marl_tools.core.actions import ActionCodec, ActionType, action_codec
from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID

_ARRAY_KINDS = (
    gym_spaces.Discrete,
    gym_spaces.Box,
    gym_spaces.MultiDiscrete,
    gym_spaces.MultiBinary,
    gym_spaces.Dict,
    gym_spaces.Tuple,
)


@dataclass(frozen=True)
class AgentSpaces:
    """One agent's observation and action space, seen from the policy's side.

    A ``Dict`` observation with the keys ``observation`` and ``action_mask`` follows PettingZoo's convention: the
    mask is taken out and the rest is what the network sees. The policy's side of an action is an array: an
    index counted from 0 for Discrete, (n,) indices for MultiDiscrete, (n,) zeros and ones for MultiBinary, and for Box
    (n,) floats in which [-1, 1] spans the bounds; dimensions that lack a bound pass through. Of a Dict or Tuple it is the
    numbers of all parts side by side.

    Raises:
        ConfigError: at construction, for a space that has no fixed-size array form (Text, Graph, Sequence, OneOf).
    """

    observation_space: gymnasium.Space
    action_space: gymnasium.Space

    def __post_init__(self) -> None:
        _refuse_shapeless(self.observation_space, "observation")
        if self.action_dim == 0:
            raise ConfigError(f"action space {self.action_space} is empty: there is nothing to choose")

    @cached_property
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
        """Whether every choice is out of finitely many."""
        return self.codec.discrete

    @property
    def action_type(self) -> ActionType:
        return self.codec.kind

    @property
    def action_dim(self) -> int:
        """Length of `one_hot`'s vectors: choices, dimensions or bits, those of all parts together."""
        return self.codec.inputs

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action on the policy's side: () or (n,)."""
        return self.codec.shape

    @property
    def action_dtype(self) -> np.dtype:
        """What policies put out and rollouts keep."""
        return np.dtype(np.int64 if self.is_discrete else np.float32)

    @cached_property
    def codec(self) -> ActionCodec:
        """The translation of actions between the two sides."""
        return action_codec(self.action_space)

    def to_env(self, actions: NDArray[Any]) -> list[Any]:
        """Actions for the env from a batch (n, `action_shape`) on the policy's side.

        Box: clipped to [-1, 1] and scaled to the bounds, dimension by dimension, and rounded for an integer Box. A
        dimension without a bound on either side is taken as it is, one with a single bound is clipped there.
        """
        return self.codec.to_env(actions)

    def to_policy(self, action: Any) -> NDArray[Any]:
        """Inverse of `to_env` for one action; where numbers are in it, float64, since only that leads back exactly."""
        return self.codec.to_policy(action)

    def one_hot(self, action: Any) -> NDArray[np.float32]:
        """The action from the env as a flat float vector of `action_dim`: one-hot, bits or [-1, 1] values."""
        return self.codec.to_vector(self.codec.to_policy(action))

    def from_one_hot(self, vector: NDArray[Any]) -> Any:
        """Inverse of `one_hot`: the action for the env. Of scores that are not one-hot the greatest counts."""
        return self.codec.to_env(self.codec.from_vector(np.asarray(vector))[None])[0]


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
