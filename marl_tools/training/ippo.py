"""IPPO: every agent, or every group of equal agents, learns by PPO from its own experience.

Read on: `ippo_config` holds the settings, `learner` one group's policy and critics and their PPO update, `rollout` the
experience, `slices` that of several processes.

References:
    Schulman et al. 2017, Proximal policy optimization algorithms (1707.06347).
    de Witt et al. 2020, Is independent learning all you need in the StarCraft multi-agent challenge? (2011.09533).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import EpisodeLog, VectorEnv
from marl_tools.core.wrappers.cost import cost_is_missing
from marl_tools.training.contracts import Constraint, LearningGuard, Peers, Standing, Update
from marl_tools.training.ippo_config import IPPOConfig
from marl_tools.training.learner import GroupLearner
from marl_tools.training.ops import schedule
from marl_tools.training.overlap import OverlappedCollector, Start
from marl_tools.training.policy import describe_team, strip_prefix
from marl_tools.training.rollout import Collector, GroupRollout, Rollout
from marl_tools.training.slices import SpreadCollector, SpreadEnvs


class IPPO:
    """The trainer: collects with all groups at once, then updates each.

    Args:
        envs: the vector env, or one that is spread over processes; the trainer resets it.
        config: settings.
        seed: everything random in the trainer and in the envs follows from it.
        total_frames: env steps of the whole run, for the schedules.
        constraint: weighs costs against rewards; None: costs are not looked at.
        shield: stands between proposals and envs; None: proposals are played.
        asynchronous: while an update runs, the next rollout is collected by the policies as they were before it. PPO's
            ratio is taken, and clipped, around the policy that acted.
        peers: processes with a trainer each that share the work of every update; they hold the same weights.

    Raises:
        ConfigError: at construction, a shield and ``asynchronous``: its tables are those of the policies that act; or spread
            envs and a shield, ``asynchronous``, or an action distribution that draws for itself.
    """

    def __init__(
        self,
        envs: VectorEnv | SpreadEnvs,
        config: IPPOConfig,
        *,
        seed: int,
        total_frames: int,
        constraint: Constraint | None = None,
        shield: LearningGuard | None = None,
        asynchronous: bool = False,
        peers: Peers | None = None,
    ) -> None:
        if shield and asynchronous:
            raise ConfigError(
                "a shield learns with every update what the policies do: collect its rollouts after updates, not beside them"
            )
        self.envs, self.config, self.total_frames = envs, config, total_frames
        self.constraint, self.shield, self.peers = constraint, shield, peers
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
                peers=peers,
            )
            for group in envs.groups
        }
        if isinstance(envs, SpreadEnvs):
            self._check_spread(asynchronous)
        self.collecting = 0
        """Number of the update that the latest experience, maybe still being collected, is for."""
        self._seed, self._asynchronous = seed, asynchronous
        self._collector: Collector | SpreadCollector | None = None
        self._overlap: OverlappedCollector | None = None

    @property
    def frames_per_update(self) -> int:
        return self.config.rollouts * self.envs.num_envs

    @property
    def frames(self) -> int:
        """Env steps of all that `collect` has given; the envs themselves may be ahead."""
        return self._overlap.frames if self._overlap else self.envs.frames

    @property
    def interrupted(self) -> list[EpisodeLog]:
        """Episodes that `load` could not rebuild."""
        return self._collector.interrupted if isinstance(self._collector, Collector) else []

    def collect(self, on_episode: Callable[[EpisodeLog], None] | None = None) -> Rollout:
        """The experience of the next update, and the episodes that ended in it; see `Collector.collect`."""
        self.collecting = self.updates
        collector = self._collector or self.begin()
        if self._overlap:
            return self._overlap.collect(self.updates, on_episode)
        if self.peers and self.peers.leads:
            # Equal anyway on equal processors.
            self.peers.tell(
                Update({name: own.weights.matrix.detach() for name, own in self.learners.items()})
            )
        return collector.collect(self.learners, on_episode, update=self.updates)

    def begin(self, state: Mapping[str, Any] | None = None) -> Collector | SpreadCollector:
        """Start the envs, or put them where they stood. `collect` and `load` do so where it is due."""
        envs, steps = self.envs, self.config.rollouts
        if isinstance(envs, SpreadEnvs):
            if self.peers and self.peers.leads:
                # Fresh or loaded from a folder that only this process sees: theirs begin where this one does.
                tensors, own = self.state()
                self.peers.tell(Standing(tensors, {**own, "envs": state}))
            self._collector = SpreadCollector(envs, steps, seed=self._seed, state=state)
            return self._collector
        self._collector = Collector(envs, steps, seed=self._seed, guard=self.shield, state=state)
        if self._asynchronous:
            self._overlap = OverlappedCollector(
                self._collector, self.learners, self.generator, acted=self.updates
            )
        return self._collector

    def match(self, word: Update) -> None:
        """Hold the weights that the leading process holds, whatever processor this one runs on."""
        for name, matrix in word.weights.items():
            self.learners[name].weights.matrix.detach().copy_(matrix)

    def _check_spread(self, asynchronous: bool) -> None:
        if self.shield or asynchronous:
            raise ConfigError(
                "a run that is spread over processes goes without a shield, which decides on all copies at once, and without "
                "asynchronous"
            )
        for learner in self.learners.values():
            if learner.noise(0, 0) is None:
                raise ConfigError(
                    f"the actions of {learner.group.name!r} ({learner.network.distribution}) draw their own chance as they are "
                    "played: collect them in one process, or in --workers"
                )

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
            "shield": self.shield.state() if self.shield else None,
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
            self.shield.load(state["shield"])
        self.updates = state["updates"]
        self.rng.bit_generator.state = state["rng"]
        if state["envs"] is not None:
            self.begin(state["envs"])
        if self._overlap and state["acted"] < state["updates"]:
            acting = {name: strip_prefix(tensors, f"{name}/acting/") for name in self.learners}
            self._overlap.load(acting, state["acted"])
