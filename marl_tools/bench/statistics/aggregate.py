"""Scores of several runs on several tasks as one figure, with stratified bootstrap intervals.

Scores are arrays (runs, tasks); one task's (runs,) will do. A statistic takes (..., runs, tasks) and returns (...), so that all
resamples are computed at once.

References:
    Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marl_tools.core.checks import at_least, between
from marl_tools.core.errors import ConfigError

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

_BATCH = 2**18
"""Scores resampled at once: more would be memory for nothing."""


def as_scores(scores: ArrayLike, name: str = "scores") -> Floats:
    """Scores as (runs, tasks).

    Raises:
        ConfigError: another number of dimensions, no run or no task, or NaN or infinity among them.
    """
    array = np.asarray(scores, np.float64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or not array.size:
        raise ConfigError(
            f"{name} of shape {np.shape(scores)}: give an array (runs, tasks) with one of each at least"
        )
    if not np.isfinite(array).all():
        raise ConfigError(
            f"{name} holds {np.count_nonzero(~np.isfinite(array))} values that are no finite number: leave out runs without a score"
        )
    return array


def mean(scores: Floats) -> Floats:
    """Mean over runs and tasks. (..., runs, tasks) -> (...)."""
    return scores.mean((-2, -1))


def median(scores: Floats) -> Floats:
    """Median over tasks of the mean over runs. (..., runs, tasks) -> (...)."""
    return np.median(scores.mean(-2), axis=-1)


def iqm(scores: Floats) -> Floats:
    """Interquartile mean: that of what is left when floor(n / 4) of all n scores are cut off at either end.

    Whole scores are cut, as in the paper's own library and in `scipy.stats.trim_mean`: nothing is weighted by a fraction, and
    of fewer than four scores it is the mean. (..., runs, tasks) -> (...).
    """
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return flat[..., cut : flat.shape[-1] - cut].mean(-1)


def optimality_gap(scores: Floats, target: float = 1.0) -> Floats:
    """Mean of what scores lack to ``target``; what lies above it makes up for nothing. (..., runs, tasks) -> (...)."""
    return (target - np.minimum(scores, target)).mean((-2, -1))


AGGREGATES: dict[str, Statistic] = {
    "iqm": iqm,
    "mean": mean,
    "median": median,
    "optimality_gap": partial(optimality_gap, target=1.0),
}


def resamples(scores: Floats, rng: np.random.Generator, reps: int) -> Iterator[Floats]:
    """``reps`` draws of as many runs with replacement, each task on its own: batches (b, runs, tasks)."""
    runs, tasks = scores.shape
    batch = max(1, _BATCH // scores.size)
    for start in range(0, reps, batch):
        drawn = rng.integers(runs, size=(min(batch, reps - start), runs, tasks))
        yield scores[drawn, np.arange(tasks)]


def stratified_bootstrap(
    scores: ArrayLike,
    statistic: Statistic,
    *,
    rng: np.random.Generator,
    reps: int = 2000,
    confidence: float = 0.95,
) -> tuple[Floats, Floats]:
    """Percentile interval of a statistic under resampling of the runs within each task: its ends, each of the statistic's shape.

    Tasks are fixed: it says how sure the figure is for these tasks, and nothing about others. Of few runs it is too narrow.

    Args:
        scores: (runs, tasks).
        statistic: (b, runs, tasks) -> (b, ...).

    Raises:
        ConfigError: what `as_scores` refuses, ``reps`` below 1 or a ``confidence`` outside of (0, 1).
    """
    array = as_scores(scores)
    values = [statistic(batch) for batch in resamples(array, rng, at_least(1)("reps", reps))]
    return percentile_interval(np.concatenate(values), confidence)


def percentile_interval(values: Floats, confidence: float) -> tuple[Floats, Floats]:
    """The two ends of the middle ``confidence`` of values (reps, ...), each of shape (...)."""
    tail = (1 - between(0, 1)("confidence", confidence)) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return low, high
