"""Bounds for a proportion against their definitions, and how often each kind ever misses over a long stream."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from marl_tools.core.bounds import (
    beta_interval,
    clopper_pearson,
    cp_lower,
    cp_upper,
    epoch_start,
    ppr_interval,
    ppr_lower,
    rank_level,
    schedule_level,
)
from marl_tools.core.errors import ConfigError

DELTA = 0.05
levels = st.floats(1e-12, 0.9)


@st.composite
def counts(draw, least=0):
    n = draw(st.integers(least, 5000))
    return draw(st.integers(0, n)), n


@given(counts(least=1), st.floats(1e-5, 0.9))
def test_clopper_pearson_is_the_exact_interval_of_scipy(count, delta):
    k, n = count
    lo, hi = clopper_pearson(k, n, delta)
    exact = stats.binomtest(k, n).proportion_ci(1 - delta, method="exact")
    assert lo == pytest.approx(exact.low, abs=1e-9)
    assert hi == pytest.approx(exact.high, abs=1e-9)


@given(counts(least=1), levels)
def test_one_sided_bounds_leave_exactly_delta_in_the_tail(count, delta):
    k, n = count
    lower, upper = cp_lower(k, n, delta), cp_upper(k, n, delta)
    if k > 0:
        assert stats.binom.sf(k - 1, n, lower) == pytest.approx(delta, rel=1e-6)
    if k < n:
        assert stats.binom.cdf(k, n, upper) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("interval", [clopper_pearson, beta_interval, ppr_interval])
def test_no_draw_leaves_everything_possible(interval):
    assert interval(0, 0, DELTA) == (0, 1)


def test_one_sided_bounds_without_draws_or_at_the_ends_are_trivial():
    assert cp_upper([0, 5], [0, 5], DELTA).tolist() == [1, 1]
    assert cp_lower([0, 0], [0, 5], DELTA).tolist() == [0, 0]
    assert ppr_lower([0, 0], [0, 5], DELTA).tolist() == [0, 0]


@given(counts(least=1), st.floats(1e-6, 0.9))
def test_ppr_holds_just_the_points_whose_density_exceeds_delta(count, delta):
    k, n = count
    lo, hi = ppr_interval(k, n, delta)
    grid = np.linspace(0, 1, 4001)
    grid = grid[(np.abs(grid - lo) > 1e-9) & (np.abs(grid - hi) > 1e-9)]
    inside = stats.beta.logpdf(grid, k + 1, n - k + 1) > np.log(delta)
    np.testing.assert_array_equal(inside, (lo <= grid) & (grid <= hi))


@given(counts(), levels)
def test_beta_is_the_central_interval_of_the_posterior_and_never_holds_the_ends(count, delta):
    k, n = count
    lo, hi = beta_interval(k, n, delta)
    if n:
        posterior = stats.beta(k + 1, n - k + 1)
        assert posterior.cdf(lo) == pytest.approx(delta / 2, rel=1e-6)
        assert posterior.sf(hi) == pytest.approx(delta / 2, rel=1e-6)
        assert 0 < lo < hi < 1


def test_only_beta_misses_a_deterministic_outcome():
    n = 2 ** np.arange(20)
    assert (clopper_pearson(n, n, DELTA)[1] == 1).all()
    assert (ppr_interval(n, n, DELTA)[1] == 1).all()
    assert (beta_interval(n, n, DELTA)[1] < 1).all()


@given(counts(least=1), levels, st.sampled_from([clopper_pearson, ppr_interval]))
def test_intervals_hold_the_frequency_mirror_each_other_and_widen_with_confidence(count, delta, interval):
    k, n = count
    lo, hi = interval(k, n, delta)
    assert 0 <= lo <= k / n <= hi <= 1
    assert interval(n - k, n, delta) == pytest.approx((1 - hi, 1 - lo), abs=1e-12)
    wider = interval(k, n, delta / 10)
    assert wider[0] <= lo
    assert wider[1] >= hi


@pytest.mark.parametrize("interval", [clopper_pearson, beta_interval, ppr_interval])
def test_large_arrays_of_repeated_cases_give_what_single_ones_give(interval):
    rng = np.random.default_rng(0)
    n = rng.integers(0, 12, (100, 60))
    k = rng.binomial(n, 0.7)
    delta = rng.choice([0.3, 1e-3, 1e-9], (100, 1))
    lo, hi = interval(k, n, delta)
    for at in [(0, 0), (17, 59), (99, 3), (50, 30)]:
        assert (lo[at], hi[at]) == interval(k[at], n[at], delta[at[0], 0])


def test_ppr_stays_finite_and_ordered_at_extreme_counts_and_levels():
    n = np.array([1, 2, 10**3, 10**6, 10**9])[:, None, None]
    k = np.concatenate([np.zeros_like(n), np.ones_like(n), n // 2, n - 1, n], 1)
    lo, hi = ppr_interval(k, n, np.array([1e-300, 1e-20, 0.5, 1.0]))
    assert (
        np.diff([np.zeros_like(lo), lo, np.broadcast_to(k / n, lo.shape), hi, np.ones_like(hi)], axis=0) >= 0
    ).all()


@pytest.mark.parametrize("schedule", ["summable", "geometric"])
def test_the_shares_of_all_looks_sum_to_at_most_delta(schedule):
    # Looks at 2^0 .. 2^50, and beyond them an integral bound of the rest.
    looks = schedule_level(DELTA, 2.0 ** np.arange(51), schedule)
    rest = 6 * DELTA / np.pi**2 / 51 if schedule == "summable" else DELTA * 2.0**-51
    assert looks.sum() < DELTA <= looks.sum() + rest * 1.05


@given(st.integers(1, 10**6))
def test_a_look_keeps_its_level_until_the_count_has_doubled(n):
    start = epoch_start(n)
    assert start <= n < 2 * start
    for schedule in ("summable", "geometric", "constant", "ppr"):
        assert schedule_level(DELTA, n, schedule) == schedule_level(DELTA, start, schedule)
    assert schedule_level(DELTA, n, "ppr") == schedule_level(DELTA, n, "constant") == DELTA


def test_shares_of_ranks_sum_to_delta():
    assert rank_level(DELTA, np.arange(1, 10**5)).sum() == pytest.approx(DELTA, rel=1e-4)


def test_an_unknown_schedule_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"'summible'.*'summable'"):
        schedule_level(DELTA, 1, "summible")


def share_of_streams_ever_missed(schedule, p, streams=1500, n_max=2000):
    """The interval at n is that of the last look (ppr: of n itself); a stream counts once, however often it misses."""
    rng = np.random.default_rng(5)
    hits = np.cumsum(rng.random((n_max, streams)) < p, axis=0)
    n = np.arange(1, n_max + 1) if schedule == "ppr" else 2 ** np.arange(n_max.bit_length())
    interval = ppr_interval if schedule == "ppr" else clopper_pearson
    lo, hi = interval(hits[n - 1], n[:, None], schedule_level(DELTA, n, schedule)[:, None])
    return np.mean(((p < lo) | (p > hi)).any(0)), streams


@pytest.mark.parametrize("p", [0.08, 0.5])
@pytest.mark.parametrize("schedule", ["summable", "geometric", "ppr"])
def test_anytime_schedules_ever_miss_in_at_most_delta_of_the_streams(schedule, p):
    missed, streams = share_of_streams_ever_missed(schedule, p)
    assert missed <= stats.binom.ppf(1 - 1e-6, streams, DELTA) / streams


@pytest.mark.parametrize("p", [0.08, 0.5])
def test_a_constant_level_ever_misses_far_more_often_than_delta(p):
    missed, _ = share_of_streams_ever_missed("constant", p)
    assert missed > 2.5 * DELTA
