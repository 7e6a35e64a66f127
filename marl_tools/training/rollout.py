"""Experience of one update: preallocated arrays per group, filled step by step from a vector env."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import NonFiniteError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import EpisodeLog, GroupStep, VectorEnv, VectorStep
from marl_tools.training.contracts import Actor, Critic, Guard


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
        self._cut: list[tuple[NDArray[np.intp], ...]] = []
        self._cut_obs: list[NDArray[Any]] = []

    def before(self, t: int, step: GroupStep, mask: NDArray[np.bool_] | None) -> None:
        """Take in what is acted on at step t, and what may be sampled."""
        if t == 0:
            self._cut.clear()
            self._cut_obs.clear()
        self.obs[t] = step.obs
        self.valid[t] = step.active
        if mask is not None:
            if self.action_mask is None:
                self.action_mask = np.ones((*self.valid.shape, mask.shape[-1]), bool)
            self.action_mask[t] = mask

    def after(self, t: int, step: GroupStep) -> None:
        """Take in what step t brought."""
        self.rewards[t] = step.rewards
        self.costs[t] = step.costs
        self.terminated[t] = step.terminated
        np.logical_or(step.terminated, step.truncated, out=self.ended[t])
        # The trace of an agent that was not there must not run into the row before its birth.
        self.ended[t] |= ~self.valid[t]
        if len(step.final_env):
            rows = step.truncated[step.final_env, step.final_agent]
            env, agent = step.final_env[rows], step.final_agent[rows]
            self._cut.append((np.full_like(env, t), env, agent))
            self._cut_obs.append(step.final_obs[rows])

    def evaluate(self, critic: Critic) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A critic's values of every row and of what truly came after it, both (T, E, A).

        The second is the next row's value, or at a truncation that of the true final observation. At a
        termination it means nothing.
        """
        steps, envs = self.valid.shape[:2]
        flat = self.obs.reshape(steps * envs, *self.obs.shape[2:])
        values = critic.values(flat).reshape(self.valid.shape)
        next_values = np.concatenate([values[1:], critic.values(self.last_obs)[None]])
        if self._cut:
            times, copies, agents = (np.concatenate(rows) for rows in zip(*self._cut, strict=True))
            next_values[times, copies, agents] = critic.values_of(np.concatenate(self._cut_obs), agents)
        return values, next_values


@dataclass(slots=True)
class Rollout:
    """All groups' experience of one update, and the episodes that ended in it."""

    groups: dict[str, GroupRollout]
    episodes: list[EpisodeLog] = field(default_factory=list)


class Collector:
    """Plays ``steps`` steps at a time in a vector env and remembers where it stopped.

    Raises:
        NonFiniteError: an observation or a reward is NaN or infinite; env, copy and agent are named.
    """

    def __init__(self, envs: VectorEnv, steps: int, *, seed: int, guard: Guard | None = None) -> None:
        self.envs, self.steps, self.guard = envs, steps, guard
        self.rollout = Rollout(
            {group.name: GroupRollout(group, steps, envs.num_envs) for group in envs.groups}
        )
        self._last: VectorStep = envs.reset(seed)
        self._check(self._last)
        if guard:
            guard.begin(self._last)

    def collect(
        self, actors: Mapping[str, Actor], on_episode: Callable[[EpisodeLog], None] | None = None
    ) -> Rollout:
        """Fill and return the rollout; its arrays are overwritten by the next call.

        ``on_episode`` gets each episode when it ends: those of a rollout that is never finished are not lost.
        """
        rollout, step = self.rollout, self._last
        rollout.episodes = []
        guard = self.guard
        noise = {name: actors[name].noise(self.steps, self.envs.num_envs) for name in rollout.groups}
        for t in range(self.steps):
            masks = guard.masks(step) if guard and guard.masks_actions else {}
            actions: Mapping[str, NDArray[Any]] = {
                name: self._act(t, group, step.groups[name], masks.get(name), actors[name], noise[name])
                for name, group in rollout.groups.items()
            }
            notes = None
            if guard:
                actions, notes = guard.execute(step, actions)
            step = self.envs.step(actions, notes)
            for log in step.episodes:
                rollout.episodes.append(log)
                if on_episode:
                    on_episode(log)
            self._check(step)
            for name, group in rollout.groups.items():
                group.after(t, step.groups[name])
            if guard:
                for name, added in guard.observe(step).items():
                    rollout.groups[name].rewards[t] += added
        for name, group in rollout.groups.items():
            group.last_obs[...] = step.groups[name].obs
        self._last = step
        return rollout

    def _act(
        self,
        t: int,
        group: GroupRollout,
        now: GroupStep,
        mask: NDArray[np.bool_] | None,
        actor: Actor,
        noise: NDArray[np.float32] | None,
    ) -> NDArray[Any]:
        """Sample a group's actions, kept with their log-probabilities: what is learned from is the proposal."""
        mask = now.action_mask if mask is None else mask
        group.before(t, now, mask)
        group.actions[t], group.log_probs[t] = actor.act(now.obs, mask, None if noise is None else noise[t])
        return group.actions[t]

    def _check(self, step: VectorStep) -> None:
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
                        f"{self.envs.env_name}: {what} of agent {group.agents[row[1]]!r} in copy {row[0]} is NaN or "
                        f"infinite at env step {self.envs.frames}"
                    )
