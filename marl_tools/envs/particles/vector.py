"""`ParticleVectorEnv`: the native twin of an mpe2 env, whose episodes are those of single envs to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from marl_tools.core.spaces import AgentGroup, AgentSpaces, group_agents
from marl_tools.core.types import EpisodeLog, GroupStep, Split, VectorStep
from marl_tools.envs.arrays import ArrayVectorEnv
from marl_tools.envs.particles.worlds import ParticleWorlds, Scenario

_DIRECTIONS = np.array([[0.0, -1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0, 1.0]])
"""Where the five moves push, (2, moves): none, left, right, down, up."""
_MOVES = _DIRECTIONS.shape[1]


@dataclass(slots=True)
class _Group:
    """The agents of one group: their place among all, what they see and the arrays that are handed out."""

    group: AgentGroup
    agents: NDArray[np.intp]
    rows: NDArray[np.intp]  # of the state block, agent after agent
    obs: NDArray[np.float32]  # (E, agents, D)
    no_costs: NDArray[np.float64]
    active: NDArray[np.bool_]

    def observe(self, block: NDArray[np.float64]) -> None:
        np.copyto(self.obs.reshape(len(self.obs), -1).T, block.take(self.rows, axis=0), casting="same_kind")


class ParticleVectorEnv(ArrayVectorEnv):
    """A `VectorEnv` of ``num_envs`` worlds of a scenario, with same-step autoreset.

    It plays exactly the episodes that `SerialVectorEnv` plays with mpe2's own env and the same seed. There are no costs (NaN) and
    the infos are empty and shared: read them only.

    Args:
        scenario: the task.
        num_envs: how many worlds.
        env_name: the name in the logs; by default mpe2's.
        split: "train" or "eval", noted in each log.

    Raises:
        ConfigError: at construction, fewer than one world.
        EnvError: a step before `reset`, a reset after `close`, or an action that an agent does not have.
    """

    def __init__(
        self, scenario: Scenario, num_envs: int, *, env_name: str | None = None, split: Split = "train"
    ) -> None:
        names = tuple(agent.name for agent in scenario.agents)
        worlds = ParticleWorlds(scenario, num_envs)
        seen = worlds.rows_seen()
        groups = group_agents(names, _spaces(scenario, [len(rows) for rows in seen]))
        super().__init__(env_name or scenario.name, names, groups, num_envs, split)
        self.scenario, self.worlds = scenario, worlds
        self._groups: list[_Group] = []
        for group in groups:
            agents = np.array([names.index(agent) for agent in group.agents])
            shape = (num_envs, len(agents))
            rows = np.concatenate([seen[agent] for agent in agents])
            obs = np.zeros((*shape, *group.spaces.obs_shape), np.float32)
            self._groups.append(
                _Group(group, agents, rows, obs, np.full(shape, np.nan), np.ones(shape, bool))
            )
        self._push = np.zeros((2, len(names), num_envs))
        self._no_infos: dict[str, dict[str, Any]] = {agent: {} for agent in names}

    def reset(self, seed: int) -> VectorStep:
        """Start every world afresh; what was running is logged as interrupted. Episodes are numbered on."""
        self._begin(seed)
        interrupted = self._start(np.arange(self.num_envs))
        self._observe()
        nobody = np.zeros(self.num_envs, bool)
        return self._result(np.zeros((len(self.scenario.agents), self.num_envs)), nobody, nobody, interrupted)

    def step(
        self, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> VectorStep:
        """Play one step in every world; see `VectorEnv.step`."""
        self._require_running()
        for group in self._groups:
            self._take_in(group, actions[group.group.name])
        if notes is not None:
            self._logs.note(notes)
        self.worlds.move(self._push)
        self.worlds.look()
        rewards = self.scenario.rewards(self.worlds)
        # As in the sums of PettingZoo's turns, where -0.0 becomes 0.0.
        rewards += 0.0
        self._frames += self.num_envs
        truncated = self._logs.length + 1 >= self.scenario.max_cycles
        succeeded = self.scenario.succeeded(self.worlds)
        terminated = np.zeros_like(truncated) if succeeded is None else succeeded & ~truncated
        everyone = (self.num_envs, len(self.scenario.agents))
        logs = self._logs.step(
            rewards.T,
            np.broadcast_to(terminated[:, None], everyone),
            np.broadcast_to(truncated[:, None], everyone),
            t=self._frames,
        )
        self._observe()
        over = np.array([log.env_index for log in logs], np.intp)
        final_obs = [group.obs[over] for group in self._groups]
        if len(over):
            self._start(over)
            self._observe()
        return self._result(rewards, terminated, truncated, logs, over, final_obs)

    def _take_in(self, group: _Group, actions: NDArray[Any]) -> None:
        """Pushes and words from the actions (E, agents, ...) of a group."""
        bodies, push, words = self.scenario.agents, self._push, self.worlds.state.words
        first = bodies[group.agents[0]]
        movable, speaks = first.movable, first.speaks
        if self.scenario.continuous_actions:
            flat = actions.reshape(-1, *group.group.spaces.action_shape)
            played = np.array(group.group.spaces.to_env(flat)).reshape(actions.shape).T
            if movable:
                push[:, group.agents] = played[[2, 4]] - played[[1, 3]]
            if speaks:
                words[group.agents] = played[-self.scenario.words :].swapaxes(0, 1)
            return
        chosen = self._check_choices(group.group.agents, actions, group.group.spaces.action_dim).T
        if movable and speaks:
            chosen, said = chosen % _MOVES, chosen // _MOVES
        else:
            said = chosen
        if movable:
            push[:, group.agents] = _DIRECTIONS.take(chosen, axis=1)
        if speaks:
            words[group.agents] = said[:, None] == np.arange(self.scenario.words)[:, None]

    def _start(self, worlds: NDArray[np.intp]) -> list[EpisodeLog]:
        """Reset some worlds; returns the episodes that were still running."""
        seeds, interrupted = self._open_episodes(worlds)
        self.worlds.start(worlds, seeds)
        self.worlds.look()
        return interrupted

    def _observe(self) -> None:
        for group in self._groups:
            group.observe(self.worlds.block)

    def _result(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        episodes: list[EpisodeLog],
        over: NDArray[np.intp] | None = None,
        final_obs: list[NDArray[np.float32]] | None = None,
    ) -> VectorStep:
        final_infos: list[dict[str, dict[str, Any]] | None] = [None] * self.num_envs
        over = np.zeros(0, np.intp) if over is None else over
        for world in over.tolist():
            final_infos[world] = self._no_infos
        groups = {}
        for index, group in enumerate(self._groups):
            shape = group.active.shape
            last = np.zeros((0, *group.obs.shape[1:]), np.float32) if final_obs is None else final_obs[index]
            groups[group.group.name] = GroupStep(
                obs=group.obs,
                active=group.active,
                action_mask=None,
                rewards=rewards[group.agents].T,
                costs=group.no_costs,
                terminated=np.broadcast_to(terminated[:, None], shape),
                truncated=np.broadcast_to(truncated[:, None], shape),
                final_obs=last.reshape(-1, *group.obs.shape[2:]),
                final_env=np.repeat(over, shape[1]),
                final_agent=np.tile(np.arange(shape[1]), len(over)),
            )
        return VectorStep(
            groups=groups,
            episodes=episodes,
            infos=[self._no_infos] * self.num_envs,
            final_infos=final_infos,
        )


def _spaces(scenario: Scenario, lengths: list[int]) -> dict[str, AgentSpaces]:
    """The spaces of mpe2, for observations of these lengths."""
    spaces = {}
    for agent, length in zip(scenario.agents, lengths, strict=True):
        moves, words = _MOVES if agent.movable else 0, scenario.words if agent.speaks else 0
        if scenario.continuous_actions:
            action_space = Box(0, 1, (moves + words,))
        else:
            action_space = Discrete((moves or 1) * (words or 1))
        spaces[agent.name] = AgentSpaces(Box(-np.inf, np.inf, (length,), np.float32), action_space)
    return spaces
