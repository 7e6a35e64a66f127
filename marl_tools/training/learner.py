"""One group's learner: acts, estimates what actions were worth, and updates by PPO.

References:
    Schulman et al. 2017, Proximal policy optimization algorithms (1707.06347).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl_tools.core.errors import ConfigError, NonFiniteError
from marl_tools.core.spaces import AgentGroup
from marl_tools.models.networks import ActorCritic
from marl_tools.models.weights import LaneWeights
from marl_tools.training.actor import LaneActor
from marl_tools.training.batches import FlatRollout, LaneCritic, Minibatch, lane_rows, pad
from marl_tools.training.contracts import Peers
from marl_tools.training.ippo_config import IPPOConfig
from marl_tools.training.ops import explained_variance, gae
from marl_tools.training.rollout import GroupRollout
from marl_tools.training.surrogate import clipped_surrogate, normalised

_REMEDY = "Lower the learning rate, or look for huge rewards"
_FIGURES = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
_CHUNK = 4096
"""Rows of one pass: what lies between its layers stays in a core's own cache."""


class Estimate(NamedTuple):
    """What one critic makes of a rollout; arrays (T, E, A)."""

    values: NDArray[np.float32]
    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]


class GroupLearner(LaneActor):
    """One group's networks and their optimiser: a lane shared by all agents, or a lane an agent.

    With ``peers`` each process takes the gradient of its part of a minibatch; all make the same step with their sum.
    """

    def __init__(
        self,
        group: AgentGroup,
        config: IPPOConfig,
        *,
        critics: Sequence[str] = ("reward",),
        generator: torch.Generator,
        rng: np.random.Generator,
        peers: Peers | None = None,
    ) -> None:
        network = ActorCritic(
            group.spaces,
            1 if config.share == "group" else len(group.agents),
            config.network,
            critics=critics,
            normalise_observations=config.normalise_observations,
            action_pdtype=config.action_pdtype,
            generator=generator,
        )
        if not network.distribution.trainable:
            raise ConfigError(
                f"action_pdtype={config.action_pdtype!r} has no gradient to learn from: train with 'default', and let "
                "load_policy(run, deterministic=True) play the most likely actions"
            )
        super().__init__(group, network, generator)
        self.config, self.rng, self.peers, self.weights = config, rng, peers, LaneWeights(network)
        self.optimiser = torch.optim.Adam(
            [self.weights.matrix], lr=config.learning_rate, eps=1e-5, fused=True
        )
        self.critics = {name: LaneCritic(network, name) for name in critics}

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

    @torch.no_grad()
    def update(
        self,
        rollout: GroupRollout,
        advantages: NDArray[np.float32],
        estimates: Mapping[str, Estimate],
        *,
        learning_rate: float,
        entropy_coef: float,
        lagging: bool = False,
    ) -> dict[str, float]:
        """Several epochs of minibatch PPO over the valid rows; returns the figures of ``updates.jsonl``.

        ``advantages`` (T, E, A) are the policy's, ``estimates`` teach the critics. Where the rollout is ``lagging``, being
        that of an earlier policy, the probability ratio to it before the first step is among the figures.
        """
        rows = lane_rows(rollout.valid, self.lanes)
        if not any(map(len, rows)):
            # Nobody of this group lived through any step of this rollout.
            return {"rows": 0}
        every, weights = pad(rows)
        if self.config.normalise_returns:
            for name, estimate in estimates.items():
                self.network.head(name).update(torch.from_numpy(estimate.returns.reshape(-1))[every], weights)
        returns = {name: estimate.returns for name, estimate in estimates.items()}
        flat = FlatRollout(rollout, self.network, self.passes, advantages, returns)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        away = [lane for lane, own in enumerate(rows) if not len(own)]
        as_they_were = self.weights.matrix[away]
        sums, batches, epochs = torch.zeros(len(_FIGURES)), 0, 0
        ratios: dict[str, float] = {}
        for _ in range(self.config.learning_epochs):
            epochs += 1
            minibatches = self._minibatches(rows)
            if lagging and not ratios:
                ratios = self._ratios(flat, *minibatches[0])
            steps = [self._step(flat, self._minibatch(flat, *padded), entropy_coef) for padded in minibatches]
            batches += len(steps)
            figures = torch.stack(steps)
            sums += figures.sum(0)
            kl = float(figures[:, _FIGURES.index("approx_kl")].mean())
            if self.config.target_kl is not None and kl > self.config.target_kl:
                break
        # Adam's momentum moves weights that no row has asked it to move.
        self.weights.matrix[away] = as_they_were
        if self.network.obs_norm is not None:
            self.network.obs_norm.update(torch.from_numpy(rollout.obs).flatten(0, 2)[every], weights)
        figures = dict(zip(_FIGURES, (sums / batches).tolist(), strict=True))
        config, valid, reward = self.config, rollout.valid, estimates["reward"]
        return {
            "loss": figures["policy_loss"]
            + config.value_coef * figures["value_loss"]
            - entropy_coef * figures["entropy"],
            **figures,
            **ratios,
            "explained_variance": explained_variance(reward.values[valid], reward.returns[valid]),
            "epochs": epochs,
            "optimiser_steps": batches,
            "rows": int(valid.sum()),
            "learning_rate": learning_rate,
            "entropy_coef": entropy_coef,
        }

    def _ratios(self, flat: FlatRollout, index: Tensor, weights: Tensor) -> dict[str, float]:
        """How far the policy is from that which acted, in some rows."""
        rows = flat.take(index)
        log_probs = self.passes.score(rows.inputs, rows.mask, rows.actions).log_probs
        ratios = (log_probs - rows.log_probs)[weights > 0].exp()
        return {"ratio_mean": float(ratios.mean()), "ratio_max": float(ratios.max())}

    def _minibatches(self, rows: list[NDArray[np.intp]]) -> list[tuple[Tensor, Tensor]]:
        """Shuffle each lane's rows and cut them into equal parts: flat indices and weights, both (L, B)."""
        shuffled = [np.array_split(self.rng.permutation(lane), self.config.mini_batches) for lane in rows]
        return [pad(parts) for parts in zip(*shuffled, strict=True) if any(map(len, parts))]

    def _minibatch(self, flat: FlatRollout, index: Tensor, weights: Tensor) -> Minibatch:
        share = weights / weights.sum(1, keepdim=True).clamp_(min=1)
        advantages = flat.advantages[index]
        return Minibatch(
            index, share, normalised(advantages, share) if self.config.normalise_advantages else advantages
        )

    def _step(self, flat: FlatRollout, batch: Minibatch, entropy_coef: float) -> Tensor:
        """One gradient step; returns its `_FIGURES`. Losses are means per lane, summed over lanes."""
        self.weights.forget()
        figures, peers = torch.zeros(len(_FIGURES) - 1, self.lanes), self.peers
        for part in (batch.of_rank(peers.rank, peers.size) if peers else batch).parts(
            max(1, _CHUNK // self.lanes)
        ):
            figures += self._accumulate(flat, part, entropy_coef)
        if peers:
            peers.add_up(self.weights.gradients, figures)
        norms = self.weights.clip(self.config.max_grad_norm)
        if not math.isfinite(norms.sum()):
            # Before the optimiser's step, so that what is saved now is still sound.
            lane = int((~torch.isfinite(norms)).nonzero()[0])
            who = self.group.agents[lane] if self.lanes > 1 else self.group.name
            raise NonFiniteError(f"the gradient of {who!r} is NaN or infinite. {_REMEDY}")
        self.optimiser.step()
        return torch.cat([figures, norms.unsqueeze(0)]).mean(1)

    def _accumulate(self, flat: FlatRollout, part: Minibatch, entropy_coef: float) -> Tensor:
        """Add the gradients of some rows; returns their part of all `_FIGURES` but the last, (5, L)."""
        config, rows = self.config, flat.take(part.rows)
        scores = self.passes.score(rows.inputs, rows.mask, rows.actions)
        # Filling is a row of some other agent: its ratio may overflow, and 0 times infinity is NaN.
        log_ratio = (scores.log_probs - rows.log_probs).masked_fill_(part.share == 0, 0.0)
        policy = clipped_surrogate(log_ratio, part.advantages, config.clip)
        errors = {name: values - rows.targets[name] for name, values in scores.values.items()}
        value_loss = torch.stack([0.5 * error * error for error in errors.values()]).sum(0)
        by_row = torch.stack([policy.loss, value_loss, scores.entropies, policy.kl, policy.clipped])
        by_row *= part.share
        figures = by_row.sum(2)
        if not math.isfinite(figures.sum()):
            raise NonFiniteError(self._name_bad_row(by_row.sum(0), part.rows, flat.shape))
        self.passes.backward(
            policy.slope * part.share,
            -entropy_coef * part.share,
            {name: config.value_coef * error * part.share for name, error in errors.items()},
        )
        return figures

    def _name_bad_row(self, row_loss: Tensor, index: Tensor, shape: tuple[int, ...]) -> str:
        """Name the row to blame: the first that is no number, or the largest where it took all to overflow."""
        worst = int(row_loss.abs().nan_to_num(nan=math.inf).argmax())
        t, env, agent = np.unravel_index(int(index.flatten()[worst]), shape)
        return (
            f"the loss of agent {self.group.agents[agent]!r} is NaN or infinite at rollout step {t} of env copy {env}. "
            f"{_REMEDY}"
        )

    def optimiser_state(self) -> dict[str, Tensor]:
        """Adam's averages, "<number of the parameter>/<name>"; nothing before the first update."""
        state: dict[str, Tensor] = {}
        for slot, value in self.optimiser.state.get(self.weights.matrix, {}).items():
            parts = self.weights.split(value) if value.dim() else [value] * self.weights.count
            state |= {f"{number}/{slot}": part for number, part in enumerate(parts)}
        return state

    def load_optimiser(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `optimiser_state` returned."""
        slots = {key.partition("/")[2] for key in state}
        parts = {slot: [state[f"{n}/{slot}"] for n in range(self.weights.count)] for slot in slots}
        whole = {
            slot: self.weights.join(values) if values[0].dim() else values[0]
            for slot, values in parts.items()
        }
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": {0: whole} if whole else {}})
