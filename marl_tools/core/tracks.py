"""`Track`: the arrays of one agent, filled step by step; copies of them are the `AgentSegment`s of a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from marl_tools.core.errors import EnvError
from marl_tools.core.segments import AgentSegment
from marl_tools.core.space_json import space_to_json
from marl_tools.core.spaces import AgentSpaces
from marl_tools.core.types import AgentID, End

Flatten = Callable[[Any], NDArray[Any]]


class Track:
    """One agent's transitions since its segment began, in arrays made once and used again.

    Args:
        agent: whose it is, for errors.
        spaces: what it observes and plays.
        capacity: the most transitions of a segment.

    Raises:
        EnvError: an observation or a mask of another shape than the spaces say.
    """

    def __init__(self, agent: AgentID, spaces: AgentSpaces, capacity: int) -> None:
        self.agent, self.spaces, self.capacity = agent, spaces, capacity
        shape, dtype, self._flatten_obs = stored_form(spaces.network_space)
        self.obs = np.empty((capacity + 1, *shape), dtype)
        action_shape, dtype, self._flatten_action = stored_form(spaces.action_space)
        self.actions = np.empty((capacity, *action_shape), dtype)
        self._masked = spaces.masked
        self.plain = not spaces.masked and self._flatten_obs is None
        """Whether observations are stored as they come, with nothing beside them so far."""
        # Asked for at every step, and `ndarray[0].shape` is slow.
        self._obs_shape, self._action_shape = shape, action_shape
        self.rew, self._cost = np.empty(capacity), np.full(capacity, math.nan)
        self._mask: NDArray[np.bool_] | None = None
        self._described = {
            "observation_space": space_to_json(spaces.observation_space),
            "action_space": space_to_json(spaces.action_space),
        }
        self.n = self.t = 0
        """Transitions so far, and the steps of the episode before the first of them."""
        self.arrival: tuple[float, float] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What was recorded stays with the process that did; the copy goes on from the latest observation.
        now = self.obs[self.n].copy(), None if self._mask is None else self._mask[self.n].copy()
        return {"made": (self.agent, self.spaces, self.capacity), "t": self.t + self.n, "now": now}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made"])
        self.t = state["t"]
        self.obs[0], mask = state["now"]
        if mask is not None:
            self._allowed()[0] = mask

    @property
    def masked(self) -> bool:
        """Whether there is a mask in this segment."""
        return self._mask is not None

    @property
    def row_bytes(self) -> int:
        """Memory that one transition takes."""
        return sum(array[0].nbytes for array in (self.obs, self.actions, self.rew, self._cost)) + 10

    def begin(
        self, t: int, observation: Any, info: Mapping[str, Any] | None, arrival: float | None = None
    ) -> None:
        """Start anew, ``t`` steps into the episode, with an agent's first observation and the reward that came with it."""
        self.n, self.t, self.arrival, self._mask = 0, t, None, None
        self._cost.fill(math.nan)
        self._observe(0, observation, info)
        if arrival is not None:
            self.arrival = float(arrival), float(info.get("cost", math.nan) if info else math.nan)

    def act(self, action: Any) -> None:
        """Note what the agent plays next. To be called before the env can change it."""
        if self._flatten_action is not None:
            action = self._flatten_action(action)
        elif getattr(action, "shape", ()) != self._action_shape:
            try:
                action = np.reshape(action, self._action_shape)
            except ValueError as error:
                raise self._misfit("plays", action, self.spaces.action_space) from error
        self.actions[self.n] = action

    def add(self, reward: float, observation: Any, info: Mapping[str, Any] | None) -> None:
        """What came of the action noted before. Without an observation (an env may give a dead agent none) the one before
        is the nearest there is."""
        n = self.n
        self.rew[n] = reward
        if observation is None:
            self._repeat(n + 1)
        else:
            self._observe(n + 1, observation, info)
        if info and "cost" in info:
            self._cost[n] = info["cost"]
        # Last, so that a Ctrl-C at any moment leaves whole transitions.
        self.n = n + 1

    def take(self, end: End | None) -> AgentSegment:
        """Copies of what was recorded, of an agent that ended so (None: goes on)."""
        n = self.n
        return self.segment(
            self.obs[: n + 1].copy(),
            self.actions[:n].copy(),
            self.rew[:n].copy(),
            self._cost[:n].copy(),
            np.arange(self.t, self.t + n),
            end=end,
            mask=None if self._mask is None else self._mask[: n + 1].copy(),
            arrival=self.arrival,
        )

    def segment(
        self,
        obs: NDArray[Any],
        act: NDArray[Any],
        rew: NDArray[np.float64],
        cost: NDArray[np.float64],
        t: NDArray[np.int64],
        *,
        end: End | None,
        mask: NDArray[np.bool_] | None = None,
        arrival: tuple[float, float] | None = None,
    ) -> AgentSegment:
        """Some transitions of this agent, wherever they were kept."""
        return AgentSegment(
            obs=obs,
            act=act,
            rew=rew,
            cost=cost,
            term=_flags(len(t), end == "terminated"),
            trunc=_flags(len(t), end in ("truncated", "capped")),
            t=t,
            mask=mask,
            end=end,
            arrival=arrival,
            **self._described,
        )

    def fill(
        self,
        t: int,
        obs: NDArray[Any],
        act: NDArray[Any],
        rew: NDArray[np.float64],
        cost: NDArray[np.float64],
    ) -> None:
        """Start anew with transitions that were kept elsewhere, the first ``t`` steps into the episode."""
        n = len(rew)
        self.t, self.arrival, self._mask = t, None, None
        self.obs[: n + 1], self.actions[:n], self.rew[:n], self._cost[:n] = obs, act, rew, cost
        self._cost[n:] = math.nan
        self.n = n

    def restart(self) -> None:
        """Begin the next segment with the observation that the last one ended with."""
        n = self.n
        self.obs[0] = self.obs[n]
        if self._mask is not None:
            self._mask[0] = self._mask[n]
        self._cost[:n].fill(math.nan)
        self.n, self.t, self.arrival = 0, self.t + n, None

    def _repeat(self, row: int) -> None:
        self.obs[row] = self.obs[row - 1]
        if self._mask is not None:
            self._mask[row] = self._mask[row - 1]

    def _observe(self, row: int, observation: Any, info: Mapping[str, Any] | None) -> None:
        mask = info.get("action_mask") if info else None
        if self._masked:
            observation, mask = observation["observation"], observation["action_mask"]
        if self._flatten_obs is not None:
            observation = self._flatten_obs(observation)
        # Assignment would stretch a smaller array in silence.
        elif (
            getattr(observation, "shape", ()) != self._obs_shape and np.shape(observation) != self._obs_shape
        ):
            raise self._misfit("observes", observation, self.spaces.observation_space)
        self.obs[row] = observation
        if mask is not None:
            if np.shape(mask) != (self.spaces.action_dim,):
                raise self._misfit("has the action mask", mask, self.spaces.action_space)
            self._allowed()[row] = mask
        elif self._mask is not None:
            self._mask[row] = True

    def _allowed(self) -> NDArray[np.bool_]:
        """The masks; before the first one, everything was allowed."""
        if self._mask is None:
            self._mask = np.ones((self.capacity + 1, self.spaces.action_dim), bool)
        return self._mask

    def _misfit(self, verb: str, value: Any, space: gymnasium.Space) -> EnvError:
        return EnvError(
            f"agent {self.agent!r} {verb} {value!r} of shape {np.shape(value)}, but the space is {space}"
        )


@lru_cache
def _flags(steps: int, last: bool) -> NDArray[np.bool_]:
    """(T,) False, but for the last one."""
    flags = np.zeros(steps, bool)
    flags[steps - 1 :] = last
    flags.flags.writeable = False
    return flags


def stored_form(space: gymnasium.Space) -> tuple[tuple[int, ...], np.dtype, Flatten | None]:
    """Shape and dtype in which elements of a space are stored, and what turns one into that; None: it is one already.

    Box, Discrete, MultiDiscrete and MultiBinary are stored as they are, Dict and Tuple as `gymnasium.spaces.flatten` makes
    them (`unflatten` leads back).
    """
    if not isinstance(space, gym_spaces.Dict | gym_spaces.Tuple):
        return space.shape or (), np.dtype(space.dtype or np.int64), None
    flat = gym_spaces.flatten_space(space)
    return flat.shape or (), np.dtype(flat.dtype), partial(_flatten, space)


def _flatten(space: gymnasium.Space, value: Any) -> NDArray[Any]:
    return np.asarray(gym_spaces.flatten(space, value))
