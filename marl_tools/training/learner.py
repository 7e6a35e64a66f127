"""One group's learner: acts, estimates what actions were worth, and updates by PPO.

References:
    Schulman et al. 2017, Proximal policy optimization algorithms (1707.06347).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl_tools.core.errors import NonFiniteError
from marl_tools.core.spaces import AgentGroup
from marl_tools.models.networks import ActorCritic
from marl_tools.training.batches import FlatRollout, LaneCritic, from_lanes, lane_rows, pad, to_lanes
from marl_tools.training.ops import explained_variance, gae
from marl_tools.training.rollout import GroupRollout

if TYPE_CHECKING:
    from marl_tools.training.ippo import IPPOConfig

_REMEDY = "Lower the learning rate, or look for huge rewards"


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
        away = [lane for lane, own in enumerate(rows) if not len(own)]
        as_they_were = [lanes[away].clone() for lanes in self._parameters_by_lane()] if away else []
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
        # Adam's momentum moves weights that no row has asked it to move.
        for lanes, old in zip(self._parameters_by_lane(), as_they_were, strict=False):
            lanes[away] = old
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

    def _parameters_by_lane(self) -> list[Tensor]:
        """Every parameter as a view (L, ...) that can be written to."""
        return [parameter.detach().view(self.lanes, -1) for parameter in self.network.parameters()]

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
