"""PPO-Lagrangian as an object handed to the trainer: one multiplier an agent, by Adam or by PID.

References:
    Ray et al. 2019, Benchmarking safe exploration in deep reinforcement learning (PPO-Lagrangian).
    Stooke et al. 2020, Responsive safety in reinforcement learning by PID Lagrangian methods (2007.03964).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID, EpisodeLog

Dual = Literal["adam", "pid"]

MIN_EPISODES = 10
"""Finished episodes that a dual step looks at, at least."""

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class LagrangeConfig:
    """Settings of the constraint; defaults after OmniSafe and SafePO.

    Args:
        cost_limit: allowed mean cost of an episode, per agent.
        multiplier_init: the multiplier at the start.
        multiplier_lr: learning rate of Adam.
        pid_gains: proportional, integral and derivative gain of PID.
        pid_smoothing: weight of the past in PID's moving average of the cost.
    """

    cost_limit: float = 0.0
    multiplier_init: float = 0.001
    multiplier_lr: float = 0.035
    pid_gains: tuple[float, float, float] = (0.1, 0.01, 0.01)
    pid_smoothing: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.cost_limit < math.inf:
            raise ConfigError(f"cost_limit={self.cost_limit}: must be a number of at least 0")
        if not 0 <= self.multiplier_init < math.inf:
            raise ConfigError(
                f"multiplier_init={self.multiplier_init}: a multiplier is a number of at least 0"
            )
        if not 0 < self.multiplier_lr < math.inf:
            raise ConfigError(f"multiplier_lr={self.multiplier_lr}: must be a positive number")
        if min(self.pid_gains) < 0:
            raise ConfigError(f"pid_gains={self.pid_gains}: none may be negative")
        if not 0 <= self.pid_smoothing < 1:
            raise ConfigError(f"pid_smoothing={self.pid_smoothing}: must be at least 0 and below 1")


class LagrangeConstraint:
    """A multiplier for each agent, as the trainer asks for it; ``dual`` says how they follow the costs."""

    def __init__(self, agents: Sequence[AgentID], config: LagrangeConfig, dual: Dual = "adam") -> None:
        self.config = config
        self.multipliers = {agent: Multiplier(config, dual) for agent in agents}
        self._recent: dict[AgentID, list[float]] = {agent: [] for agent in agents}

    def update(self, episodes: Sequence[EpisodeLog]) -> None:
        """One dual step an agent, from the mean cost of the last finished episodes.

        All that ended since the last step are looked at, and at least the last ten, once there are any.
        Interrupted ones are left out: short violating episodes would weigh too much.
        """
        for agent, multiplier in self.multipliers.items():
            new = [log.costs[agent] for log in episodes if not log.interrupted and agent in log.costs]
            recent = (self._recent[agent] + new)[-max(MIN_EPISODES, len(new)) :]
            self._recent[agent] = recent[-MIN_EPISODES:]
            multiplier.update(math.fsum(recent) / len(recent) if recent else None)

    def penalise(
        self,
        agents: Sequence[AgentID],
        reward_advantages: NDArray[np.float32],
        cost_advantages: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """(A_reward - lambda * A_cost) / (1 + lambda) with each agent's own lambda; arrays (T, E, A)."""
        values = np.array([self.multipliers[agent].value for agent in agents], np.float32)
        return ((reward_advantages - values * cost_advantages) / (1 + values)).astype(np.float32)

    def figures(self) -> dict[str, Any]:
        """Each agent's multiplier and the mean cost that it last saw."""
        return {
            "multipliers": {agent: multiplier.value for agent, multiplier in self.multipliers.items()},
            "costs": {
                agent: math.fsum(recent) / len(recent) for agent, recent in self._recent.items() if recent
            },
        }

    def state(self) -> dict[str, Any]:
        """Plain values from which `load` goes on exactly."""
        return {
            agent: {"multiplier": multiplier.state(), "recent": self._recent[agent]}
            for agent, multiplier in self.multipliers.items()
        }

    def load(self, state: dict[str, Any]) -> None:
        for agent, multiplier in self.multipliers.items():
            multiplier.load(state[agent]["multiplier"])
            self._recent[agent] = list(state[agent]["recent"])


class Multiplier:
    """One agent's Lagrange multiplier, never negative: by Adam's ascent, or by PID."""

    def __init__(self, config: LagrangeConfig, dual: Dual = "adam") -> None:
        self.config, self.dual = config, dual
        self.value = config.multiplier_init
        self._first = self._second = 0.0
        self._steps = 0
        self._integral = config.multiplier_init
        self._smooth = math.nan

    def update(self, mean_cost: float | None) -> float:
        """One dual step from the mean cost of finished episodes; None or NaN (there are none): nothing moves."""
        if mean_cost is None or math.isnan(mean_cost):
            return self.value
        excess = mean_cost - self.config.cost_limit
        self.value = self._adam(excess) if self.dual == "adam" else self._pid(excess, mean_cost)
        return self.value

    def _adam(self, gradient: float) -> float:
        """Gradient ascent on lambda * (J_C - d), projected to lambda >= 0 (Kingma and Ba 2015)."""
        self._steps += 1
        self._first = _BETAS[0] * self._first + (1 - _BETAS[0]) * gradient
        self._second = _BETAS[1] * self._second + (1 - _BETAS[1]) * gradient**2
        first = self._first / (1 - _BETAS[0] ** self._steps)
        second = self._second / (1 - _BETAS[1] ** self._steps)
        return max(0.0, self.value + self.config.multiplier_lr * first / (math.sqrt(second) + _EPSILON))

    def _pid(self, excess: float, cost: float) -> float:
        """Proportional on the excess, integral kept at 0 or above, derivative only while the smoothed cost rises."""
        proportional, integral, derivative = self.config.pid_gains
        self._integral = max(0.0, self._integral + integral * excess)
        before = cost if math.isnan(self._smooth) else self._smooth
        self._smooth = self.config.pid_smoothing * before + (1 - self.config.pid_smoothing) * cost
        rise = max(0.0, self._smooth - before)
        return max(0.0, proportional * excess + self._integral + derivative * rise)

    def state(self) -> dict[str, Any]:
        """Plain values from which `load` goes on exactly."""
        return {
            "value": self.value,
            "first": self._first,
            "second": self._second,
            "steps": self._steps,
            "integral": self._integral,
            # JSON readers other than Python's know no NaN.
            "smooth": None if math.isnan(self._smooth) else self._smooth,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.value, self._first, self._second = state["value"], state["first"], state["second"]
        self._steps, self._integral = state["steps"], state["integral"]
        self._smooth = math.nan if state["smooth"] is None else state["smooth"]
