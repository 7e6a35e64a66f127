"""The safety settings of a run, and the constraint and shield that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from marl_tools.core.checks import at_least, between
from marl_tools.core.errors import ConfigError
from marl_tools.core.logging import log
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import AgentID
from marl_tools.safety.config import (
    OpponentMode,
    OverBudget,
    RewardMode,
    Schedule,
    ShieldAction,
    ShieldConfig,
)
from marl_tools.safety.lagrange import LagrangeConfig, LagrangeConstraint
from marl_tools.training.build import build_team
from marl_tools.training.shielding import ShieldedTeam


@dataclass(frozen=True, kw_only=True)
class SafetySettings:
    """Constraint and shield of a run.

    Args:
        constraint: "lagrange" (Adam) or "pid" multipliers hold each agent's mean episode cost at ``cost_limit``.
        shield: "ledger" bounds each agent's probability of a violation in an episode by ``max_risk``; "step" is the classic
            rule, which does not.
        max_risk: allowed probability of a violation within the horizon.
        shield_horizon: steps that the bound covers; None: the env's episode cap.
        shield_step_horizon: look-ahead of the step rule.
        shield_patience: plays of an action of unknown risk that are allowed while training.
        shield_action: replace what the policy proposes, or let it sample from what is admitted.
        shield_over_budget: what to do at states of more risk than ``max_risk``; see ShieldConfig.
        shield_reward_mode: what an agent loses for proposing risk.
        shield_penalty: taken off at an override by reward mode "penalty".
        shield_risk_weight: of the posterior-mean risk in the "bayesian" modes.
        shield_opponent_mode: which behaviour of the others the bound covers.
        shield_credible_delta: probability that the learned bounds miss the truth.
        shield_credible_schedule: how that is split over repeated looks.
        shield_model: "learned", or "exact": the env's true law, for envs that can be enumerated.
        shield_support: "declared": which outcomes are possible is known where the env can be enumerated, their
            probabilities are not; "none": nothing is known.
        shield_calibrate: episodes, everything frozen, that fill the others' floors before the evaluation.
        wm_version: generation of the world model.
        om_version: generation of the opponent model.
        lag_version: generation of the constraint.
        shield_version: generation of the shield.
        lagrange: settings of the constraint.
    """

    constraint: Literal["none", "lagrange", "pid"] = "none"
    shield: Literal["none", "ledger", "step"] = "none"
    max_risk: float = 0.05
    shield_horizon: int | None = None
    shield_step_horizon: int = 10
    shield_patience: int = 64
    shield_action: ShieldAction = "override"
    shield_over_budget: OverBudget = "fallback"
    shield_reward_mode: RewardMode = "bayesian"
    shield_penalty: float = 1.0
    shield_risk_weight: float = 1.0
    shield_opponent_mode: OpponentMode = "monotone_floor"
    shield_credible_delta: float = 0.05
    shield_credible_schedule: Schedule = "summable"
    shield_model: Literal["learned", "exact"] = "learned"
    shield_support: Literal["declared", "none"] = "declared"
    shield_calibrate: int = 0
    wm_version: Literal["v0"] = "v0"
    om_version: Literal["v0"] = "v0"
    lag_version: Literal["v0"] = "v0"
    shield_version: Literal["v0"] = "v0"
    lagrange: LagrangeConfig = field(default_factory=LagrangeConfig)

    @property
    def charged(self) -> bool:
        """Whether the run cannot do without costs."""
        return self.constraint != "none" or self.shield != "none"

    def check(self, env: str) -> None:
        """Refuse what cannot work in any env; what this one cannot have is found when it is made.

        Raises:
            ConfigError: names the env, the value and the remedy.
        """
        try:
            between(0, 1)("max_risk", self.max_risk)
            at_least(0)("shield_calibrate", self.shield_calibrate)
            if self.shield_horizon is not None:
                at_least(1)("shield_horizon", self.shield_horizon)
            if self.shield != "none":
                self.shield_config(self.shield_horizon or max(1, self.shield_step_horizon))
                self._check_shield()
        except ConfigError as error:
            raise ConfigError(f"{env}: {error}") from error

    def _check_shield(self) -> None:
        if self.shield_opponent_mode == "oracle":
            raise ConfigError(
                "shield_opponent_mode='oracle' needs the others' true policies, and in training they change: use "
                "'monotone_floor', or hand policies to OpponentModel.set_policy in code of your own"
            )
        if self.shield_calibrate and self.shield_action == "mask":
            raise ConfigError(
                f"shield_calibrate={self.shield_calibrate} with shield_action='mask': under a mask nothing is proposed "
                "that could be counted; use shield_action='override', or shield_calibrate=0"
            )

    def shield_config(self, horizon: int) -> ShieldConfig:
        """The shield's own settings for a horizon.

        Raises:
            ConfigError: a value that cannot work.
        """
        assert self.shield != "none"
        return ShieldConfig(
            horizon=horizon,
            max_risk=self.max_risk,
            rule=self.shield,
            step_horizon=self.shield_step_horizon,
            patience=self.shield_patience,
            action=self.shield_action,
            over_budget=self.shield_over_budget,
            reward_mode=self.shield_reward_mode,
            penalty=self.shield_penalty,
            risk_weight=self.shield_risk_weight,
            opponent_mode=self.shield_opponent_mode,
            credible_delta=self.shield_credible_delta,
            credible_schedule=self.shield_credible_schedule,
        )


def make_constraint(settings: SafetySettings, agents: Sequence[AgentID]) -> LagrangeConstraint | None:
    """The constraint of a run, or None."""
    if settings.constraint == "none":
        return None
    dual = "adam" if settings.constraint == "lagrange" else "pid"
    return LagrangeConstraint(agents, settings.lagrange, dual)


def make_shield(
    settings: SafetySettings, env: Any, groups: Sequence[AgentGroup], *, num_envs: int, gamma: float
) -> ShieldedTeam | None:
    """The shielded team of a run, or None. ``env`` is a single copy, an `EpisodeRecorder` outermost.

    Raises:
        ConfigError: what the env lacks, or a horizon beyond its episodes; see `build_team`.
    """
    if settings.shield == "none":
        return None
    return build_team(
        env,
        groups,
        settings.shield_config,
        horizon=settings.shield_horizon,
        model=settings.shield_model,
        support=settings.shield_support,
        num_envs=num_envs,
        gamma=gamma,
    )


def warn_if_patience_is_short(settings: SafetySettings, team: ShieldedTeam) -> None:
    """Say once how many visits it takes until the learned bound can admit an action by itself, if any depends on that.

    Where the declared outcomes alone keep every state within ``max_risk``, there is a safe action before the first visit.
    """
    needed = team.config.visits_needed(max(1, team.models.num_keys))
    short = settings.shield_model == "learned" and settings.shield_patience < needed
    if short and team.least_risk().max(initial=0.0) > settings.max_risk:
        log(
            f"patience {settings.shield_patience} alone cannot certify max_risk={settings.max_risk}: a row of the world "
            f"model needs about {needed} visits for that. Raise --shield-patience, train longer, or declare the outcomes that "
            "are possible (initial_law, joint_law and ended_agents of the env, without --shield-support none); "
            "marl-tools coverage, with the run's folder, shows what is lacking",
            type="shield",
            priority="WARNING",
        )
