"""`ParticleVectorEnv`: the native twin of an mpe2 env, whose episodes are those of single envs to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from marl_tools.core.actions import BoxCodec
from marl_tools.core.errors import EnvError
from marl_tools.core.spaces import AgentGroup, AgentSpaces, group_agents
from marl_tools.core.types import EpisodeLog, GroupStep, Split, VectorStep
from marl_tools.envs.arrays import ArrayVectorEnv
from marl_tools.envs.particles.worlds import ParticleWorlds, Scenario

_DIRECTIONS = np.array([[0.0, -1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0, 1.0]])
"""Where the five moves push, (2, moves): none, left, right, down, up."""
_MOVES = _DIRECTIONS.shape[1]
_FEW_ROWS, _CACHED = 32, 2**15


class _Group:
    """The agents of one group: their place among all, what they see, and the arrays that are handed out."""

    def __init__(self, group: AgentGroup, agents: list[int], rows: NDArray[np.intp], num_envs: int) -> None:
        self.spaces, self.name, self.names = group.spaces, group.name, group.agents
        # Neighbours need no copy.
        self.agents = slice(agents[0], agents[-1] + 1) if _is_run(agents) else np.array(agents)
        self.first = agents[0]
        # Rows of the state block, agent after agent; few at a time where there are many worlds, to stay in the cache.
        few = max(_FEW_ROWS, _CACHED // num_envs)
        self._rows = [(rows[k : k + few], slice(k, k + few)) for k in range(0, len(rows), few)]
        shape = (num_envs, len(agents))
        self._obs = np.zeros((*shape, *group.spaces.obs_shape), np.float32)
        self._active, self._nobody = np.ones(shape, bool), np.zeros(shape, bool)
        self._no_costs = np.full(shape, np.nan)
        self._none = self._obs[:0].reshape(0, *group.spaces.obs_shape), *np.zeros((2, 0), np.intp)

    def observe(self, block: NDArray[np.float64]) -> None:
        """Take the observations from the state block."""
        obs = self._obs.reshape(len(self._obs), -1)
        for rows, columns in self._rows:
            np.copyto(obs[:, columns], block.take(rows, axis=0).T, casting="same_kind")

    def last(self, worlds: NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
        """The observations that some worlds ended with, and of whom they are."""
        agents = self._obs.shape[1]
        final_obs = self._obs[worlds].reshape(-1, *self._obs.shape[2:])
        return final_obs, np.repeat(worlds, agents), np.tile(np.arange(agents), len(worlds))

    def result(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_] | None = None,
        truncated: NDArray[np.bool_] | None = None,
        last: tuple[NDArray[Any], ...] | None = None,
        costs: NDArray[np.float64] | None = None,
    ) -> GroupStep:
        """A step in which everyone in a world (E,) ended with it; by default nobody did, and there are no costs."""
        final_obs, final_env, final_agent = last or self._none
        return GroupStep(
            obs=self._obs,
            active=self._active,
            action_mask=None,
            rewards=rewards[self.agents].T,
            costs=self._no_costs if costs is None else costs[:, self.agents],
            terminated=self._nobody if terminated is None else self._nobody | terminated[:, None],
            truncated=self._nobody if truncated is None else self._nobody | truncated[:, None],
            final_obs=final_obs,
            final_env=final_env,
            final_agent=final_agent,
        )


class ParticleVectorEnv(ArrayVectorEnv):
    """A `VectorEnv` of ``num_envs`` worlds of a scenario, with same-step autoreset.

    It plays exactly the episodes that `SerialVectorEnv` plays with mpe2's own env and the same seed. Costs are NaN unless the
    scenario is ``charged``; the infos are empty and shared: read them only.

    Args:
        scenario: the task.
        num_envs: how many worlds.
        env_name: the name in the logs; by default mpe2's.
        split: "train" or "eval", noted in each log.
        first, total: see `ArrayVectorEnv`.

    Raises:
        ConfigError: at construction, fewer than one world.
        EnvError: a step before `reset`, a reset after `close`, or an action that an agent does not have.
    """

    def __init__(
        self,
        scenario: Scenario,
        num_envs: int,
        *,
        env_name: str | None = None,
        split: Split = "train",
        first: int = 0,
        total: int | None = None,
    ) -> None:
        names = tuple(agent.name for agent in scenario.agents)
        worlds = ParticleWorlds(scenario, num_envs)
        seen = worlds.rows_seen()
        groups = group_agents(names, _spaces(scenario, [len(rows) for rows in seen]))
        super().__init__(env_name or scenario.name, names, groups, num_envs, split, first, total)
        self.scenario, self.worlds = scenario, worlds
        self._groups: list[_Group] = []
        for group in groups:
            agents = [names.index(agent) for agent in group.agents]
            rows = np.concatenate([seen[agent] for agent in agents])
            self._groups.append(_Group(group, agents, rows, num_envs))
        self._push = np.zeros((2, len(names), num_envs))
        self._nobody = np.zeros((num_envs, len(names)), bool)
        self._no_infos: dict[str, dict[str, Any]] = {agent: {} for agent in names}

    def reset(self, seed: int) -> VectorStep:
        """Start every world afresh; what was running is logged as interrupted. Episodes are numbered on."""
        self._begin(seed)
        return self._stand(self._start(np.arange(self.num_envs)))

    def step(
        self, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> VectorStep:
        """Play one step in every world; see `VectorEnv.step`."""
        self._require_running()
        for group in self._groups:
            self._take_in(group, actions[group.name])
        if notes is not None:
            self._logs.note(notes)
        self.worlds.move(self._push)
        self.worlds.look()
        rewards = self.scenario.rewards(self.worlds)
        # As in the sums of PettingZoo's turns, where -0.0 becomes 0.0.
        rewards += 0.0
        self._frames += self._total
        truncated = self._logs.length + 1 >= self.scenario.max_cycles
        succeeded = self.scenario.succeeded(self.worlds)
        over = truncated if succeeded is None else truncated | succeeded
        costs = self.scenario.costs(self.worlds).T.astype(float) if self.scenario.charged else None
        if not over.any():
            self._logs.step(rewards.T, self._nobody, self._nobody, t=self._frames, costs=costs)
            self._observe()
            return self._result({group.name: group.result(rewards, costs=costs) for group in self._groups})
        return self._end(rewards, over & ~truncated, truncated, costs)

    def _end(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        costs: NDArray[np.float64] | None,
    ) -> VectorStep:
        """What a step brought in which some worlds' episodes ended (E,); they start anew."""
        ends = (self._nobody | ended[:, None] for ended in (terminated, truncated))
        logs = self._logs.step(rewards.T, *ends, t=self._frames, costs=costs)
        over = np.flatnonzero(terminated | truncated)
        self._observe()
        last = [group.last(over) for group in self._groups]
        self._start(over)
        groups = {
            group.name: group.result(rewards, terminated, truncated, of_group, costs)
            for group, of_group in zip(self._groups, last, strict=True)
        }
        return self._result(groups, logs, over.tolist())

    def _take_in(self, group: _Group, actions: NDArray[Any]) -> None:
        """Pushes and words from the actions (E, agents, ...) of a group."""
        push, words = self._push, self.worlds.state.words
        first = self.scenario.agents[group.first]
        if isinstance(group.spaces.codec, BoxCodec):
            # Differences of float32, as the actions are.
            played = group.spaces.codec.played(np.asarray(actions)).T
            if np.isnan(played).any():
                _, agent, world = np.argwhere(np.isnan(played))[0]
                raise EnvError(
                    f"{self.env_name}: the action of {group.names[agent]!r} in copy {self._first + world} is NaN; look for what the "
                    "policy was given"
                )
            if first.movable:
                push[:, group.agents] = played[[2, 4]] - played[[1, 3]]
            if first.speaks:
                words[group.agents] = played[-self.scenario.words :].swapaxes(0, 1)
            return
        chosen = self._check_choices(group.names, actions, group.spaces.action_dim).T
        move, word = chosen, chosen
        if first.movable and first.speaks:
            move, word = chosen % _MOVES, chosen // _MOVES
        if first.movable:
            push[:, group.agents] = _DIRECTIONS.take(move, axis=1)
        if first.speaks:
            words[group.agents] = word[:, None] == np.arange(self.scenario.words)[:, None]

    def _stand(self, episodes: Sequence[EpisodeLog] = ()) -> VectorStep:
        nothing = np.zeros(self._nobody.T.shape)
        return self._result({group.name: group.result(nothing) for group in self._groups}, episodes)

    def _world_state(self) -> dict[str, NDArray[Any]]:
        return {"block": self.worlds.block.T.copy(), "choices": self.worlds.choices.T.copy()}

    def _load_worlds(self, arrays: Mapping[str, NDArray[Any]], seeds: Sequence[int]) -> None:
        self.worlds.block[...], self.worlds.choices[...] = arrays["block"].T, arrays["choices"].T
        self.worlds.look()
        self._observe()

    def _start(self, worlds: NDArray[np.intp]) -> list[EpisodeLog]:
        """Reset some worlds; returns the episodes that were still running."""
        seeds, interrupted = self._open_episodes(worlds)
        self.worlds.start(worlds, seeds)
        self.worlds.look()
        self._observe()
        return interrupted

    def _observe(self) -> None:
        for group in self._groups:
            group.observe(self.worlds.block)

    def _result(
        self, groups: dict[str, GroupStep], episodes: Sequence[EpisodeLog] = (), over: Sequence[int] = ()
    ) -> VectorStep:
        final_infos: list[dict[str, dict[str, Any]] | None] = [None] * self.num_envs
        for world in over:
            final_infos[world] = self._no_infos
        return VectorStep(
            groups=groups,
            episodes=list(episodes),
            infos=[self._no_infos] * self.num_envs,
            final_infos=final_infos,
        )


def _is_run(numbers: list[int]) -> bool:
    return numbers == list(range(numbers[0], numbers[-1] + 1))


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
