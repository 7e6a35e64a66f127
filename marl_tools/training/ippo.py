"""IPPO: every agent, or every group of equal agents, learns by PPO from its own experience.

Read top to bottom: the settings, one group's learner (act, advantages, update), the trainer that joins the groups.

References:
    Schulman et al. 2017, Proximal policy optimization algorithms (1707.06347).
    de Witt et al. 2020, Is independent learning all you need in the StarCraft multi-agent challenge? (2011.09533).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl_tools.core.errors import ConfigError, NonFiniteError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import AgentID, EpisodeLog, VectorEnv
from marl_tools.models.networks import ActorCritic, NetworkConfig
from marl_tools.training.batches import FlatRollout, LaneCritic, from_lanes, lane_rows, pad, to_lanes
from marl_tools.training.ops import ScheduleKind, explained_variance, gae, schedule
from marl_tools.training.policy import describe_team, strip_prefix
from marl_tools.training.rollout import Collector, GroupRollout, Guard, Rollout

_REMEDY = "Lower the learning rate, or look for huge rewards"


@dataclass(frozen=True, kw_only=True)
class IPPOConfig:
    """Settings of the trainer.

    Args:
        rollouts: steps of each env copy between two updates.
        learning_epochs: passes over a rollout.
        mini_batches: parts that each pass is cut into.
        share: "group": agents with equal spaces share one network; "none": a network for each agent.
        learning_rate_schedule: "constant", or "linear" or "cosine" down to 0 at the last step of the run.
        entropy_coef_end: where the entropy bonus ends when ``entropy_schedule`` is not constant.
        target_kl: an epoch in which a group's KL divergence exceeds this is the update's last; None: never stop.
        normalise_returns: the critic learns returns of mean 0 and variance 1 (PopArt).
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


class Constraint(Protocol):
    """What the trainer asks of a constraint; `safety.lagrange.LagrangeConstraint` is one."""

    def update(self, episodes: Sequence[EpisodeLog]) -> None:
        """Look at the episodes that have just ended, once per rollout."""
        ...

    def penalise(
        self,
        agents: Sequence[AgentID],
        reward_advantages: NDArray[np.float32],
        cost_advantages: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """The policy's advantages, all arrays (T, E, A)."""
        ...

    def figures(self) -> dict[str, Any]: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


class LearningGuard(Guard, Protocol):
    """A guard that learns on the way and belongs to the checkpoint."""

    def policies_changed(self) -> None:
        """The policies have just been updated."""
        ...

    def state(self) -> NDArray[np.uint8]: ...

    def load(self, state: NDArray[np.uint8]) -> None: ...


class Estimate(NamedTuple):
    """What one critic makes of a rollout; arrays (T, E, A)."""

    values: NDArray[np.float32]
    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]


class GroupLearner:
    """One group's networks and their optimiser: a lane shared by all agents, or a lane an agent."""

    def __init__(
        self,
        group: AgentGroup,
        config: IPPOConfig,
        *,
        critics: Sequence[str] = ("reward",),
        generator: torch.Generator,
        rng: np.random.Generator,
    ) -> None:
        self.group, self.config = group, config
        self.lanes = 1 if config.share == "group" else len(group.agents)
        self.network = ActorCritic(
            group.spaces,
            self.lanes,
            config.network,
            critics=critics,
            normalise_observations=config.normalise_observations,
            generator=generator,
        )
        self.optimiser = torch.optim.Adam(
            self.network.parameters(), lr=config.learning_rate, eps=1e-5, fused=True
        )
        self.critics = {name: LaneCritic(self.network, name) for name in critics}
        self.generator, self.rng = generator, rng

    @torch.inference_mode()
    def act(
        self, obs: NDArray[Any], mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Sampled actions (E, A, ...) and their log-probabilities (E, A)."""
        distribution = self.network.distribution
        params = self.network.policy(
            to_lanes(obs, self.lanes), None if mask is None else to_lanes(mask, self.lanes)
        )
        actions = distribution.sample(params, self.generator)
        return from_lanes(actions, len(self.group.agents)), from_lanes(
            distribution.log_prob(params, actions), len(self.group.agents)
        )

    def estimate(self, rollout: GroupRollout) -> dict[str, Estimate]:
        """Values, advantages and returns by each critic: "reward" and, under a constraint, "cost"."""
        return {name: self._estimate(rollout, critic) for name, critic in self.critics.items()}

    def _estimate(self, rollout: GroupRollout, critic: LaneCritic) -> Estimate:
        signal = rollout.rewards if critic.name == "reward" else np.where(rollout.valid, rollout.costs, 0.0)
        head = self.network.head(critic.name)
        if self.config.normalise_returns and not head.norm.count.any():
            head.shift(self._level(rollout, signal))
        values, next_values = rollout.evaluate(critic)
        advantages = gae(
            signal,
            values,
            next_values,
            rollout.terminated,
            rollout.ended,
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
        ).astype(np.float32)
        return Estimate(values, advantages, advantages + values)

    def _level(self, rollout: GroupRollout, signal: NDArray[np.floating]) -> Tensor:
        """The value that the signal's mean in this rollout would have for ever, one a lane.

        A critic starts there. One that starts at 0, far above the truth, learns first that states late in an
        episode, whose traces are cut off soonest, are better than early ones, and the policy runs after them.
        """
        levels = []
        for rows in lane_rows(rollout.valid, self.lanes):
            terminated = rollout.terminated.reshape(-1)[rows]
            going_on = self.config.gamma * (1 - terminated.mean()) if len(rows) else 1.0
            levels.append(signal.reshape(-1)[rows].mean() / (1 - going_on) if going_on < 1 else 0.0)
        return torch.tensor(levels, dtype=torch.float32)

    def update(
        self,
        rollout: GroupRollout,
        advantages: NDArray[np.float32],
        estimates: Mapping[str, Estimate],
        *,
        learning_rate: float,
        entropy_coef: float,
    ) -> dict[str, float]:
        """Several epochs of minibatch PPO over the valid rows; returns the figures of ``updates.jsonl``.

        ``advantages`` (T, E, A) are the policy's, ``estimates`` teach the critics.
        """
        rows = lane_rows(rollout.valid, self.lanes)
        if not any(map(len, rows)):
            # Nobody of this group lived through any step of this rollout.
            return {"rows": 0}
        every, weights = pad(rows)
        if self.config.normalise_returns:
            for name, estimate in estimates.items():
                self.network.head(name).update(torch.from_numpy(estimate.returns.reshape(-1))[every], weights)
        flat = FlatRollout(rollout, advantages, {name: est.returns for name, est in estimates.items()})
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        sums: dict[str, float] = {}
        batches = epochs = 0
        for _ in range(self.config.learning_epochs):
            epochs += 1
            kls = []
            for index, share in self._minibatches(rows):
                figures = self._minibatch(flat, index, share, entropy_coef)
                batches += 1
                kls.append(figures["approx_kl"])
                for name, value in figures.items():
                    sums[name] = sums.get(name, 0.0) + value
            if self.config.target_kl is not None and float(np.mean(kls)) > self.config.target_kl:
                break
        if self.network.obs_norm is not None:
            self.network.obs_norm.update(flat.obs[every], weights)
        valid, reward = rollout.valid, estimates["reward"]
        return {
            **{name: value / max(1, batches) for name, value in sums.items()},
            "explained_variance": explained_variance(reward.values[valid], reward.returns[valid]),
            "epochs": epochs,
            "rows": int(valid.sum()),
            "learning_rate": learning_rate,
            "entropy_coef": entropy_coef,
        }

    def _minibatches(self, rows: list[NDArray[np.intp]]) -> list[tuple[Tensor, Tensor]]:
        """Shuffle each lane's rows and cut them into equal parts: flat indices and weights, both (L, B)."""
        shuffled = [np.array_split(self.rng.permutation(lane), self.config.mini_batches) for lane in rows]
        return [pad(parts) for parts in zip(*shuffled, strict=True) if any(map(len, parts))]

    def _minibatch(
        self, flat: FlatRollout, index: Tensor, weights: Tensor, entropy_coef: float
    ) -> dict[str, float]:
        """One gradient step; ``weights`` is 0 for padding. Losses are means per lane, summed over lanes."""
        config, network = self.config, self.network
        share = weights / weights.sum(1, keepdim=True).clamp(min=1)
        params, values = network(flat.obs[index], None if flat.mask is None else flat.mask[index])
        log_ratio = network.distribution.log_prob(params, flat.actions[index]) - flat.log_probs[index]
        # Padding is a row of some other agent: its ratio may overflow, and 0 times infinity is NaN.
        log_ratio = log_ratio.masked_fill(weights == 0, 0.0)
        ratio = log_ratio.exp()
        advantages = flat.advantages[index]
        if config.normalise_advantages:
            mean = (advantages * share).sum(1, keepdim=True)
            variance = ((advantages - mean) ** 2 * share).sum(1, keepdim=True)
            advantages = (advantages - mean) / (variance.sqrt() + 1e-8)
        policy_loss = -torch.minimum(
            advantages * ratio, advantages * ratio.clamp(1 - config.clip, 1 + config.clip)
        )
        value_loss = torch.zeros_like(ratio)
        for name, predicted in values.items():
            norm = network.head(name).norm
            value_loss += 0.5 * (predicted - (flat.returns[name][index] - norm.mean) / norm.std) ** 2
        entropy = network.distribution.entropy(params)
        row_loss = (policy_loss + config.value_coef * value_loss - entropy_coef * entropy) * share
        loss = row_loss.sum()
        if not torch.isfinite(loss):
            raise NonFiniteError(self._name_bad_row(row_loss, index, flat.shape))
        self.optimiser.zero_grad()
        loss.backward()
        grad_norm = self._clip_gradients()
        self.optimiser.step()
        with torch.no_grad():
            lanes = self.lanes
            return {
                "loss": loss.item() / lanes,
                "policy_loss": (policy_loss * share).sum().item() / lanes,
                "value_loss": (value_loss * share).sum().item() / lanes,
                "entropy": (entropy * share).sum().item() / lanes,
                # Schulman's low-variance estimator, http://joschu.net/blog/kl-approx.html
                "approx_kl": ((ratio - 1 - log_ratio) * share).sum().item() / lanes,
                "clip_fraction": (((ratio - 1).abs() > config.clip) * share).sum().item() / lanes,
                "grad_norm": grad_norm,
            }

    def _clip_gradients(self) -> float:
        """Scale each lane's gradient to at most ``max_grad_norm``; returns the mean norm before."""
        grads = [p.grad.view(self.lanes, -1) for p in self.network.parameters() if p.grad is not None]
        norms = torch.stack([grad.square().sum(1) for grad in grads]).sum(0).sqrt()
        if not torch.isfinite(norms).all():
            lane = int((~torch.isfinite(norms)).nonzero()[0])
            who = self.group.agents[lane] if self.lanes > 1 else self.group.name
            # Before the optimiser's step, so that what is saved now is still sound.
            raise NonFiniteError(f"the gradient of {who!r} is NaN or infinite. {_REMEDY}")
        scale = (self.config.max_grad_norm / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1)
        for grad in grads:
            grad.mul_(scale)
        return norms.mean().item()

    def _name_bad_row(self, row_loss: Tensor, index: Tensor, shape: tuple[int, ...]) -> str:
        lane, column = (~torch.isfinite(row_loss)).nonzero()[0].tolist()
        t, env, agent = np.unravel_index(int(index[lane, column]), shape)
        return (
            f"the loss of agent {self.group.agents[agent]!r} is NaN or infinite at rollout step {t} of env copy {env}. "
            f"{_REMEDY}"
        )


class IPPO:
    """The trainer: collects with all groups at once, then updates each.

    Args:
        envs: the vector env; the trainer resets it.
        config: settings.
        seed: everything random in the trainer and in the envs follows from it.
        total_frames: env steps of the whole run, for the schedules.
        constraint: weighs costs against rewards; None: costs are not looked at.
        shield: stands between proposals and envs; None: proposals are played.
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
    ) -> None:
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
        self._seed = seed
        self._collector: Collector | None = None

    @property
    def frames_per_update(self) -> int:
        return self.config.rollouts * self.envs.num_envs

    def collect(self, on_episode: Callable[[EpisodeLog], None] | None = None) -> Rollout:
        """The experience of the next update, and the episodes that ended in it; see `Collector.collect`."""
        if self._collector is None:
            self._collector = Collector(self.envs, self.config.rollouts, seed=self._seed, guard=self.shield)
        return self._collector.collect(self.learners, on_episode)

    def update(self, rollout: Rollout) -> dict[str, dict[str, float]]:
        """Learn from a rollout; returns each group's figures."""
        config = self.config
        progress = (self.envs.frames - self.frames_per_update) / self.total_frames
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
                batch, advantages, estimates, learning_rate=learning_rate, entropy_coef=entropy_coef
            )
        if self.shield:
            self.shield.policies_changed()
        self.updates += 1
        return figures

    def _require_costs(self, batch: GroupRollout) -> None:
        missing = batch.valid & np.isnan(batch.costs)
        if missing.any():
            agent = batch.group.agents[np.argwhere(missing)[0][2]]
            raise ConfigError(
                f"{self.envs.env_name} gives agent {agent!r} no cost, which the constraint needs: "
                "put it into infos[agent]['cost'], or add it with AddCost (--cost package.module:function)"
            )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a later process needs to go on from here, as tensors and plain values.

        Open episodes are not part of it: a resumed run starts fresh ones.
        """
        tensors = {"generator": self.generator.get_state()}
        for name, learner in self.learners.items():
            tensors |= {f"{name}/network/{key}": value for key, value in learner.network.state_dict().items()}
            for index, slots in learner.optimiser.state_dict()["state"].items():
                tensors |= {f"{name}/optimiser/{index}/{slot}": value for slot, value in slots.items()}
        if self.shield:
            tensors["shield"] = torch.from_numpy(self.shield.state().copy())
        networks = {name: learner.network for name, learner in self.learners.items()}
        return tensors, {
            **describe_team(self.envs.groups, networks, self.config.network),
            "updates": self.updates,
            "frames": self.envs.frames,
            "episodes_started": self.envs.episodes_started,
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
            slots: dict[int, dict[str, Tensor]] = {}
            for key, value in strip_prefix(tensors, f"{name}/optimiser/").items():
                index, slot = key.split("/")
                slots.setdefault(int(index), {})[slot] = value
            learner.optimiser.load_state_dict({**learner.optimiser.state_dict(), "state": slots})
        if self.constraint:
            self.constraint.load(state["constraint"])
        if self.shield:
            self.shield.load(tensors["shield"].numpy())
        self.updates = state["updates"]
        self.rng.bit_generator.state = state["rng"]
        self.envs.resume(frames=state["frames"], episodes_started=state["episodes_started"])
