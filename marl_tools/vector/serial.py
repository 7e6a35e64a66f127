"""Many copies of one env, stepped one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.seeding import episode_seed
from marl_tools.core.spaces import AgentGroup, AgentSpaces, group_agents
from marl_tools.core.types import AgentID, EpisodeLog, VectorStep
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.vector.buffers import Arrays, GroupBuffer, allocate

Infos = dict[AgentID, dict[str, Any]]


class SerialVectorEnv:
    """The `VectorEnv` that needs nothing: no processes, no threads, any env.

    Each episode is reset with a seed of its own (`episode_seed` of its number in the run: the n-th of copy i has the
    number n * num_envs + i), so it can be replayed alone and no two copies ever run the same one. When the last agent of a
    copy ends, the copy is reset within the same step.

    Args:
        make_env: builds one copy, an `EpisodeRecorder` outermost; called with ``env_index``.
        num_envs: how many copies.
        first: index of the first copy, and
        total: how many there are in the whole run, where others play in other processes; by default all are here.
        arrays: makes the arrays of a group; by default in this process's own memory.

    Raises:
        ConfigError: the env has no ``possible_agents``, or a space that no policy can use.
        EnvError: during a step, when the env breaks the contract. A note on this, and on whatever else an env
            raises, names the env, the copy, the episode's seed and the step.
    """

    def __init__(
        self,
        make_env: Callable[..., EpisodeRecorder],
        num_envs: int,
        *,
        first: int = 0,
        total: int | None = None,
        arrays: Callable[[AgentGroup, int], Arrays] = allocate,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs={num_envs}: at least one copy of the env is needed")
        self.num_envs, self._first, self._total = num_envs, first, total or num_envs
        self.episodes_started = 0
        self.envs: list[EpisodeRecorder] = []
        self._finished: list[EpisodeLog] = []
        self._seed: int | None = None
        try:
            for index in range(num_envs):
                self.envs.append(make_env(env_index=first + index))
            self.groups = env_groups(self.envs[0])
            self._buffers = {group.name: GroupBuffer(group, arrays(group, num_envs)) for group in self.groups}
        except BaseException:
            self.close()
            raise
        for env in self.envs:
            env.clock.stride = self._total
            env.on_episode = self._collect_episode
        self.env_name = self.envs[0].env_name
        self._state_keys = [key for env in self.envs if (key := getattr(env, "state_key", None))]
        self._keys: list[bytes] | None = [b""] * num_envs if self._state_keys else None
        self._clock = self.envs[0].clock
        self._live: list[set[AgentID]] = [set() for _ in self.envs]
        self._ended: list[set[AgentID]] = [set() for _ in self.envs]
        self._infos: list[Infos] = [{} for _ in self.envs]
        # Where an agent's row is: [(agent, buffer, row in group)], walked for every env at every step.
        self._rows = [
            (agent, self._buffers[group.name], row)
            for group in self.groups
            for row, agent in enumerate(group.agents)
        ]
        self._known = {agent for agent, _, _ in self._rows}

    @property
    def frames(self) -> int:
        """Env steps so far, all copies together."""
        return self._clock.frames

    def resume(self, *, frames: int, episodes_started: int) -> None:
        """Count on from an earlier run's figures; call it before `reset`."""
        self.episodes_started = episodes_started
        for env in self.envs:
            env.clock.frames = frames
            env.builder.resume(episodes_started)

    def reset(self, seed: int) -> VectorStep:
        """Start every copy afresh; what was running is logged as interrupted. Episodes are numbered on."""
        if not self.envs:
            raise EnvError(f"{self.env_name} was closed and cannot be reset: build the vector env anew")
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
        if self._seed is None:
            raise EnvError(f"{self.env_name} is not running: call reset(seed) before step")
        plays = {name: buffer.to_env(actions[name]) for name, buffer in self._buffers.items()}
        for buffer in self._buffers.values():
            buffer.clear()
        final_infos: list[Infos | None] = [None] * self.num_envs
        no_keys: list[bytes | None] = [None] * self.num_envs
        final_keys = None if self._keys is None else no_keys
        for index, env in enumerate(self.envs):
            joint = {
                agent: plays[buffer.name][index][row]
                for agent, buffer, row in self._rows
                if agent in self._live[index]
            }
            if notes is not None:
                for key, values in notes[index].items():
                    for agent, value in values.items():
                        env.builder.note(key, agent, value)
            step = env.builder.length + 1
            try:
                infos = self._play(index, joint)
            except Exception as error:
                error.add_note(
                    f"in copy {self._first + index} of {env.env_name}, episode seed {env.builder.seed}, step {step}"
                )
                raise
            key = self._state_keys[index]() if self._keys is not None else None
            # The recorder knows when the episode is over, also where the env leaves ended agents in `agents`.
            if env.builder.open:
                self._infos[index] = infos
                if self._keys is not None and key is not None:
                    self._keys[index] = key
            else:
                if final_keys is not None:
                    final_keys[index] = key
                # Copies, since the env may write those of the next episode into the same dicts.
                final_infos[index] = {agent: dict(info or {}) for agent, info in infos.items()}
                self._start_episode(index)
        return self._result(final_infos, final_keys)

    def close(self) -> list[EpisodeLog]:
        """Close every copy, also after one that fails to; returns the episodes not yet handed over."""
        self._seed = None
        with ExitStack() as stack:
            while self.envs:
                stack.callback(self.envs.pop().close)
        return self._take_episodes()

    def _play(self, index: int, joint: dict[AgentID, Any]) -> Infos:
        """One step of one copy, taken into the buffers."""
        env, live, ended = self.envs[index], self._live[index], self._ended[index]
        obs, rewards, terminations, truncations, infos = env.step(joint)
        remaining = set(env.agents)
        self._refuse_unknown(remaining)
        for agent, buffer, row in self._rows:
            if agent in live:
                if agent not in rewards:
                    raise EnvError(f"{env.env_name} gave no reward for live agent {agent!r}")
                info = infos.get(agent)
                buffer.rewards[index, row] = rewards[agent]
                buffer.costs[index, row] = info.get("cost", np.nan) if info else np.nan
                terminated = bool(terminations.get(agent))
                if terminated or truncations.get(agent) or agent not in remaining:
                    # An agent that left without a flag is cut off, not dead: it bootstraps.
                    buffer.terminated[index, row], buffer.truncated[index, row] = terminated, not terminated
                    buffer.end(index, row, obs.get(agent))
                    live.discard(agent)
                    ended.add(agent)
                    continue
            elif agent in remaining and agent not in ended:
                live.add(agent)
            else:
                continue
            self._observe(index, agent, buffer, row, obs, infos)
        return infos

    def _start_episode(self, index: int) -> None:
        env = self.envs[index]
        assert self._seed is not None
        # Known without asking the other copies, so that it is the same in whatever process they live.
        number = (env.builder.episode + 1) * self._total + self._first + index
        seed = episode_seed(self._seed, number)
        self.episodes_started += 1
        try:
            obs, infos = env.reset(seed=seed)
            live = set(env.agents)
            self._refuse_unknown(live)
            if not live:
                raise EnvError(f"{env.env_name} has no agents after its reset")
            for agent, buffer, row in self._rows:
                if agent in live:
                    self._observe(index, agent, buffer, row, obs, infos)
                else:
                    buffer.retire(index, row)
        except Exception as error:
            error.add_note(f"in copy {self._first + index} of {env.env_name}, at reset(seed={seed})")
            raise
        self._infos[index], self._live[index], self._ended[index] = infos, live, set()
        if self._keys is not None:
            self._keys[index] = self._state_keys[index]()

    def _observe(
        self,
        index: int,
        agent: AgentID,
        buffer: GroupBuffer,
        row: int,
        obs: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Mapping[str, Any]],
    ) -> None:
        """Take in the observation, and the mask if there is one, that an agent acts on next."""
        if agent not in obs:
            raise EnvError(f"{self.envs[index].env_name} gave no observation for live agent {agent!r}")
        if buffer.spaces.masked:
            mask = obs[agent]["action_mask"]
        else:
            mask = (infos.get(agent) or {}).get("action_mask")
        buffer.observe(index, row, obs[agent], mask)

    def _refuse_unknown(self, agents: set[AgentID]) -> None:
        if unknown := agents - self._known:
            raise EnvError(
                f"agent {sorted(unknown)[0]!r} is not among the possible_agents: {', '.join(sorted(self._known))}"
            )

    def _collect_episode(self, log: EpisodeLog) -> None:
        self._finished.append(log)

    def _take_episodes(self) -> list[EpisodeLog]:
        episodes, self._finished = self._finished, []
        return episodes

    def _result(
        self, final_infos: list[Infos | None], final_keys: list[bytes | None] | None = None
    ) -> VectorStep:
        return VectorStep(
            groups={name: buffer.result() for name, buffer in self._buffers.items()},
            episodes=self._take_episodes(),
            infos=list(self._infos),
            final_infos=final_infos,
            keys=None if self._keys is None else list(self._keys),
            final_keys=final_keys,
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
