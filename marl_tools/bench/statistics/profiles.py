"""Performance profiles: what share of runs scores more than tau, for every tau.

References:
    Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice (run-score distributions).
    Dolan and More 2002, Benchmarking optimization software with performance profiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from marl_tools.bench.statistics.aggregate import Floats, as_scores, stratified_bootstrap
from marl_tools.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The share of runs above each tau with its band, all (taus,). Each point of the band is an interval of its own."""

    taus: Floats
    share: Floats
    low: Floats
    high: Floats


def performance_profile(
    scores: ArrayLike,
    taus: ArrayLike,
    *,
    rng: np.random.Generator,
    reps: int = 2000,
    confidence: float = 0.95,
) -> Profile:
    """The run-score distribution: the share of all runs on all tasks that score strictly more than tau.

    Unlike a mean it is robust to a few wild runs, and shows where one method is better than another and where not. Where
    the profiles of two methods cross, neither is better at every level.

    Args:
        scores: (runs, tasks), comparable from task to task.
        taus: (taus,), not decreasing.

    Raises:
        ConfigError: what `stratified_bootstrap` refuses, or taus that are not in order.
    """
    levels = np.asarray(taus, np.float64).reshape(-1)
    if not len(levels) or not (np.diff(levels) >= 0).all():
        raise ConfigError(f"taus={levels.tolist()[:8]}: give at least one, in increasing order")

    def above(batch: Floats) -> Floats:
        flat = batch.reshape(len(batch), -1)
        return np.stack([(flat > tau).mean(1) for tau in levels], axis=1)

    array = as_scores(scores)
    low, high = stratified_bootstrap(array, above, rng=rng, reps=reps, confidence=confidence)
    return Profile(taus=levels, share=above(array[None])[0], low=low, high=high)
