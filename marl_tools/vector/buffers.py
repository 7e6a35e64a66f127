"""The arrays in which a vector env hands over what its copies gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import GroupStep

_MASKABLE = ("discrete", "multi_discrete")

Arrays = Mapping[str, NDArray[Any]]
"""The arrays of one group by name, as `array_shapes` lists them; the first axis is the copy of the env."""


def array_shapes(group: AgentGroup, num_envs: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of each array that a `GroupBuffer` of ``num_envs`` copies lives in."""
    rows, spaces = (num_envs, len(group.agents)), group.spaces
    obs = ((*rows, *spaces.obs_shape), spaces.obs_dtype)
    flags, numbers = (rows, np.dtype(bool)), (rows, np.dtype(np.float64))
    shapes = {
        "actions": ((*rows, *spaces.action_shape), spaces.action_dtype),
        "obs": obs,
        "final_obs": obs,
        "active": flags,
        "rewards": numbers,
        "costs": numbers,
        "terminated": flags,
        "truncated": flags,
        "masked": ((num_envs,), np.dtype(bool)),
    }
    if spaces.action_type in _MASKABLE:
        shapes["action_mask"] = ((*rows, spaces.action_dim), np.dtype(bool))
    return shapes


def allocate(group: AgentGroup, num_envs: int) -> dict[str, NDArray[Any]]:
    """Arrays of this process alone."""
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in array_shapes(group, num_envs).items()}


class GroupBuffer:
    """The arrays of one group, filled in place at every step; rows are addressed by env and agent index.

    Args:
        group: whose arrays they are.
        arrays: where they live. Another process may see the same memory and read the `result` of what is filled in here.

    Raises:
        ConfigError: the group has action masks but no choices that they could forbid.
    """

    def __init__(self, group: AgentGroup, arrays: Arrays) -> None:
        self.group, self.name, self.spaces, self.arrays = group, group.name, group.spaces, arrays
        self.obs, self.final_obs, self.active = arrays["obs"], arrays["final_obs"], arrays["active"]
        self.rewards, self.costs = arrays["rewards"], arrays["costs"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        space = group.spaces.network_space
        # What the env gives is what is kept, if it has the right shape and type.
        self._as_it_is = isinstance(space, Box) and bool(space.shape) and not group.spaces.masked
        self._row_shape = group.spaces.obs_shape
        self.action_mask: NDArray[np.bool_] | None = None
        if group.spaces.masked:
            self._use_mask()

    def clear(self) -> None:
        """Forget what the last step brought."""
        self.rewards.fill(0.0)
        self.costs.fill(np.nan)
        self.terminated.fill(False)
        self.truncated.fill(False)

    def to_env(self, actions: NDArray[Any]) -> list[list[Any]]:
        """Actions (E, A, ...) of the policy as the env's own, [env][agent]."""
        envs, agents = self.active.shape
        flat = self.spaces.to_env(actions.reshape(envs * agents, *self.spaces.action_shape))
        return [flat[index * agents : (index + 1) * agents] for index in range(envs)]

    def observe(self, env: int, agent: int, observation: Any, mask: Any) -> None:
        """What an agent acts on next; without a mask everything is allowed."""
        self.active[env, agent] = True
        if (
            self._as_it_is
            and type(observation) is np.ndarray
            and observation.dtype == self.obs.dtype
            and observation.shape == self._row_shape
        ):
            self.obs[env, agent] = observation
        else:
            self.obs[env, agent] = self._encode(agent, observation)
        if mask is not None:
            if self.action_mask is None:
                self._use_mask()
            self._set_mask(env, agent, mask)
        elif self.action_mask is not None:
            self.action_mask[env, agent] = True

    def end(self, env: int, agent: int, observation: Any) -> None:
        """The last observation of an agent; where its env gave none, the one before is the nearest there is."""
        last = self.obs[env, agent] if observation is None else self._encode(agent, observation)
        self.final_obs[env, agent] = last
        self.retire(env, agent)

    def retire(self, env: int, agent: int) -> None:
        """The agent does not act next."""
        self.active[env, agent] = False
        if self.action_mask is not None:
            self.action_mask[env, agent] = True

    def result(self) -> GroupStep:
        """Everything as one step of the vector env; all but the final observations are the arrays themselves."""
        if self.action_mask is None and self.arrays["masked"].any():
            self.action_mask = self.arrays["action_mask"]
        env, agent = np.nonzero(self.terminated | self.truncated)
        return GroupStep(
            obs=self.obs,
            active=self.active,
            action_mask=self.action_mask,
            rewards=self.rewards,
            costs=self.costs,
            terminated=self.terminated,
            truncated=self.truncated,
            final_obs=self.final_obs[env, agent],
            final_env=env,
            final_agent=agent,
        )

    def _encode(self, agent: int, observation: Any) -> NDArray[Any]:
        array = np.asarray(self.spaces.encode(observation))
        # Assignment would stretch a smaller array and cut fractions off in silence.
        if array.shape != self.spaces.obs_shape or (array.dtype.kind == "f" and self.obs.dtype == np.uint8):
            raise EnvError(
                f"agent {self.group.agents[agent]!r} observes {array.dtype} {array.shape}, but its observation space "
                f"is {self.spaces.observation_space}"
            )
        return array

    def _set_mask(self, env: int, agent: int, mask: Any) -> None:
        assert self.action_mask is not None
        allowed = np.asarray(mask, bool)
        if allowed.shape != (self.spaces.action_dim,):
            raise EnvError(
                f"the action mask of agent {self.group.agents[agent]!r} has shape {allowed.shape}, but "
                f"{self.spaces.action_space} has {self.spaces.action_dim} choices"
            )
        if not np.logical_or.reduceat(allowed, self._choice_starts).all():
            raise EnvError(f"the mask of agent {self.group.agents[agent]!r} allows it no action at all")
        self.action_mask[env, agent] = allowed

    def _use_mask(self) -> None:
        space = self.spaces.action_space
        if self.spaces.action_type not in _MASKABLE:
            raise ConfigError(f"an action mask makes no sense for {space}: only Discrete and MultiDiscrete")
        self.action_mask = self.arrays["action_mask"]
        self.action_mask.fill(True)
        self.arrays["masked"].fill(True)
        sizes = getattr(space, "nvec", np.array([self.spaces.action_dim])).reshape(-1)
        # Where the options of each single choice begin.
        self._choice_starts = np.cumsum(sizes) - sizes
