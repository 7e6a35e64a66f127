"""Performance profiles against a count of runs, and what a profile has to look like."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from marl_tools.bench.statistics import performance_profile
from marl_tools.core.errors import ConfigError

tables = hnp.arrays(float, st.tuples(st.integers(1, 5), st.integers(1, 3)), elements=st.floats(-10, 10))


def generator(seed=0):
    return np.random.default_rng(seed)


def test_the_profile_of_a_fixed_table_counts_runs_strictly_above_tau():
    scores = np.array([[0.0, 0.5], [0.5, 1.0], [1.0, 2.0]])
    profile = performance_profile(scores, [-1, 0, 0.5, 1, 2], rng=generator(), reps=50)
    assert profile.share.tolist() == [1, 5 / 6, 3 / 6, 1 / 6, 0]


@given(tables, hnp.arrays(float, st.integers(1, 6), elements=st.floats(-11, 11)))
@settings(max_examples=50)
def test_a_profile_falls_from_level_to_level_within_its_band_and_is_a_plain_count(scores, taus):
    profile = performance_profile(scores, np.sort(taus), rng=generator(), reps=100)
    flat = scores.reshape(-1).tolist()
    expected = [sum(score > tau for score in flat) / len(flat) for tau in profile.taus]
    np.testing.assert_allclose(profile.share, expected)
    for line in (profile.share, profile.low, profile.high):
        assert (np.diff(line) <= 1e-12).all()
        assert ((line >= 0) & (line <= 1)).all()
    assert (profile.low <= profile.high).all()


def test_the_mean_score_is_the_area_below_the_profile():
    scores = generator(1).uniform(size=(20, 3))
    taus = np.linspace(0, 1, 2001)
    profile = performance_profile(scores, taus, rng=generator(), reps=1)
    assert np.trapezoid(profile.share, taus) == pytest.approx(scores.mean(), abs=1e-3)


def test_the_band_holds_the_binomial_spread_of_many_runs():
    scores = generator(2).uniform(size=(400, 1))
    profile = performance_profile(scores, [0.5], rng=generator(), reps=2000)
    assert profile.high[0] - profile.low[0] == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 400), rel=0.1)


@pytest.mark.parametrize("taus", [[], [1, 0], [0, np.nan]])
def test_taus_that_are_none_or_out_of_order_are_refused(taus):
    with pytest.raises(ConfigError, match="taus="):
        performance_profile([1.0], taus, rng=generator())
