"""Confidence bounds for a binomial proportion, and how their error probability is split over looks and ranks.

``k`` successes in ``n`` draws at level ``delta`` (the allowed probability of a miss) broadcast like any arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, betaln

from marl_tools.core.errors import ConfigError, did_you_mean

Schedule = Literal["constant", "summable", "geometric", "ppr"]
Interval = Literal["clopper_pearson", "beta"]
Floats = NDArray[np.float64]
LowerBound = Callable[[Floats, Floats, Floats], Floats]

_WORTH_SORTING = 4096
"""From this many bounds on, sorting out the repeated ones costs less than solving them."""


def clopper_pearson(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> tuple[Floats, Floats]:
    """Exact two-sided interval, delta/2 on each side; [0, 1] at n = 0. Right at one look fixed beforehand.

    Reference: Clopper and Pearson 1934.
    """
    return _two_sided(_cp_lower, k, n, np.asarray(delta) / 2)


def cp_lower(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> Floats:
    """One-sided Clopper-Pearson lower bound; 0 at k = 0."""
    return _once_per_case(_cp_lower, k, n, delta)


def cp_upper(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> Floats:
    """One-sided Clopper-Pearson upper bound; 1 at k = n, hence at n = 0."""
    return 1 - _once_per_case(_cp_lower, np.subtract(n, k), n, delta)


def beta_interval(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> tuple[Floats, Floats]:
    """Central 1 - delta interval of the posterior under a uniform prior; [0, 1] at n = 0.

    A credible interval and no confidence interval: it never holds 0 or 1, so where the truth is one of them it
    always misses.
    """
    lo, hi = _two_sided(_beta_lower, k, n, np.asarray(delta) / 2)
    unknown = np.equal(n, 0)
    return np.where(unknown, 0.0, lo), np.where(unknown, 1.0, hi)


def ppr_interval(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> tuple[Floats, Floats]:
    """All p whose posterior density exceeds delta times the prior density, under a uniform prior.

    Prior over posterior density at the true p is a martingale that starts at 1, so that it reaches 1/delta with
    probability at most delta (Ville): the interval is right at every n at once.

    Reference: Waudby-Smith and Ramdas 2020, Confidence sequences for sampling without replacement (the
    prior-posterior-ratio martingale).
    """
    return _two_sided(_ppr_lower, k, n, delta)


def ppr_lower(k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> Floats:
    """The lower end of `ppr_interval` alone."""
    return _once_per_case(_ppr_lower, k, n, delta)


def schedule_level(delta: ArrayLike, n: ArrayLike, schedule: Schedule) -> Floats:
    """The part of delta that the look at n draws may use; looks are taken at n = 1, 2, 4, ... and held in between.

    With e = floor(log2 n): ``summable`` 6 delta / (pi^2 (e+1)^2), ``geometric`` delta 2^-(e+1), both summing to
    delta over all looks. ``constant`` and ``ppr`` are delta itself: the first is right at one look only, the second
    needs no split.

    Raises:
        ConfigError: the schedule is unknown.
    """
    epoch = np.maximum(np.frexp(np.asarray(n, np.float64))[1] - 1, 0)
    if schedule == "summable":
        return rank_level(delta, epoch + 1)
    if schedule == "geometric":
        return np.asarray(delta) * 0.5 ** (epoch + 1)
    if schedule in ("constant", "ppr"):
        return np.asarray(delta) * np.ones(epoch.shape)
    hint = did_you_mean(str(schedule), ("constant", "summable", "geometric", "ppr"))
    raise ConfigError(f"credible schedule {schedule!r} is unknown.{hint}")


def rank_level(delta: ArrayLike, i: ArrayLike) -> Floats:
    """The share 6 delta / (pi^2 i^2) of rank i, counted from 1; the shares of all ranks sum to delta."""
    return 6 / np.pi**2 * np.asarray(delta) / np.square(np.asarray(i, np.float64))


def epoch_start(n: ArrayLike) -> NDArray[np.int64]:
    """The greatest power of two up to n, that is n of the last look; 0 for n = 0."""
    exponent = np.frexp(np.asarray(n, np.float64))[1]
    return np.where(np.equal(n, 0), 0, np.left_shift(1, np.maximum(exponent - 1, 0).astype(np.int64)))


def _two_sided(lower: LowerBound, k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> tuple[Floats, Floats]:
    # Every kind here is symmetric: the upper bound on p is one minus the lower bound on 1 - p.
    lo = _once_per_case(lower, k, n, delta)
    return lo, 1 - _once_per_case(lower, np.subtract(n, k), n, delta)


def _once_per_case(solve: LowerBound, k: ArrayLike, n: ArrayLike, delta: ArrayLike) -> Floats:
    """``solve`` once for each distinct (k, n, delta): rows that share a count and a level are the rule, not the exception."""
    k, n, delta = (np.asarray(value, np.float64) for value in np.broadcast_arrays(k, n, delta))
    if k.size < _WORTH_SORTING:
        return solve(k, n, delta)
    levels, level = np.unique(delta, return_inverse=True)
    most = n.max() + 1
    if levels.size * most**2 >= 2.0**62:
        return solve(k, n, delta)
    case = (level.reshape(k.shape) * int(most) + n.astype(np.int64)) * int(most) + k.astype(np.int64)
    _, first, place = np.unique(case, return_index=True, return_inverse=True)
    return solve(k.flat[first], n.flat[first], delta.flat[first])[place].reshape(k.shape)


def _cp_lower(k: Floats, n: Floats, delta: Floats) -> Floats:
    lo = np.where(k > 0, delta ** (1 / np.maximum(n, 1)), 0.0)
    # Rows that always ended alike are the most common and have the closed form above.
    mixed = (k > 0) & (k < n)
    lo[mixed] = betaincinv(k[mixed], (n - k + 1)[mixed], delta[mixed])
    return lo


def _beta_lower(k: Floats, n: Floats, delta: Floats) -> Floats:
    return betaincinv(k + 1, n - k + 1, delta)


def _ppr_lower(k: Floats, n: Floats, delta: Floats) -> Floats:
    """Newton's method for the log density's lower crossing of log delta, in t = log p.

    In t the log density is concave and lies below k t - log B, whose crossing is the start: every step stays on the
    outer side of the root, so that stopping early only widens the interval.
    """
    hits, misses = np.maximum(k, 1), n - k
    target = np.log(delta) + betaln(hits + 1, misses + 1)
    t = np.minimum(target / hits, -1e-300)
    for _ in range(200):
        below = target - hits * t - misses * np.log(-np.expm1(t))
        step = below / (hits + misses * np.exp(t) / np.expm1(t))
        if not np.any(step > 1e-13):
            break
        t = t + np.maximum(step, 0)
    return np.where(k > 0, np.exp(t), 0.0)
