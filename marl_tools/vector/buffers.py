"""The arrays in which a vector env hands over what its copies gave."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import GroupStep


class GroupBuffer:
    """The arrays of one group, filled in place at every step; rows are addressed by env and agent index.

    Raises:
        ConfigError: the group has action masks but no choices that they could forbid.
    """

    def __init__(self, group: AgentGroup, num_envs: int) -> None:
        shape = (num_envs, len(group.agents))
        self.group, self.name, self.spaces = group, group.name, group.spaces
        self.obs = np.zeros((*shape, *group.spaces.obs_shape), group.spaces.obs_dtype)
        self.active = np.zeros(shape, bool)
        self.action_mask: NDArray[np.bool_] | None = None
        self.rewards, self.costs = np.zeros(shape), np.full(shape, np.nan)
        self.terminated, self.truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        self._final_obs: list[NDArray[Any]] = []
        self._final_rows: list[tuple[int, int]] = []
        if group.spaces.masked:
            self._allocate_mask()

    def clear(self) -> None:
        """Forget what the last step brought."""
        self.rewards.fill(0.0)
        self.costs.fill(np.nan)
        self.terminated.fill(False)
        self.truncated.fill(False)
        self._final_obs, self._final_rows = [], []

    def to_env(self, actions: NDArray[Any]) -> list[list[Any]]:
        """Actions (E, A, ...) of the policy as the env's own, [env][agent]."""
        envs, agents = self.active.shape
        flat = self.spaces.to_env(actions.reshape(envs * agents, *self.spaces.action_shape))
        return [flat[index * agents : (index + 1) * agents] for index in range(envs)]

    def observe(self, env: int, agent: int, observation: Any, mask: Any) -> None:
        """What an agent acts on next; without a mask everything is allowed."""
        self.active[env, agent] = True
        self.obs[env, agent] = self._encode(agent, observation)
        if mask is not None:
            if self.action_mask is None:
                self._allocate_mask()
            self._set_mask(env, agent, mask)
        elif self.action_mask is not None:
            self.action_mask[env, agent] = True

    def end(self, env: int, agent: int, observation: Any) -> None:
        """The last observation of an agent; where its env gave none, the one before is the nearest there is."""
        last = self.obs[env, agent] if observation is None else self._encode(agent, observation)
        self.retire(env, agent)
        self._final_rows.append((env, agent))
        # A copy, since the env may write its next observation into the same memory.
        self._final_obs.append(np.array(last, self.obs.dtype))

    def retire(self, env: int, agent: int) -> None:
        """The agent does not act next."""
        self.active[env, agent] = False
        if self.action_mask is not None:
            self.action_mask[env, agent] = True

    def result(self) -> GroupStep:
        rows = np.array(self._final_rows, np.intp).reshape(-1, 2)
        final = np.array(self._final_obs, self.obs.dtype).reshape(-1, *self.obs.shape[2:])
        return GroupStep(
            obs=self.obs,
            active=self.active,
            action_mask=self.action_mask,
            rewards=self.rewards,
            costs=self.costs,
            terminated=self.terminated,
            truncated=self.truncated,
            final_obs=final,
            final_env=rows[:, 0],
            final_agent=rows[:, 1],
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

    def _allocate_mask(self) -> None:
        space = self.spaces.action_space
        if self.spaces.action_type not in ("discrete", "multi_discrete"):
            raise ConfigError(f"an action mask makes no sense for {space}: only Discrete and MultiDiscrete")
        self.action_mask = np.ones((*self.active.shape, self.spaces.action_dim), bool)
        sizes = getattr(space, "nvec", np.array([self.spaces.action_dim])).reshape(-1)
        # Where the options of each single choice begin.
        self._choice_starts = np.cumsum(sizes) - sizes
