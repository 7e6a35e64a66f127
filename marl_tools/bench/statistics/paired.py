"""Two methods against each other: how probably one run is better, whether chance explains the difference, and what too few runs cannot show.

References:
    Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice.
    Mann and Whitney 1947, On a test of whether one of two random variables is stochastically larger than the other.
    Fisher 1935, The design of experiments (sign flips of paired differences).
    Holm 1979, A simple sequentially rejective multiple test procedure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from marl_tools.bench.statistics.aggregate import Floats, as_scores, percentile_interval, resamples
from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError

ENOUGH = 5
"""Below so many seeds no difference is claimed."""

_EXACT = 16
"""Up to so many pairs all sign flips are tried: 2^16 of them take milliseconds."""
_BATCH = 2**12


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """P(x > y) + P(x = y) / 2 of a run of each method on the same task, mean over tasks, with its bootstrap interval."""

    probability: float
    low: float
    high: float


def probability_of_improvement(
    x: ArrayLike, y: ArrayLike, *, rng: np.random.Generator, reps: int = 2000, confidence: float = 0.95
) -> Improvement:
    """How probably a run of x scores more than a run of y: the Mann-Whitney statistic over n m, averaged over tasks.

    It says how often, not by how much. Both methods' runs are resampled, within each task.

    Args:
        x: (n runs, tasks).
        y: (m runs, tasks), the same tasks in the same order.

    Raises:
        ConfigError: different tasks, or what `stratified_bootstrap` refuses.
    """
    mine, theirs = as_scores(x, "x"), as_scores(y, "y")
    if mine.shape[1] != theirs.shape[1]:
        raise ConfigError(
            f"x has {mine.shape[1]} tasks and y {theirs.shape[1]}: compare on the tasks that both have"
        )
    at_least(1)("reps", reps)
    # Equal batches of both, however many runs each has.
    batch = max(1, 2**18 // (len(mine) * len(theirs) * mine.shape[1]))
    values = [
        _better(next(resamples(mine, rng, count)), next(resamples(theirs, rng, count)))
        for count in (min(batch, reps - start) for start in range(0, reps, batch))
    ]
    low, high = percentile_interval(np.concatenate(values), confidence)
    return Improvement(probability=float(_better(mine, theirs)), low=float(low), high=float(high))


def paired_permutation_test(
    x: ArrayLike, y: ArrayLike, *, rng: np.random.Generator | None = None, reps: int = 20_000
) -> float:
    """Two-sided p of no difference between x and y, which are paired: that of |mean(x - y)| under random signs.

    The hypothesis is that within a pair (a seed on a task) either value might as well be the other method's; nothing is
    assumed about their distribution. With up to 16 pairs all sign flips are tried and p is exact, a multiple of 2^-n that is
    at least 2^(1-n). With more, ``reps`` flips are drawn and p is (1 + as extreme) / (1 + reps), which is valid too.

    Args:
        x: (seeds,) or (seeds, tasks).
        y: of the same shape, paired with x.
        rng: for more than 16 pairs.

    Raises:
        ConfigError: unequal shapes, or more than 16 pairs without ``rng``.
    """
    mine, theirs = as_scores(x, "x"), as_scores(y, "y")
    if mine.shape != theirs.shape:
        raise ConfigError(
            f"x has shape {mine.shape} and y {theirs.shape}: give pairs, a run of each method a seed"
        )
    differences = (mine - theirs).reshape(-1)
    # Sums in another order differ in their last bits, yet are the same.
    extreme = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if len(differences) <= _EXACT:
        bits = np.arange(2 ** len(differences))[:, None] >> np.arange(len(differences)) & 1
        return float((np.abs((2 * bits - 1) @ differences) >= extreme).mean())
    if rng is None:
        raise ConfigError(f"{len(differences)} pairs are too many to try all sign flips: give rng")
    at_least(1)("reps", reps)
    counted = 0
    for start in range(0, reps, _BATCH):
        signs = 2 * rng.integers(2, size=(min(_BATCH, reps - start), len(differences))) - 1
        counted += int((np.abs(signs @ differences) >= extreme).sum())
    return (1 + counted) / (1 + reps)


def smallest_p(pairs: int) -> float:
    """The least p that `paired_permutation_test` can give: only two of all 2^n sign flips are as extreme as that."""
    return min(1.0, 2.0 ** (1 - pairs))


def caveats(seeds: int, *, alpha: float = 0.05) -> list[str]:
    """Sentences about a comparison of methods over ``seeds`` paired seeds; none where there are enough for each test."""
    if seeds < 1:
        return ["There is no seed that the methods have in common; nothing can be compared."]
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    least = smallest_p(seeds)
    said = []
    if seeds < ENOUGH:
        said.append(
            f"With {count} a paired sign-flip test cannot give p < {least:.4g}; no claim of a difference is made."
        )
    elif least > alpha:
        said.append(
            f"With {count} a paired sign-flip test on a single task cannot give p < {least:.4g}: differences are claimed only "
            "over all tasks together."
        )
    if seeds == 1:
        said.append("One seed says nothing about how much runs differ: there are no intervals.")
    elif seeds < ENOUGH:
        said.append(
            f"Bootstrap intervals from {count} are too narrow: they resample the few values there are and know of no others."
        )
    return said


def holm(p_values: ArrayLike) -> Floats:
    """p-values (n,) adjusted for all being looked at: reject those up to alpha, and any false rejection has at most that chance.

    The k-th smallest is multiplied by how many are not smaller, and is at least the one before it and at most 1. NaN is a
    test that was not made: it stays and does not count.

    Raises:
        ConfigError: a value outside of [0, 1].
    """
    values = np.asarray(p_values, np.float64).reshape(-1)
    known = np.flatnonzero(~np.isnan(values))
    if ((values[known] < 0) | (values[known] > 1)).any():
        raise ConfigError(f"p_values={values.tolist()[:8]}: a p-value lies in [0, 1]")
    order = known[np.argsort(values[known], kind="stable")]
    adjusted = values.copy()
    adjusted[order] = np.minimum(1, np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)))
    return adjusted


def _better(x: Floats, y: Floats) -> Floats:
    """(..., n, tasks), (..., m, tasks) -> (...)."""
    pairs = x[..., :, None, :], y[..., None, :, :]
    return ((pairs[0] > pairs[1]) + 0.5 * (pairs[0] == pairs[1])).mean((-3, -2, -1))
