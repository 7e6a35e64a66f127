"""`GameVectorEnv`: many worlds of one game in arrays, the episodes of which are those of single envs to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentGroup, AgentSpaces, group_agents
from marl_tools.core.transitions import Key
from marl_tools.core.types import AgentID, EpisodeLog, GroupStep, Split, VectorStep
from marl_tools.envs.arrays import ArrayVectorEnv
from marl_tools.envs.game import Game
from marl_tools.envs.parallel import EpisodeChance

Infos = dict[AgentID, dict[str, Any]]


class GameVectorEnv(ArrayVectorEnv):
    """A `VectorEnv` of ``num_envs`` worlds of a game, with same-step autoreset.

    It plays exactly the episodes that `SerialVectorEnv` plays with single envs and the same seed. Beyond the protocol,
    `state_keys` says where every world is, and `final_keys` where those were that ended in the last step.

    Args:
        game: all agents must have equally many actions.
        num_envs: how many worlds.
        env_name: the name in the logs; by default the game's.
        split: "train" or "eval", noted in each log.
        first, total: see `ArrayVectorEnv`.

    Raises:
        ConfigError: at construction, fewer than one world, or agents with different numbers of actions.
        EnvError: a step before `reset`, a reset after `close`, or an action that an agent does not have.

    The infos are shared between steps and worlds: read them only.
    """

    def __init__(
        self,
        game: Game,
        num_envs: int,
        *,
        env_name: str | None = None,
        split: Split = "train",
        first: int = 0,
        total: int | None = None,
    ) -> None:
        name = env_name or game.name
        super().__init__(name, game.agents, _one_group(game), num_envs, split, first, total)
        self.game = game
        self.final_keys: list[Key | None] = [None] * num_envs
        """Key of the last state of each world whose episode ended in the last step, before its autoreset; else None."""
        self._chance = EpisodeChance()
        shape = (num_envs, len(game.agents))
        self._uniforms = np.zeros((num_envs, game.num_uniforms))
        starts = len(game.start_dice)
        self._start_uniforms = self._uniforms[:, :starts]
        self._step_uniforms = self._uniforms[:, starts:].reshape(num_envs, game.max_cycles, len(game.dice))
        self._worlds = np.arange(num_envs)
        self._state = np.zeros((num_envs, len(game.sizes)), np.int64)
        self._obs = np.zeros((*shape, game.obs_size), np.float32)
        self._infos: list[Infos] = [{}] * num_envs
        self._told: dict[bytes, Infos] = {}
        self._no_infos: Infos = {agent: {} for agent in game.agents}

    @property
    def state_ids(self) -> NDArray[np.int64]:
        """`Game.ids` (E,) of the current states: the cheap form of `state_keys`."""
        return self.game.ids(self._state)

    def state_keys(self) -> list[Key]:
        """The key of each world's current state, after autoreset: what the next action is chosen in."""
        return self.game.keys(self._state)

    def reset(self, seed: int) -> VectorStep:
        """Start every world afresh; what was running is logged as interrupted. Episodes are numbered on."""
        self._begin(seed)
        self.final_keys = [None] * self.num_envs
        return self._stand(self._start_episodes(self._worlds))

    def step(
        self, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> VectorStep:
        """Play one step in every world; see `VectorEnv.step`."""
        self._require_running()
        game, acted = self.game, self._logs.live.copy()
        group = self.groups[0]
        # What it is told of agents that do not act is of no account.
        chosen = np.where(acted, actions[group.name], 0)
        chosen = self._check_choices(group.agents, chosen, game.actions[0])
        rolls = game.dice.roll(self._step_uniforms[self._worlds, self._logs.length])
        result = game.transition(self._state, chosen, rolls)
        self._frames += self._total
        terminated = acted & game.ended(result.state)
        truncated = acted & ~terminated & (self._logs.length + 1 >= game.max_cycles)[:, None]
        rewards = np.where(acted, result.rewards, 0.0)
        if notes is not None:
            self._logs.note(notes)
        logs = self._logs.step(
            rewards, terminated, truncated, t=self._frames, costs=(acted & result.violated).astype(float)
        )
        self._state = result.state
        # In single envs too an agent keeps the last observation that it acted on.
        after = game.observe(result.state)
        np.copyto(self._obs, after, where=self._logs.live[:, :, None])
        over = np.array([log.env_index - self._first for log in logs], np.int64)
        self._infos = self._tell(acted, result.violated)
        final_infos: list[Infos | None] = [None] * self.num_envs
        self.final_keys = [None] * self.num_envs
        for world, key in zip(over.tolist(), game.keys(result.state[over]), strict=True):
            final_infos[world] = self._infos[world]
            self.final_keys[world] = key
        self._start_episodes(over)
        step = self._group_step(
            rewards, np.where(acted, result.violated, np.nan), terminated, truncated, after
        )
        return VectorStep(
            groups={group.name: step},
            episodes=logs,
            infos=list(self._infos),
            final_infos=final_infos,
            keys=self.state_keys(),
            final_keys=list(self.final_keys),
        )

    def _stand(self, episodes: Sequence[EpisodeLog] = ()) -> VectorStep:
        nobody = np.zeros(self._logs.live.shape, bool)
        step = self._group_step(np.zeros(nobody.shape), np.full(nobody.shape, np.nan), nobody, nobody)
        return VectorStep(
            groups={self.groups[0].name: step},
            episodes=list(episodes),
            infos=list(self._infos),
            final_infos=[None] * self.num_envs,
            keys=self.state_keys(),
            final_keys=list(self.final_keys),
        )

    def _world_state(self) -> dict[str, NDArray[Any]]:
        # Agents that have ended keep the observation that they last acted on.
        return {"state": self._state.copy(), "obs": self._obs.copy()}

    def _load_worlds(self, arrays: Mapping[str, NDArray[Any]], seeds: Sequence[int]) -> None:
        self._state, self._obs[...] = arrays["state"].copy(), arrays["obs"]
        for world, seed in enumerate(seeds):
            self._chance.fill(self._uniforms[world], seed)
        self._infos = [self._no_infos] * self.num_envs
        self.final_keys = [None] * self.num_envs

    def _start_episodes(self, worlds: NDArray[np.int64]) -> list[EpisodeLog]:
        """Reset some worlds; returns the episodes that were still running."""
        if not len(worlds):
            return []
        seeds, interrupted = self._open_episodes(worlds)
        for world, seed in zip(worlds.tolist(), seeds, strict=True):
            self._chance.fill(self._uniforms[world], seed)
            self._infos[world] = self._no_infos
        start = self.game.start(self.game.start_dice.roll(self._start_uniforms[worlds]))
        # A new array: the old one belongs to the transition that brought it.
        self._state = self._state.copy()
        self._state[worlds] = start
        self._obs[worlds] = self.game.observe(start)
        return interrupted

    def _tell(self, acted: NDArray[np.bool_], violated: NDArray[np.bool_]) -> list[Infos]:
        """The infos of single envs for flags (E, A); worlds with equal rows share theirs."""
        rows = np.ascontiguousarray(np.concatenate([acted, violated], axis=1))
        patterns = rows.view(np.dtype((np.void, rows.shape[1]))).ravel().tolist()
        for pattern in set(patterns) - self._told.keys():
            flags = np.frombuffer(pattern, bool).reshape(2, -1).tolist()
            self._told[pattern] = {
                agent: {"cost": float(costs)}
                for agent, acts, costs in zip(self.game.agents, *flags, strict=True)
                if acts
            }
        return [self._told[pattern] for pattern in patterns]

    def _group_step(
        self,
        rewards: NDArray[np.float64],
        costs: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        after: NDArray[np.float32] | None = None,
    ) -> GroupStep:
        env, agent = np.nonzero(terminated | truncated)
        return GroupStep(
            obs=self._obs,
            active=self._logs.live,
            action_mask=None,
            rewards=rewards,
            costs=costs,
            terminated=terminated,
            truncated=truncated,
            final_obs=(self._obs if after is None else after)[env, agent],
            final_env=env,
            final_agent=agent,
        )


def _one_group(game: Game) -> tuple[AgentGroup, ...]:
    obs = Box(0.0, 1.0, (game.obs_size,), np.float32)
    spaces = {
        agent: AgentSpaces(obs, Discrete(n)) for agent, n in zip(game.agents, game.actions, strict=True)
    }
    groups = group_agents(game.agents, spaces)
    if len(groups) != 1:
        raise ConfigError(
            f"{game.name}: the native face needs agents with equally many actions, got {game.actions}"
        )
    return groups
