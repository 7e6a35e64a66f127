"""Settings of the shield."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from marl_tools.core.checks import at_least, between, one_of
from marl_tools.core.errors import ConfigError

Rule = Literal["ledger", "step"]
ShieldAction = Literal["override", "mask"]
RewardMode = Literal["none", "penalty", "bayesian", "bayesian_potential"]
OpponentMode = Literal["oracle", "uniform", "empirical", "worst_case", "monotone_floor"]
Schedule = Literal["constant", "summable", "geometric", "ppr"]
OverBudget = Literal["fallback", "ledger"]

LEVELS = 256
"""Prices and slack are whole numbers of ``max_risk / LEVELS``, so that a shield has finitely many states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShieldConfig:
    """How much risk is allowed, and what happens to an action that would risk more.

    Args:
        max_risk: allowed probability (rho) that an agent violates within ``horizon`` steps.
        horizon: steps T that the bound covers, the episode's cap as a rule. A longer episode starts a new ledger every T
            steps, and its bound is the sum.
        rule: ``ledger`` bounds the episode. ``step`` admits what keeps the risk of the next ``step_horizon`` steps
            under ``max_risk``: the classic rule, which does not bound the episode.
        step_horizon: look-ahead H of the ``step`` rule.
        patience: plays of a (key, action) that are allowed although its risk is not known well enough; 0 in evaluation.
        action: ``override`` replaces what the policy proposes, ``mask`` lets it sample from what is admitted.
        over_budget: what a key means at which V + slack is above ``max_risk``. ``fallback``: nothing there counts as safe.
            ``ledger``: whatever the slack pays for is still admitted, also where nothing is known (every price is then 0).
            The bound is the same.
        reward_mode: ``penalty`` takes ``penalty`` off at an override; ``bayesian`` takes off ``risk_weight`` times the
            posterior-mean risk of the proposal above the least one; ``bayesian_potential`` adds the difference of a
            potential, -``risk_weight`` times the least posterior-mean risk.
        opponent_mode: which behaviours of the others the bound covers; read by whoever makes the opponents' sets.
        credible_delta: probability that the learned bounds miss the truth; read by whoever makes the tables.
        credible_schedule: how that is split over repeated looks at one row.

    Raises:
        ConfigError: a setting that cannot work.
    """

    horizon: int
    max_risk: float = 0.05
    rule: Rule = "ledger"
    step_horizon: int = 10
    patience: int = 64
    action: ShieldAction = "override"
    over_budget: OverBudget = "fallback"
    reward_mode: RewardMode = "bayesian"
    penalty: float = 1.0
    risk_weight: float = 1.0
    opponent_mode: OpponentMode = "monotone_floor"
    credible_delta: float = 0.05
    credible_schedule: Schedule = "summable"

    def __post_init__(self) -> None:
        for name in ("horizon", "step_horizon"):
            at_least(1)(name, getattr(self, name))
        at_least(0)("patience", self.patience)
        for name in ("max_risk", "credible_delta"):
            between(0, 1)(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            one_of(*get_args(choices))(name, getattr(self, name))
        for name in ("penalty", "risk_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name)!r}: must be a finite number of at least 0.")
        if self.rule == "step" and self.step_horizon > self.horizon:
            raise ConfigError(
                f"step_horizon={self.step_horizon} is beyond horizon={self.horizon}: lower it, or raise horizon."
            )
        if self.action == "mask" and self.reward_mode == "penalty":
            raise ConfigError(
                "reward_mode='penalty' with action='mask': a masked policy is never overridden, so the penalty would "
                "never come; take action='override', or another reward_mode."
            )

    @property
    def level(self) -> float:
        """Probability that one level of price or slack stands for."""
        return self.max_risk / LEVELS

    def evaluating(self) -> ShieldConfig:
        """The same without patience: nothing unknown is played."""
        return replace(self, patience=0)

    def check_episode(self, env_name: str, cap: int | None) -> None:
        """Refuse a horizon beyond the episode's cap, if there is one.

        Raises:
            ConfigError: names the env, the horizon and the cap.
        """
        if cap is not None and self.horizon > cap:
            raise ConfigError(
                f"horizon={self.horizon} is beyond the episodes of {env_name}, which end after {cap} steps: "
                f"set horizon={cap} or less."
            )

    def visits_needed(self, num_keys: int) -> int:
        """About how many visits of each row it takes until ``max_risk`` can be kept: T ln(K / delta) / rho."""
        return math.ceil(self.horizon * math.log(max(1, num_keys) / self.credible_delta) / self.max_risk)


_CHOICES = {
    "rule": Rule,
    "action": ShieldAction,
    "over_budget": OverBudget,
    "reward_mode": RewardMode,
    "opponent_mode": OpponentMode,
    "credible_schedule": Schedule,
}
