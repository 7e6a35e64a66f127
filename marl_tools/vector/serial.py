"""Many copies of one env, stepped one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.seeding import episode_seed
from marl_tools.core.spaces import AgentGroup, AgentSpaces, group_agents
from marl_tools.core.types import AgentID, EpisodeLog, GroupStep, VectorStep
from marl_tools.core.wrappers.recorder import EpisodeRecorder


class SerialVectorEnv:
    """The `VectorEnv` that needs nothing: no processes, no threads, any env.

    Each episode is reset with a seed of its own (`episode_seed`), so it can be replayed alone and no two copies
    ever run the same one. When the last agent of a copy ends, the copy is reset within the same step.

    Args:
        make_env: builds one copy, an `EpisodeRecorder` outermost; called with ``env_index``.
        num_envs: how many copies.

    Raises:
        ConfigError: the env has no ``possible_agents``, or a space that no policy can use.
        EnvError: during a step, when the env breaks the contract; the message names env, copy and agent.
    """

    def __init__(
        self, make_env: Callable[..., EpisodeRecorder], num_envs: int, first_episode: int = 0
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs={num_envs}: at least one copy of the env is needed")
        self.num_envs = num_envs
        self.episodes_started = 0
        self.envs: list[EpisodeRecorder] = []
        try:
            for index in range(num_envs):
                self.envs.append(make_env(env_index=index))
            self.groups = env_groups(self.envs[0])
        except BaseException:
            self.close()
            raise
        for env in self.envs:
            env.clock.stride = num_envs
            env.on_episode = self._collect_episode
        self.env_name = self.envs[0].env_name
        self._finished: list[EpisodeLog] = []
        self._live: list[set[AgentID]] = [set() for _ in self.envs]
        self._ended: list[set[AgentID]] = [set() for _ in self.envs]
        self._buffers = {group.name: _GroupBuffer(group, num_envs) for group in self.groups}
        # Where an agent's row is: [(agent, buffer, row in group)], walked for every env at every step.
        self._rows = [
            (agent, self._buffers[group.name], row)
            for group in self.groups
            for row, agent in enumerate(group.agents)
        ]
        self._known = {agent for agent, _, _ in self._rows}
        self._infos: list[dict[AgentID, dict[str, Any]]] = [{} for _ in self.envs]

    @property
    def frames(self) -> int:
        """Env steps so far, all copies together."""
        return self.envs[0].clock.frames

    def resume(self, *, frames: int, episodes_started: int) -> None:
        """Count on from an earlier run's figures; call it before `reset`."""
        self.episodes_started = episodes_started
        for env in self.envs:
            env.clock.frames = frames

    def reset(self, seed: int) -> VectorStep:
        self._seed = seed
        for buffer in self._buffers.values():
            buffer.clear()
        for index in range(self.num_envs):
            self._start_episode(index)
        return self._result([None] * self.num_envs)

    def step(
        self, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> VectorStep:
        """Play one step in every copy; see `VectorEnv.step`."""
        plays = {name: buffer.to_env(actions[name]) for name, buffer in self._buffers.items()}
        final_infos: list[dict[AgentID, dict[str, Any]] | None] = [None] * self.num_envs
        for buffer in self._buffers.values():
            buffer.clear()
        for index, env in enumerate(self.envs):
            live = self._live[index]
            joint = {
                agent: plays[buffer.name][index][row] for agent, buffer, row in self._rows if agent in live
            }
            if notes is not None:
                for key, values in notes[index].items():
                    for agent, value in values.items():
                        env.builder.note(key, agent, value)
            try:
                obs, rewards, terminations, truncations, infos = env.step(joint)
            except Exception as error:
                error.add_note(
                    f"in copy {index} of {self.env_name}, episode seed {env.builder.seed}, "
                    f"step {env.builder.length + 1}"
                )
                raise
            remaining = set(env.agents)
            for agent, buffer, row in self._rows:
                if agent in live:
                    info = infos.get(agent)
                    if agent not in rewards:
                        raise EnvError(
                            f"{self.env_name} (copy {index}) gave no reward for live agent {agent!r}"
                        )
                    buffer.rewards[index, row] = rewards[agent]
                    buffer.costs[index, row] = info.get("cost", np.nan) if info else np.nan
                    ended = bool(terminations.get(agent)) or bool(truncations.get(agent))
                    if ended or agent not in remaining:
                        buffer.terminated[index, row] = bool(terminations.get(agent))
                        # An agent that left without a flag is cut off, not dead: it bootstraps.
                        buffer.truncated[index, row] = not terminations.get(agent)
                        buffer.end(index, row, self._observation(obs, agent, index, buffer, row))
                        live.discard(agent)
                        self._ended[index].add(agent)
                        continue
                elif agent in remaining and agent not in self._ended[index]:
                    live.add(agent)
                else:
                    continue
                self._observe(index, agent, buffer, row, obs, infos)
            if unknown := remaining - self._known:
                raise EnvError(
                    f"{self.env_name} (copy {index}) has agents {sorted(unknown)} that are not in its possible_agents"
                )
            # The recorder knows when the episode is over, also where the env leaves ended agents in `agents`.
            if env.builder.open:
                self._infos[index] = infos
            else:
                final_infos[index] = infos
                self._start_episode(index)
        return self._result(final_infos)

    def close(self) -> list[EpisodeLog]:
        self._finished = []
        while self.envs:
            self.envs.pop().close()
        return self._finished

    def _collect_episode(self, log: EpisodeLog) -> None:
        self._finished.append(log)

    def _start_episode(self, index: int) -> None:
        env = self.envs[index]
        seed = episode_seed(self._seed, self.episodes_started)
        self.episodes_started += 1
        obs, infos = env.reset(seed=seed)
        self._infos[index] = infos
        live = self._live[index] = set(env.agents)
        self._ended[index] = set()
        if not live:
            raise EnvError(f"{self.env_name} (copy {index}) has no agents after reset(seed={seed})")
        for agent, buffer, row in self._rows:
            buffer.active[index, row] = False
            if agent in live:
                self._observe(index, agent, buffer, row, obs, infos)

    def _observe(
        self,
        index: int,
        agent: AgentID,
        buffer: _GroupBuffer,
        row: int,
        obs: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Mapping[str, Any]],
    ) -> None:
        """Take in the observation, and the mask if there is one, that an agent acts on next."""
        buffer.active[index, row] = True
        try:
            observation = obs[agent]
        except KeyError:
            raise EnvError(
                f"{self.env_name} (copy {index}) gave no observation for live agent {agent!r}"
            ) from None
        spaces = buffer.spaces
        buffer.obs[index, row] = spaces.encode(observation)
        mask = observation["action_mask"] if spaces.masked else infos.get(agent, {}).get("action_mask")
        if mask is not None:
            buffer.set_mask(index, row, mask)
            if not buffer.action_mask[index, row].any():  # pyright: ignore[reportOptionalSubscript]
                raise EnvError(f"{self.env_name} (copy {index}) allows agent {agent!r} no action at all")

    def _observation(
        self, obs: Mapping[AgentID, Any], agent: AgentID, index: int, buffer: _GroupBuffer, row: int
    ) -> NDArray[Any]:
        """The last observation of an agent; where an env drops it, the one before is the nearest there is."""
        if agent in obs:
            return buffer.spaces.encode(obs[agent])
        return buffer.obs[index, row]

    def _result(self, final_infos: list[dict[AgentID, dict[str, Any]] | None]) -> VectorStep:
        episodes, self._finished = self._finished, []
        return VectorStep(
            groups={name: buffer.result() for name, buffer in self._buffers.items()},
            episodes=episodes,
            infos=list(self._infos),
            final_infos=final_infos,
        )


class _GroupBuffer:
    """The arrays of one group, filled in place at every step."""

    def __init__(self, group: AgentGroup, num_envs: int) -> None:
        shape = (num_envs, len(group.agents))
        self.name, self.spaces = group.name, group.spaces
        self.obs = np.zeros((*shape, *group.spaces.obs_shape), group.spaces.obs_dtype)
        self.active = np.zeros(shape, bool)
        self.action_mask: NDArray[np.bool_] | None = None
        self.rewards, self.costs = np.zeros(shape), np.full(shape, np.nan)
        self.terminated, self.truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        if group.spaces.masked:
            self._allocate_mask()

    def clear(self) -> None:
        self.rewards.fill(0.0)
        self.costs.fill(np.nan)
        self.terminated.fill(False)
        self.truncated.fill(False)
        self._final_obs: list[NDArray[Any]] = []
        self._final_rows: list[tuple[int, int]] = []

    def to_env(self, actions: NDArray[Any]) -> list[list[Any]]:
        """Actions (E, A, ...) of the policy as the env's own, [env][agent]."""
        envs, agents = self.active.shape
        flat = self.spaces.to_env(actions.reshape(envs * agents, *self.spaces.action_shape))
        return [flat[index * agents : (index + 1) * agents] for index in range(envs)]

    def end(self, index: int, row: int, observation: NDArray[Any]) -> None:
        self.active[index, row] = False
        self._final_rows.append((index, row))
        # A copy, since the env may write its next observation into the same memory.
        self._final_obs.append(np.array(observation, self.obs.dtype))

    def set_mask(self, index: int, row: int, mask: Any) -> None:
        if self.action_mask is None:
            self._allocate_mask()
        assert self.action_mask is not None
        self.action_mask[index, row] = mask

    def _allocate_mask(self) -> None:
        if self.spaces.action_type not in ("discrete", "multi_discrete"):
            raise ConfigError(
                f"an action mask makes no sense for {self.spaces.action_space}: only Discrete and MultiDiscrete"
            )
        self.action_mask = np.ones((*self.active.shape, self.spaces.action_dim), bool)

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


def env_groups(env: Any) -> tuple[AgentGroup, ...]:
    """The groups of an env's possible agents.

    Raises:
        ConfigError: the env does not say who its agents can be.
    """
    agents = list(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ConfigError(
            f"{env} has no possible_agents: set it, a policy for each must exist before the first step"
        )
    spaces: dict[AgentID, AgentSpaces] = {
        agent: AgentSpaces(env.observation_space(agent), env.action_space(agent)) for agent in agents
    }
    return group_agents(agents, spaces)
