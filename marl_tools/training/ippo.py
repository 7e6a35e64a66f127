"""IPPO: every agent, or every group of equal agents, learns by PPO from its own experience.

Read on: `learner` holds one group's policy and critics and their PPO update, `rollout` the experience.

References:
    Schulman et al. 2017, Proximal policy optimization algorithms (1707.06347).
    de Witt et al. 2020, Is independent learning all you need in the StarCraft multi-agent challenge? (2011.09533).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import EpisodeLog, VectorEnv
from marl_tools.core.wrappers.cost import cost_is_missing
from marl_tools.models.distributions import check_action_pdtype
from marl_tools.models.networks import NetworkConfig
from marl_tools.training.contracts import Constraint, LearningGuard
from marl_tools.training.learner import GroupLearner
from marl_tools.training.ops import ScheduleKind, schedule
from marl_tools.training.overlap import OverlappedCollector, Start
from marl_tools.training.policy import describe_team, strip_prefix
from marl_tools.training.rollout import Collector, GroupRollout, Rollout


@dataclass(frozen=True, kw_only=True)
class IPPOConfig:
    """Settings of the trainer.

    Args:
        rollouts: steps of each env copy between two updates; a run's steps are rounded up to whole updates.
        learning_epochs: passes over a rollout.
        mini_batches: parts that each pass is cut into.
        share: "group": agents with equal spaces share one network; "none": a network for each agent.
        learning_rate: of Adam, at the start of the run.
        learning_rate_schedule: "constant", or "linear", "cosine" or "exponential" down to 0 at the end of the run.
        gamma: discount of a reward a step later.
        gae_lambda: of advantages: 0 takes the critic's word, 1 the whole return.
        clip: PPO's: how far the probability of an action may move in an update, as a ratio from 1.
        entropy_coef: weight of the entropy bonus, which keeps the policy exploring.
        entropy_coef_end: where the entropy bonus ends when ``entropy_schedule`` is not constant.
        entropy_schedule: how that bonus changes, as ``learning_rate_schedule``.
        value_coef: weight of the critic's loss.
        max_grad_norm: longer gradients are cut to this norm.
        target_kl: an epoch in which a group's KL divergence exceeds this is the update's last; None: never stop.
        normalise_observations: networks see observations of mean 0 and variance 1.
        normalise_returns: the critic learns returns of mean 0 and variance 1 (PopArt).
        normalise_advantages: those of a batch get mean 0 and variance 1.
        action_pdtype: the action distribution, a name in `models.distributions.ACTION_PDS`; None or "default": Normal for
            numbers, Categorical for choices, Bernoulli for bits.
    """

    rollouts: int = 128
    learning_epochs: int = 4
    mini_batches: int = 4
    learning_rate: float = 2.5e-4
    learning_rate_schedule: ScheduleKind = "constant"
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.01
    entropy_coef_end: float = 0.0
    entropy_schedule: ScheduleKind = "constant"
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float | None = None
    share: Literal["group", "none"] = "group"
    normalise_observations: bool = True
    normalise_returns: bool = True
    normalise_advantages: bool = True
    action_pdtype: str | None = None
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def __post_init__(self) -> None:
        for name in ("rollouts", "learning_epochs", "mini_batches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must be 1 or more")
        for name in ("learning_rate", "clip", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)}: must be a positive number")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)}: must lie between 0 and 1")
        for name in ("entropy_coef", "entropy_coef_end", "value_coef"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)}: must be 0 or more")
        if self.target_kl is not None and not self.target_kl > 0:
            raise ConfigError(f"target_kl={self.target_kl}: must be positive, or None for no KL stop")
        check_action_pdtype(self.action_pdtype)


class IPPO:
    """The trainer: collects with all groups at once, then updates each.

    Args:
        envs: the vector env; the trainer resets it.
        config: settings.
        seed: everything random in the trainer and in the envs follows from it.
        total_frames: env steps of the whole run, for the schedules.
        constraint: weighs costs against rewards; None: costs are not looked at.
        shield: stands between proposals and envs; None: proposals are played.
        asynchronous: while an update runs, the next rollout is collected by the policies as they were before it. PPO's
            ratio is taken, and clipped, around the policy that acted.

    Raises:
        ConfigError: at construction, a shield and ``asynchronous``: its tables are those of the policies that act.
    """

    def __init__(
        self,
        envs: VectorEnv,
        config: IPPOConfig,
        *,
        seed: int,
        total_frames: int,
        constraint: Constraint | None = None,
        shield: LearningGuard | None = None,
        asynchronous: bool = False,
    ) -> None:
        if shield and asynchronous:
            raise ConfigError(
                "a shield learns with every update what the policies do: collect its rollouts after updates, not beside them"
            )
        self.envs, self.config, self.total_frames = envs, config, total_frames
        self.constraint, self.shield = constraint, shield
        self.updates = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.learners = {
            group.name: GroupLearner(
                group,
                config,
                critics=("reward", "cost") if constraint else ("reward",),
                generator=self.generator,
                rng=self.rng,
            )
            for group in envs.groups
        }
        self.collecting = 0
        """Number of the update that the latest experience, maybe still being collected, is for."""
        self._seed, self._asynchronous = seed, asynchronous
        self._collector: Collector | None = None
        self._overlap: OverlappedCollector | None = None

    @property
    def frames_per_update(self) -> int:
        return self.config.rollouts * self.envs.num_envs

    @property
    def frames(self) -> int:
        """Env steps of all that `collect` has given; the envs themselves may be ahead."""
        return self._overlap.frames if self._overlap else self.envs.frames

    def collect(self, on_episode: Callable[[EpisodeLog], None] | None = None) -> Rollout:
        """The experience of the next update, and the episodes that ended in it; see `Collector.collect`."""
        self.collecting = self.updates
        collector = self._collector or self._begin()
        if self._overlap:
            return self._overlap.collect(self.updates, on_episode)
        return collector.collect(self.learners, on_episode, update=self.updates)

    def _begin(self, state: Mapping[str, Any] | None = None) -> Collector:
        """Start the envs, or put them where they stood."""
        steps = self.config.rollouts
        self._collector = Collector(self.envs, steps, seed=self._seed, guard=self.shield, state=state)
        if self._asynchronous:
            self._overlap = OverlappedCollector(
                self._collector, self.learners, self.generator, acted=self.updates
            )
        return self._collector

    def update(self, rollout: Rollout) -> dict[str, dict[str, float]]:
        """Learn from a rollout, asynchronously beside collecting the next one; returns each group's figures."""
        if self._overlap is None:
            return self._learn(rollout)
        ahead = self.frames < self.total_frames
        self.collecting += ahead
        with self._overlap.beside(self.updates, ahead=ahead):
            return self._learn(rollout)

    def _learn(self, rollout: Rollout) -> dict[str, dict[str, float]]:
        config = self.config
        progress = (self.frames - self.frames_per_update) / self.total_frames
        learning_rate = schedule(config.learning_rate_schedule, config.learning_rate, 0.0, progress)
        entropy_coef = schedule(
            config.entropy_schedule, config.entropy_coef, config.entropy_coef_end, progress
        )
        if self.constraint:
            self.constraint.update(rollout.episodes)
        figures = {}
        for name, learner in self.learners.items():
            batch = rollout.groups[name]
            if self.constraint:
                self._require_costs(batch)
            estimates = learner.estimate(batch)
            advantages = estimates["reward"].advantages
            if self.constraint:
                agents = learner.group.agents
                advantages = self.constraint.penalise(agents, advantages, estimates["cost"].advantages)
            figures[name] = learner.update(
                batch,
                advantages,
                estimates,
                learning_rate=learning_rate,
                entropy_coef=entropy_coef,
                lagging=rollout.lag > 0,
            )
        if self.shield:
            self.shield.policies_changed()
        self.updates += 1
        return figures

    def _require_costs(self, batch: GroupRollout) -> None:
        missing = batch.valid & np.isnan(batch.costs)
        if missing.any():
            agent = batch.group.agents[np.argwhere(missing)[0][2]]
            raise cost_is_missing(self.envs.env_name, agent, needed_by="constraint")

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a later process needs to go on from here as if nothing had happened, between two updates.

        Tensors, and plain values with NumPy arrays among them; tensors are the trainer's own. A rollout that is ahead is
        left out: it is collected again.
        """
        begun, overlap = self._collector is not None, self._overlap
        start = overlap.start if overlap else Start.of(self.envs, self.generator, begun=begun)
        tensors = {"generator": start.generator}
        if overlap:
            tensors |= overlap.acting()
        for name, learner in self.learners.items():
            tensors |= {f"{name}/network/{key}": value for key, value in learner.network.state_dict().items()}
            optimiser = learner.optimiser_state()
            tensors |= {f"{name}/optimiser/{key}": value for key, value in optimiser.items()}
        if self.shield:
            tensors["shield"] = torch.from_numpy(self.shield.state().copy())
        networks = {name: learner.network for name, learner in self.learners.items()}
        return tensors, {
            **describe_team(self.envs.groups, networks, self.config.network),
            "env_name": self.envs.env_name,
            "updates": self.updates,
            "frames": start.frames,
            "envs": start.envs,
            "acted": overlap.acted if overlap else self.updates,
            "rng": self.rng.bit_generator.state,
            "constraint": self.constraint.state() if self.constraint else None,
        }

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            ConfigError: the checkpoint is of other agents, spaces or networks than this trainer's.
        """
        networks = {name: learner.network for name, learner in self.learners.items()}
        own = describe_team(self.envs.groups, networks, self.config.network)
        for field_name, value in own.items():
            if state.get(field_name) != value:
                raise ConfigError(
                    f"the checkpoint's {field_name} differ from this run's: {state.get(field_name)} and {value}. "
                    "Resume with the env and network settings that it was trained with."
                )
        self.generator.set_state(tensors["generator"])
        for name, learner in self.learners.items():
            learner.network.load_state_dict(strip_prefix(tensors, f"{name}/network/"))
            learner.load_optimiser(strip_prefix(tensors, f"{name}/optimiser/"))
        if self.constraint:
            self.constraint.load(state["constraint"])
        if self.shield:
            self.shield.load(tensors["shield"].numpy())
        self.updates = state["updates"]
        self.rng.bit_generator.state = state["rng"]
        if state["envs"] is not None:
            self._begin(state["envs"])
        if self._overlap and state["acted"] < state["updates"]:
            acting = {name: strip_prefix(tensors, f"{name}/acting/") for name in self.learners}
            self._overlap.load(acting, state["acted"])
