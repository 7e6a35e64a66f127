"""Experience of one update: preallocated arrays per group, filled step by step from a vector env."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError, NonFiniteError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import EnvCopies, EpisodeLog, GroupStep, VectorEnv, VectorStep
from marl_tools.training.contracts import Actor, Critic, Guard

Noise = Mapping[str, NDArray[np.float32] | None]
"""Chance for each group's actions in a whole rollout, (T, E, A, ...); see `contracts.Actor.noise`."""


class GroupRollout:
    """T steps of E envs for the A agents of one group; row (t, e, a) counts only where ``valid``."""

    def __init__(self, group: AgentGroup, steps: int, num_envs: int) -> None:
        spaces, shape = group.spaces, (steps, num_envs, len(group.agents))
        self.group = group
        self.obs = np.zeros((*shape, *spaces.obs_shape), spaces.obs_dtype)
        self.actions = np.zeros((*shape, *spaces.action_shape), spaces.action_dtype)
        self.action_mask: NDArray[np.bool_] | None = None
        self.log_probs = np.zeros(shape, np.float32)
        self.rewards = np.zeros(shape)
        self.costs = np.full(shape, np.nan)
        self.terminated = np.zeros(shape, bool)
        self.ended = np.zeros(shape, bool)
        self.valid = np.zeros(shape, bool)
        self.last_obs = np.zeros_like(self.obs[0])
        self.cut: list[tuple[NDArray[np.intp], ...]] = []
        """When, in which copies and which agents were cut off."""
        self.cut_obs: list[NDArray[Any]] = []

    def begin(self) -> None:
        """Forget where agents were cut off in the rollout before."""
        self.cut.clear()
        self.cut_obs.clear()

    def before(self, t: int, copies: slice, step: GroupStep, mask: NDArray[np.bool_] | None) -> None:
        """Take in what is acted on in some copies at step t, and what may be sampled."""
        self.obs[t, copies] = step.obs
        self.valid[t, copies] = step.active
        if mask is not None:
            if self.action_mask is None:
                self.action_mask = np.ones((*self.valid.shape, mask.shape[-1]), bool)
            self.action_mask[t, copies] = mask

    def after(self, t: int, copies: slice, step: GroupStep, lost: NDArray[np.bool_] | None) -> None:
        """Take in what step t brought there; nobody learns from what was ``lost``."""
        self.rewards[t, copies] = step.rewards
        self.costs[t, copies] = step.costs
        self.terminated[t, copies] = step.terminated
        valid, ended = self.valid[t, copies], self.ended[t, copies]
        if lost is not None:
            valid[lost] = False
        np.logical_or(step.terminated, step.truncated, out=ended)
        # The trace of an agent that was not there must not run into the row before its birth.
        ended |= ~valid
        if len(step.final_env):
            rows = step.truncated[step.final_env, step.final_agent]
            env, agent = step.final_env[rows] + copies.start, step.final_agent[rows]
            self.cut.append((np.full_like(env, t), env, agent))
            self.cut_obs.append(step.final_obs[rows])

    def evaluate(self, critic: Critic) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A critic's values of every row and of what truly came after it, both (T, E, A).

        The second is the next row's value, or at a truncation that of the true final observation. At a
        termination it means nothing.
        """
        steps, envs = self.valid.shape[:2]
        flat = self.obs.reshape(steps * envs, *self.obs.shape[2:])
        values = critic.values(flat).reshape(self.valid.shape)
        next_values = np.concatenate([values[1:], critic.values(self.last_obs)[None]])
        if self.cut:
            times, copies, agents = (np.concatenate(rows) for rows in zip(*self.cut, strict=True))
            next_values[times, copies, agents] = critic.values_of(np.concatenate(self.cut_obs), agents)
        return values, next_values


@dataclass(slots=True)
class Rollout:
    """All groups' experience of one update, and the episodes that ended in it."""

    groups: dict[str, GroupRollout]
    episodes: list[EpisodeLog] = field(default_factory=list)
    lag: int = 0
    """Updates between the policies that played it and those that learn from it."""

    @classmethod
    def empty(cls, envs: EnvCopies, steps: int) -> Rollout:
        """Room for so many steps of every env."""
        return cls({group.name: GroupRollout(group, steps, envs.num_envs) for group in envs.groups})


class _Undivided:
    """Any vector env as one of a single part."""

    def __init__(self, envs: VectorEnv) -> None:
        self._envs, self.parts = envs, (slice(0, envs.num_envs),)

    def send(
        self, part: int, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        self._step = self._envs.step(actions, notes)

    def receive(self, part: int) -> VectorStep:
        return self._step


class Collector:
    """Plays ``steps`` steps at a time in a vector env and remembers where it stopped.

    The parts of a `SplitVectorEnv` take turns: while one steps, the next one's actions are computed. All noise is drawn
    before, so it does not matter for what is sampled.

    Args:
        envs: reset here, or with ``state``, what their `VectorEnv.state` returned, put where they stood.
        steps: of each rollout.
        seed: of the envs.
        guard: stands between the policies and the envs.
        first: index of the first copy, where others are played elsewhere.

    Raises:
        ConfigError: at construction, several parts and a guard, which decides on all copies at once.
        NonFiniteError: an observation or a reward is NaN or infinite; env, copy and agent are named.
    """

    def __init__(
        self,
        envs: VectorEnv,
        steps: int,
        *,
        seed: int,
        guard: Guard | None = None,
        state: Mapping[str, Any] | None = None,
        first: int = 0,
    ) -> None:
        self.envs, self.steps, self.guard, self._first = envs, steps, guard, first
        self._split: Any = envs if hasattr(envs, "parts") else _Undivided(envs)
        self._parts: tuple[slice, ...] = self._split.parts
        if guard and len(self._parts) > 1:
            raise ConfigError("a shield decides on all copies at once: step them without a pipeline")
        self.rollout = Rollout.empty(envs, steps)
        start = envs.reset(seed) if state is None else envs.restore(seed, state)
        self._check(start, 0)
        if guard and state is None:
            guard.begin(start)
        elif guard and start.lost is not None:
            guard.begin(start, start.lost)
        self.interrupted = start.episodes
        """What could not be gone on with; it is logged with the next rollout."""
        self._now = [start] if len(self._parts) == 1 else [_some(start, copies) for copies in self._parts]

    def collect(
        self,
        actors: Mapping[str, Actor],
        on_episode: Callable[[EpisodeLog], None] | None = None,
        *,
        update: int | None = None,
        noise: Noise | None = None,
    ) -> Rollout:
        """Fill and return the rollout; its arrays are overwritten by the next call.

        ``on_episode`` gets each episode when it ends: those of a rollout that is never finished are not lost. ``update`` is
        the number of the one that learns from it, noted in the episodes. ``noise`` is drawn here unless it is given.
        """
        rollout = self.rollout
        rollout.episodes = []

        def keep(log: EpisodeLog) -> None:
            log = replace(log, update=update)
            rollout.episodes.append(log)
            if on_episode:
                on_episode(log)

        for log in self.interrupted:
            keep(log)
        self.interrupted = []
        if noise is None:
            noise = {name: actors[name].noise(self.steps, self.envs.num_envs) for name in rollout.groups}
        for group in rollout.groups.values():
            group.begin()
        for part in range(len(self._parts)):
            self._act(0, part, actors, noise)
        for t in range(self.steps):
            for part in range(len(self._parts)):
                step = self._now[part] = self._split.receive(part)
                for log in step.episodes:
                    keep(log)
                self._take_in(t, part, step)
                if t + 1 < self.steps:
                    self._act(t + 1, part, actors, noise)
        if self.guard:
            for name, added in self.guard.shaping(self.steps).items():
                rollout.groups[name].rewards += added
        return rollout

    def _act(self, t: int, part: int, actors: Mapping[str, Actor], noise: Noise) -> None:
        """Let one part play actions; sampled ones are kept with their log-probabilities: the proposals are learned from."""
        copies, now, guard = self._parts[part], self._now[part], self.guard
        likely = partial(_probabilities, actors, now)
        masks = guard.masks(now, likely) if guard and guard.masks_actions else {}
        actions: dict[str, NDArray[Any]] = {}
        for name, group in self.rollout.groups.items():
            step, chance = now.groups[name], noise[name]
            mask = masks.get(name, step.action_mask)
            group.before(t, copies, step, mask)
            group.actions[t, copies], group.log_probs[t, copies] = actors[name].act(
                step.obs, mask, None if chance is None else chance[t, copies]
            )
            actions[name] = group.actions[t, copies]
        if guard:
            self._split.send(part, *guard.execute(now, actions, likely))
        else:
            self._split.send(part, actions)

    def _take_in(self, t: int, part: int, step: VectorStep) -> None:
        """What step t brought to one part."""
        copies = self._parts[part]
        self._check(step, copies.start)
        for name, group in self.rollout.groups.items():
            group.after(t, copies, step.groups[name], step.lost)
            if t + 1 == self.steps:
                group.last_obs[copies] = step.groups[name].obs
        if self.guard:
            self.guard.observe(step)

    def _check(self, step: VectorStep, first: int) -> None:
        for group in self.envs.groups:
            now = step.groups[group.name]
            for what, values in (
                ("observation", now.obs),
                ("reward", now.rewards),
                ("final observation", now.final_obs),
            ):
                if values.dtype.kind == "f" and not np.isfinite(values).all():
                    row = np.argwhere(~np.isfinite(values))[0]
                    if what == "final observation":
                        row = (now.final_env[row[0]], now.final_agent[row[0]])
                    raise NonFiniteError(
                        f"{self.envs.env_name}: {what} of agent {group.agents[row[1]]!r} in copy {self._first + first + row[0]} is NaN or "
                        f"infinite at env step {self.envs.frames}"
                    )


def _probabilities(
    actors: Mapping[str, Actor],
    step: VectorStep,
    name: str,
    copies: NDArray[np.intp],
    agents: NDArray[np.intp],
) -> NDArray[np.floating]:
    """See `contracts.Probabilities`; the env's own mask is heeded."""
    group = step.groups[name]
    mask = None if group.action_mask is None else group.action_mask[copies, agents]
    return actors[name].probabilities(group.obs[copies, agents], agents, mask)


def _some(step: VectorStep, copies: slice) -> VectorStep:
    """The start of some copies in that of all."""
    rows = ("obs", "active", "action_mask")
    groups = {
        name: replace(
            group,
            **{field: array[copies] for field in rows if (array := getattr(group, field)) is not None},
        )
        for name, group in step.groups.items()
    }
    return replace(step, groups=groups)
