"""`ArrayVectorEnv`: what vector envs that keep all their worlds in arrays have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.checks import at_least
from marl_tools.core.episodes import EpisodeBatch
from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.seeding import episode_seed
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import AgentID, EpisodeLog, Split, VectorStep


class ArrayVectorEnv(ABC):
    """The clock, the seeds and the logs of a native `VectorEnv`, which plays the episodes that `SerialVectorEnv` plays.

    Args:
        env_name: the name in the logs.
        agents: those of every world, all there from the start of an episode.
        groups: the same agents by their spaces.
        num_envs: how many worlds.
        split: "train" or "eval", noted in each log.
        first: index of the first world, and
        total: how many there are in the whole run, where others are stepped elsewhere; by default all are here.

    Raises:
        ConfigError: at construction, fewer than one world.
        EnvError: a step before `reset`, or a reset after `close`.
    """

    def __init__(
        self,
        env_name: str,
        agents: Sequence[AgentID],
        groups: tuple[AgentGroup, ...],
        num_envs: int,
        split: Split,
        first: int = 0,
        total: int | None = None,
    ) -> None:
        self.env_name, self.num_envs, self.groups = env_name, at_least(1)("num_envs", num_envs), groups
        self._first, self._total = first, total or num_envs
        self.episodes_started = 0
        self._logs = EpisodeBatch(env_name, agents, num_envs, split=split, first=first)
        self._frames = 0
        self._seed: int | None = None
        self._closed = False

    @property
    def frames(self) -> int:
        """Env steps so far, all worlds together."""
        return self._frames

    def resume(self, *, frames: int, episodes_started: int) -> None:
        """Count on from an earlier run's figures; call it before `reset`."""
        self._frames, self.episodes_started = frames, episodes_started
        self._logs.resume(episodes_started)

    def state(self) -> dict[str, Any]:
        """See `VectorEnv.state`: the arrays themselves; nothing has to be played again."""
        return {
            "frames": self._frames,
            "episodes_started": self.episodes_started,
            "episodes": self._logs.state(),
            "worlds": self._world_state(),
        }

    def restore(self, seed: int, state: Mapping[str, Any]) -> VectorStep:
        """See `VectorEnv.restore`; no episode is ever lost.

        Raises:
            ConfigError: the state is of another number of worlds, or of another kind of env.
        """
        self._begin(seed)
        episodes, worlds, own = state.get("episodes"), state.get("worlds"), self._world_state()
        if not episodes or not worlds or any(worlds[name].shape != own[name].shape for name in own):
            raise ConfigError(
                f"this is no state of {self.num_envs} native worlds of {self.env_name}: use the num_envs and native that it "
                "was saved with"
            )
        self._frames, self.episodes_started = state["frames"], state["episodes_started"]
        self._logs.load(episodes)
        self._load_worlds(worlds, episodes["seeds"])
        return self._stand()

    @abstractmethod
    def _world_state(self) -> dict[str, NDArray[Any]]:
        """The arrays (E, ...), copied, from which everything else about the worlds follows."""

    @abstractmethod
    def _load_worlds(self, arrays: Mapping[str, NDArray[Any]], seeds: Sequence[int]) -> None:
        """Inverse of `_world_state`, for worlds whose episodes have these seeds."""

    @abstractmethod
    def _stand(self, episodes: Sequence[EpisodeLog] = ()) -> VectorStep:
        """Where the worlds stand, as a step in which nothing has happened yet but that some episodes were interrupted."""

    def close(self) -> list[EpisodeLog]:
        """Returns the episodes that this interrupts; nothing else is held."""
        self._seed, self._closed = None, True
        return self._logs.interrupt(t=self._frames)

    def _begin(self, seed: int) -> None:
        if self._closed:
            raise EnvError(f"{self.env_name} was closed and cannot be reset: build the vector env anew")
        self._seed = seed

    def _require_running(self) -> None:
        if self._seed is None:
            raise EnvError(f"{self.env_name} is not running: call reset(seed) before step")

    def _open_episodes(self, worlds: NDArray[np.int64]) -> tuple[list[int], list[EpisodeLog]]:
        """The seeds of the next episodes of some worlds, now open, and the logs of those that this interrupted."""
        assert self._seed is not None
        numbers = (self._logs.numbers[worlds] + 1) * self._total + self._first + worlds
        seeds = [episode_seed(self._seed, number) for number in numbers.tolist()]
        self.episodes_started += len(seeds)
        return seeds, self._logs.start(worlds, seeds, t=self._frames)

    def _check_choices(
        self, agents: Sequence[AgentID], actions: NDArray[Any], limit: int
    ) -> NDArray[np.int64]:
        """Actions (E, A) of some agents as indices below ``limit``.

        Raises:
            EnvError: one is not.
        """
        chosen = np.asarray(actions)
        if chosen.min() < 0 or chosen.max() >= limit:
            world, agent = np.argwhere((chosen < 0) | (chosen >= limit))[0]
            raise EnvError(
                f"{self.env_name}: {agents[agent]!r} in copy {self._first + world} has no action {chosen[world, agent]}, "
                f"only 0 to {limit - 1}"
            )
        return chosen
