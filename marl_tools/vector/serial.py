"""Many copies of one env, stepped one after the other in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.logging import log
from marl_tools.core.seeding import episode_seed
from marl_tools.core.spaces import AgentGroup, AgentSpaces, group_agents
from marl_tools.core.types import AgentID, EpisodeLog, VectorStep
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.vector.buffers import Arrays, GroupBuffer, allocate
from marl_tools.vector.copy import EnvCopy, Infos
from marl_tools.vector.tape import ActionTape


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
        buffers = list(self._buffers.values())
        self._copies = [EnvCopy(env, first + row, row, buffers) for row, env in enumerate(self.envs)]
        for env in self.envs:
            env.clock.stride = self._total
            env.on_episode = self._collect_episode
        self.env_name = self.envs[0].env_name
        self._keyed = self._copies[0].keyed
        self._clock = self.envs[0].clock
        self._tape = ActionTape(num_envs)

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
        self._tape.clear()
        for buffer in self._buffers.values():
            buffer.clear()
        for copy in self._copies:
            self._start_episode(copy)
        return self._result([None] * self.num_envs)

    def state(self) -> dict[str, Any]:
        """See `VectorEnv.state`: per copy the figures of its episode, the actions played in it, a checksum of what was seen."""
        played = self._tape.episodes()
        return {
            "frames": self.frames,
            "episodes_started": self.episodes_started,
            "copies": [copy.state(actions) for copy, actions in zip(self._copies, played, strict=True)],
        }

    def restore(self, seed: int, state: Mapping[str, Any]) -> VectorStep:
        """See `VectorEnv.restore`: running episodes are started by their seeds and played again.

        Raises:
            ConfigError: the state is of another number of copies.
        """
        told, frames = state["copies"], state["frames"]
        if len(told) != self.num_envs:
            raise ConfigError(
                f"the state of {len(told)} copies of {self.env_name} cannot be restored in {self.num_envs}: use the num_envs "
                "that it was saved with"
            )
        self._seed = seed
        lost = np.array([not copy.rebuild(of_copy) for copy, of_copy in zip(self._copies, told, strict=True)])
        self._tape.refill(
            [{} if gone else of_copy["actions"] for gone, of_copy in zip(lost, told, strict=True)]
        )
        # Episodes that ended too soon when they were played again never happened.
        self._finished.clear()
        self.episodes_started = state["episodes_started"]
        for copy, of_copy, gone in zip(self._copies, told, lost, strict=True):
            clock, builder = copy.env.clock, copy.env.builder
            clock.frames, clock.frames_by_env = frames, dict(of_copy["frames_by_env"])
            if gone:
                builder.load(of_copy["builder"])
                if interrupted := builder.interrupt(frames):
                    self._finished.append(interrupted)
                self._start_episode(copy)
                # Whoever reads the files that this sitting began with finds all that it played in vain.
                copy.sync()
        for buffer in self._buffers.values():
            buffer.clear()
        if lost.any():
            log(
                f"{lost.sum()} running episodes of {self.env_name} did not play again as they were played before the stop: "
                "fresh ones start in their place",
                type="resume",
                priority="WARNING",
            )
        return dataclasses.replace(self._result([None] * self.num_envs), lost=lost if lost.any() else None)

    def step(
        self, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> VectorStep:
        """Play one step in every copy; see `VectorEnv.step`."""
        if self._seed is None:
            raise EnvError(f"{self.env_name} is not running: call reset(seed) before step")
        plays = {name: buffer.to_env(actions[name]) for name, buffer in self._buffers.items()}
        for buffer in self._buffers.values():
            buffer.clear()
        self._tape.add(actions)
        final_infos: list[Infos | None] = [None] * self.num_envs
        no_keys: list[bytes | None] = [None] * self.num_envs
        final_keys = no_keys if self._keyed else None
        for row, copy in enumerate(self._copies):
            builder, live = copy.env.builder, copy.live
            joint = {
                agent: plays[buffer.name][row][place] for agent, buffer, place in copy.agents if agent in live
            }
            if notes is not None:
                for key, values in notes[row].items():
                    for agent, value in values.items():
                        builder.note(key, agent, value)
            copy.step(joint)
            # The recorder knows when the episode is over, also where the env leaves ended agents in `agents`.
            if not builder.open:
                if final_keys is not None:
                    final_keys[row] = copy.key
                # Copies, since the env may write those of the next episode into the same dicts.
                final_infos[row] = {agent: dict(info or {}) for agent, info in copy.infos.items()}
                self._start_episode(copy)
        return self._result(final_infos, final_keys)

    def close(self) -> list[EpisodeLog]:
        """Close every copy, also after one that fails to; returns the episodes not yet handed over."""
        self._seed = None
        with ExitStack() as stack:
            while self.envs:
                stack.callback(self.envs.pop().close)
        return self._take_episodes()

    def _start_episode(self, copy: EnvCopy) -> None:
        assert self._seed is not None
        # Known without asking the other copies, so that it is the same in whatever process they live.
        number = (copy.env.builder.episode + 1) * self._total + copy.index
        self.episodes_started += 1
        self._tape.start(copy.index - self._first)
        copy.start(episode_seed(self._seed, number))

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
            infos=[copy.infos for copy in self._copies],
            final_infos=final_infos,
            keys=[copy.key or b"" for copy in self._copies] if self._keyed else None,
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
