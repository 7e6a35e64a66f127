"""`GameVectorEnv`: many worlds of one game in arrays, the episodes of which are those of single envs to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.history import EpisodeBuilder
from marl_tools.core.seeding import episode_seed
from marl_tools.core.spaces import AgentGroup, AgentSpaces, group_agents
from marl_tools.core.transitions import Key
from marl_tools.core.types import AgentID, EpisodeLog, GroupStep, Split, VectorStep
from marl_tools.envs.game import Game
from marl_tools.envs.parallel import EpisodeChance

Infos = dict[AgentID, dict[str, Any]]


class _Told(NamedTuple):
    """One step of one world in the words of the parallel API."""

    infos: Infos
    terminations: dict[AgentID, bool]
    truncations: dict[AgentID, bool]
    live: list[AgentID]


class GameVectorEnv:
    """A `VectorEnv` of ``num_envs`` worlds of a game, with same-step autoreset.

    It plays exactly the episodes that `SerialVectorEnv` plays with single envs and the same seed. Beyond the protocol,
    `state_keys` says where every world is, and `final_keys` where those were that ended in the last step.

    Args:
        game: all agents must have equally many actions.
        num_envs: how many worlds.
        env_name: the name in the logs; by default the game's.
        split: "train" or "eval", noted in each log.

    Raises:
        ConfigError: at construction, fewer than one world, or agents with different numbers of actions.
        EnvError: a step before `reset`, a reset after `close`, or an action that an agent does not have.

    The infos are shared between steps and worlds: read them only.
    """

    def __init__(
        self, game: Game, num_envs: int, *, env_name: str | None = None, split: Split = "train"
    ) -> None:
        self.game, self.num_envs = game, at_least(1)("num_envs", num_envs)
        self.env_name = env_name or game.name
        self.groups = _one_group(game)
        self.episodes_started = 0
        self.builders = [EpisodeBuilder(env_index=index, split=split) for index in range(num_envs)]
        self.final_keys: list[Key | None] = [None] * num_envs
        """Key of the last state of each world whose episode ended in the last step, before its autoreset; else None."""
        self._ticks = 0
        self._seed: int | None = None
        self._closed = False
        self._chance = EpisodeChance()
        shape = (num_envs, len(game.agents))
        self._uniforms = np.zeros((num_envs, game.num_uniforms))
        starts = len(game.start_dice)
        self._start_uniforms = self._uniforms[:, :starts]
        self._step_uniforms = self._uniforms[:, starts:].reshape(num_envs, game.max_cycles, len(game.dice))
        self._worlds = np.arange(num_envs)
        self._steps = np.zeros(num_envs, np.int64)
        self._state = np.zeros((num_envs, len(game.sizes)), np.int64)
        self._active = np.zeros(shape, bool)
        self._obs = np.zeros((*shape, game.obs_size), np.float32)
        self._infos: list[Infos] = [{}] * num_envs
        self._told: dict[bytes, _Told] = {}
        self._no_infos: Infos = {agent: {} for agent in game.agents}

    @property
    def frames(self) -> int:
        """Env steps so far, all worlds together."""
        return self._ticks

    @property
    def state_ids(self) -> NDArray[np.int64]:
        """`Game.ids` (E,) of the current states: the cheap form of `state_keys`."""
        return self.game.ids(self._state)

    def state_keys(self) -> list[Key]:
        """The key of each world's current state, after autoreset: what the next action is chosen in."""
        return self.game.keys(self._state)

    def resume(self, *, frames: int, episodes_started: int) -> None:
        """Count on from an earlier run's figures; call it before `reset`."""
        self._ticks, self.episodes_started = frames, episodes_started
        for builder in self.builders:
            builder.resume(episodes_started)

    def reset(self, seed: int) -> VectorStep:
        """Start every world afresh; what was running is logged as interrupted. Episodes are numbered on."""
        if self._closed:
            raise EnvError(f"{self.env_name} was closed and cannot be reset: build the vector env anew")
        self._seed = seed
        self.final_keys = [None] * self.num_envs
        episodes = self._start_episodes(self._worlds)
        nobody = np.zeros(self._active.shape, bool)
        step = self._group_step(np.zeros(nobody.shape), np.full(nobody.shape, np.nan), nobody, nobody)
        return VectorStep(
            groups={self.groups[0].name: step},
            episodes=episodes,
            infos=list(self._infos),
            final_infos=[None] * self.num_envs,
            keys=self.state_keys(),
            final_keys=list(self.final_keys),
        )

    def step(
        self, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> VectorStep:
        """Play one step in every world; see `VectorEnv.step`."""
        if self._seed is None:
            raise EnvError(f"{self.env_name} is not running: call reset(seed) before step")
        game, acted = self.game, self._active
        chosen = self._checked(actions[self.groups[0].name])
        rolls = game.dice.roll(self._step_uniforms[self._worlds, self._steps])
        result = game.transition(self._state, chosen, rolls)
        self._steps += 1
        self._ticks += self.num_envs
        terminated = acted & game.ended(result.state)
        truncated = acted & ~terminated & (self._steps >= game.max_cycles)[:, None]
        self._state, self._active = result.state, acted & ~(terminated | truncated)
        # In single envs too an agent keeps the last observation that it acted on.
        after = game.observe(result.state)
        np.copyto(self._obs, after, where=self._active[:, :, None])
        over = np.flatnonzero(~self._active.any(axis=1))
        told = self._tell(acted, result.violated, terminated, truncated)
        self._infos = [what.infos for what in told]
        logs = self._log(result.rewards, told, notes)
        final_infos: list[Infos | None] = [None] * self.num_envs
        self.final_keys = [None] * self.num_envs
        for world, key in zip(over.tolist(), game.keys(result.state[over]), strict=True):
            final_infos[world] = self._infos[world]
            self.final_keys[world] = key
        self._start_episodes(over)
        step = self._group_step(
            np.where(acted, result.rewards, 0.0),
            np.where(acted, result.violated, np.nan),
            terminated,
            truncated,
            after,
        )
        return VectorStep(
            groups={self.groups[0].name: step},
            episodes=logs,
            infos=list(self._infos),
            final_infos=final_infos,
            keys=self.state_keys(),
            final_keys=list(self.final_keys),
        )

    def close(self) -> list[EpisodeLog]:
        """Returns the episodes that this interrupts; nothing else is held."""
        self._seed, self._closed = None, True
        logs = [builder.interrupt(self._ticks) for builder in self.builders]
        return [log for log in logs if log]

    def _start_episodes(self, worlds: NDArray[np.int64]) -> list[EpisodeLog]:
        """Reset some worlds; returns the episodes that were still running."""
        assert self._seed is not None
        interrupted = []
        for world in worlds.tolist():
            seed = episode_seed(self._seed, (self.builders[world].episode + 1) * self.num_envs + world)
            self.episodes_started += 1
            self._chance.fill(self._uniforms[world], seed)
            log = self.builders[world].start(self.env_name, self.game.agents, seed=seed, t=self._ticks)
            if log:
                interrupted.append(log)
            self._infos[world] = self._no_infos
        if len(worlds):
            start = self.game.start(self.game.start_dice.roll(self._start_uniforms[worlds]))
            # A new array: the old one belongs to the transition that brought it.
            self._state = self._state.copy()
            self._state[worlds], self._steps[worlds], self._active[worlds] = start, 0, True
            self._obs[worlds] = self.game.observe(start)
        return interrupted

    def _log(
        self, rewards: NDArray[np.float64], told: list[_Told], notes: Sequence[Mapping[str, Any]] | None
    ) -> list[EpisodeLog]:
        """Hand the step to the episode builders; returns the episodes that it closed."""
        agents, team, logs = self.game.agents, range(len(self.game.agents)), []
        for world, (builder, gains, what) in enumerate(
            zip(self.builders, rewards.tolist(), told, strict=True)
        ):
            if notes is not None:
                for key, values in notes[world].items():
                    for agent, value in values.items():
                        builder.note(key, agent, value)
            gained = {agents[i]: gains[i] for i in team if agents[i] in what.infos}
            log = builder.step(
                gained, what.terminations, what.truncations, what.infos, what.live, t=self._ticks
            )
            if log:
                logs.append(log)
        return logs

    def _tell(self, *flags: NDArray[np.bool_]) -> list[_Told]:
        """What single envs would say of acted, violated, terminated and truncated (E, A); equal rows share it."""
        rows = np.ascontiguousarray(np.concatenate(flags, axis=1))
        patterns = rows.view(np.dtype((np.void, rows.shape[1]))).ravel().tolist()
        for pattern in set(patterns) - self._told.keys():
            of_agents = zip(
                self.game.agents, *np.frombuffer(pattern, bool).reshape(4, -1).tolist(), strict=True
            )
            acting = [(agent, *rest) for agent, acted, *rest in of_agents if acted]
            self._told[pattern] = _Told(
                infos={agent: {"cost": float(violated)} for agent, violated, _, _ in acting},
                terminations={agent: terminated for agent, _, terminated, _ in acting},
                truncations={agent: truncated for agent, _, _, truncated in acting},
                live=[agent for agent, _, terminated, truncated in acting if not (terminated or truncated)],
            )
        return [self._told[pattern] for pattern in patterns]

    def _checked(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Actions (E, A), 0 where nobody acts."""
        chosen = np.where(self._active, actions, 0)
        limit = self.game.actions[0]
        if chosen.min() < 0 or chosen.max() >= limit:
            world, agent = np.argwhere((chosen < 0) | (chosen >= limit))[0]
            raise EnvError(
                f"{self.env_name}: {self.game.agents[agent]!r} in copy {world} has no action {chosen[world, agent]}, "
                f"only 0 to {limit - 1}"
            )
        return chosen

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
            active=self._active,
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
