"""Rollouts played in slices of the copies, each slice where its envs live, and joined into what one process would collect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.copies import cut_state, join_states, slices
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import EpisodeLog, VectorEnv
from marl_tools.training.contracts import Actor
from marl_tools.training.rollout import Collector, GroupRollout, Noise, Rollout

_ROWS = ("obs", "actions", "log_probs", "rewards", "costs", "terminated", "ended", "valid")
"""Arrays (T, E, A, ...) of a `GroupRollout`."""


class Part(NamedTuple):
    """What one slice's rollout brought, on its way to where it is joined."""

    groups: dict[str, dict[str, NDArray[Any]]]
    episodes: list[EpisodeLog]
    state: dict[str, Any]
    """`VectorEnv.state` of the slice afterwards."""


class SlicePlayer:
    """Plays whole rollouts in one slice of the copies, as `Collector` does in all.

    Args:
        envs: those copies, numbered as the whole run's.
        copies: which of ``total`` they are.
        steps, seed: see `Collector`.
        state: that of *all* copies, where they are to go on.
    """

    def __init__(
        self,
        envs: VectorEnv,
        copies: range,
        total: int,
        *,
        steps: int,
        seed: int,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        own = None if state is None else cut_state(state, copies, total)
        self.envs = envs
        self._collector = Collector(envs, steps, seed=seed, state=own, first=copies.start)

    def play(self, actors: Mapping[str, Actor], noise: Noise, update: int | None) -> Part:
        """A rollout by these policies; ``noise`` is that of this slice's copies. The arrays are overwritten by the next."""
        rollout = self._collector.collect(actors, update=update, noise=noise)
        groups = {name: _taken(group) for name, group in rollout.groups.items()}
        return Part(groups, rollout.episodes, self.envs.state())


class SpreadEnvs(ABC):
    """All copies of an env, in slices that live in several processes and play whole rollouts there.

    What such a run collects is what it would collect in one process, but for what a network's pass over fewer rows at a
    time may change in the last bit.

    Args:
        groups, env_name: as in a `VectorEnv`.
        num_envs: copies in all slices together.
        parts: how many slices.
    """

    def __init__(self, groups: tuple[AgentGroup, ...], env_name: str, num_envs: int, parts: int) -> None:
        self.groups, self.env_name, self.num_envs = groups, env_name, num_envs
        self.slices = slices(num_envs, parts)
        self._state: dict[str, Any] = {"frames": 0}

    @property
    def frames(self) -> int:
        """Env steps so far, all copies together."""
        return self._state["frames"]

    def state(self) -> dict[str, Any]:
        """That of all copies, as a `VectorEnv` in one process would tell it, after the rollout before."""
        return self._state

    def begin(self, seed: int, steps: int, state: Mapping[str, Any] | None) -> None:
        """Start all copies, or put them where they stood; rollouts will have ``steps`` steps."""
        self._state = join_states(self._begin(seed, steps, state))

    def play(self, actors: Mapping[str, Actor], noise: Noise, update: int | None) -> Sequence[Part]:
        """One rollout of every slice, in the order of the copies."""
        cut = [
            {
                name: None if chance is None else chance[:, copies.start : copies.stop]
                for name, chance in noise.items()
            }
            for copies in self.slices
        ]
        parts = self._play(actors, cut, update)
        self._state = join_states([part.state for part in parts])
        return parts

    @abstractmethod
    def _begin(self, seed: int, steps: int, state: Mapping[str, Any] | None) -> Sequence[dict[str, Any]]:
        """See `begin`; returns the states of the slices."""

    @abstractmethod
    def _play(
        self, actors: Mapping[str, Actor], noise: Sequence[Noise], update: int | None
    ) -> Sequence[Part]:
        """See `play`; the noise is cut up by slice."""

    @abstractmethod
    def close(self) -> list[EpisodeLog]:
        """See `VectorEnv.close`."""


class SpreadCollector:
    """A `Collector` for `SpreadEnvs`: the same rollouts, joined from their parts."""

    def __init__(
        self, envs: SpreadEnvs, steps: int, *, seed: int, state: Mapping[str, Any] | None = None
    ) -> None:
        self.envs, self.steps = envs, steps
        self.rollout = Rollout.empty(envs, steps)
        envs.begin(seed, steps, state)

    def collect(
        self,
        actors: Mapping[str, Actor],
        on_episode: Callable[[EpisodeLog], None] | None = None,
        *,
        update: int | None = None,
    ) -> Rollout:
        """See `Collector.collect`; ``on_episode`` gets the episodes once all parts are here."""
        rollout = self.rollout
        noise = {name: actors[name].noise(self.steps, self.envs.num_envs) for name in rollout.groups}
        parts = self.envs.play(actors, noise, update)
        for name, group in rollout.groups.items():
            group.begin()
            for copies, part in zip(self.envs.slices, parts, strict=True):
                _put(group, copies, part.groups[name])
        # In each copy an episode ends after the one before, in one process as the steps go.
        rollout.episodes = sorted(
            (log for part in parts for log in part.episodes), key=lambda log: (log.t_end, log.env_index)
        )
        if on_episode:
            for log in rollout.episodes:
                on_episode(log)
        return rollout


def _taken(group: GroupRollout) -> dict[str, NDArray[Any]]:
    """The arrays of a rollout by name; where agents were cut off has one row each."""
    arrays = {name: getattr(group, name) for name in (*_ROWS, "last_obs")}
    if group.action_mask is not None:
        arrays["action_mask"] = group.action_mask
    if group.cut:
        arrays["cut"] = np.concatenate([np.stack(rows) for rows in group.cut], axis=1)
        arrays["cut_obs"] = np.concatenate(group.cut_obs)
    return arrays


def _put(group: GroupRollout, copies: range, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Take what `_taken` gave of some copies into the rollout of all."""
    own = slice(copies.start, copies.stop)
    for name in _ROWS:
        getattr(group, name)[:, own] = arrays[name]
    group.last_obs[own] = arrays["last_obs"]
    mask = arrays.get("action_mask")
    if mask is not None and group.action_mask is None:
        group.action_mask = np.ones((*group.valid.shape, mask.shape[-1]), bool)
    if group.action_mask is not None:
        group.action_mask[:, own] = True if mask is None else mask
    if "cut" in arrays:
        times, envs, agents = arrays["cut"]
        group.cut.append((times, envs + copies.start, agents))
        group.cut_obs.append(arrays["cut_obs"])
