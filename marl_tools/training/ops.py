"""The mathematics of the trainer as pure functions on arrays."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ScheduleKind = Literal["constant", "linear", "cosine", "exponential"]
_DECAY = 5.0
"""An exponential schedule falls by exp(-5), to below 1 %, and is then stretched to reach its end."""


def gae(
    rewards: NDArray[np.floating],
    values: NDArray[np.floating],
    next_values: NDArray[np.floating],
    terminated: NDArray[np.bool_],
    ended: NDArray[np.bool_],
    *,
    gamma: float,
    lam: float,
) -> NDArray[np.floating]:
    """Generalised advantage estimates, shape (steps, ...) as every argument.

    ``next_values[t]`` is the value of the true observation after step t: at a truncation that of the final
    observation, never that of the next episode's first. Only ``terminated`` removes the future; ``ended`` (terminated or
    truncated) stops the trace.

    References:
        Schulman et al. 2016, High-dimensional continuous control using generalized advantage estimation (1506.02438).
        Pardo et al. 2018, Time limits in reinforcement learning (1712.00378).
    """
    deltas = rewards + gamma * np.where(terminated, 0.0, next_values) - values
    keep = gamma * lam * ~ended
    advantages = np.empty_like(deltas)
    trace = np.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        trace = deltas[t] + keep[t] * trace
        advantages[t] = trace
    return advantages


def explained_variance(predicted: NDArray[np.floating], target: NDArray[np.floating]) -> float:
    """1 - Var(target - predicted) / Var(target); NaN where the target does not vary."""
    variance = np.var(target)
    return math.nan if variance == 0 else float(1 - np.var(target - predicted) / variance)


def schedule(kind: ScheduleKind, start: float, end: float, progress: float) -> float:
    """The value at ``progress`` in [0, 1]: exactly ``start`` at 0 and, unless constant, exactly ``end`` at 1.

    The exponential one reaches its end too, also if that is 0 or negative: it runs through the decay's first five
    time constants.
    """
    progress = min(max(progress, 0.0), 1.0)
    match kind:
        case "constant":
            return start
        case "linear":
            weight = 1.0 - progress
        case "cosine":
            weight = 0.5 * (1.0 + math.cos(math.pi * progress))
        case "exponential":
            rest = math.exp(-_DECAY)
            weight = (math.exp(-_DECAY * progress) - rest) / (1.0 - rest)
    return start * weight + end * (1.0 - weight)
