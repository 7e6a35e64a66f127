"""Settings of the trainer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from marl_tools.core.errors import ConfigError
from marl_tools.models.distributions import check_action_pdtype
from marl_tools.models.networks import NetworkConfig
from marl_tools.training.ops import ScheduleKind


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
