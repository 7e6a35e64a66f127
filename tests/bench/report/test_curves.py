import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.bench.report.curves import BINS, Curve, EpisodeCurves, mean_curve, thinned
from marl_tools.core.errors import CorruptFileError
from marl_tools.training.evaluate import mean_interval


def episode(t_end, returns, *, costs=None, violation=None, split="train", end="terminated", **more):
    costs = costs or dict.fromkeys(returns, 0.0)
    return {
        "t_end": t_end,
        "split": split,
        "returns": returns,
        "costs": costs,
        "lengths": dict.fromkeys(returns, 4),
        "ends": dict.fromkeys(returns, end),
        "first_violation": dict.fromkeys(returns, violation),
        "overrides": {},
        "fallbacks": {},
        "unverified": {},
        **more,
    }


def folded(rows, timesteps):
    curves = EpisodeCurves(timesteps)
    for row in rows:
        curves.add(row)
    return curves


ends = st.lists(st.tuples(st.integers(1, 5000), st.integers(-50, 50)), min_size=1, max_size=300)


@settings(deadline=None, max_examples=60)
@given(ends, st.integers(1, 5000))
def test_a_run_of_any_length_keeps_every_episode_and_their_mean(rows, timesteps):
    curves = folded([episode(t, {"a": r, "b": -r + 1}) for t, r in rows], timesteps)
    bins = curves._bins["return", "a"]
    assert sum(bins.count) == len(rows)
    assert sum(bins.total) == pytest.approx(sum(r for _, r in rows))
    assert max(t for t, _ in rows) <= curves.width * BINS * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(ends, st.integers(16, BINS))
def test_points_are_the_means_and_intervals_of_the_episodes_that_ended_there(rows, points):
    curves = folded([episode(t, {"a": r}) for t, r in rows], 5000)
    curve = curves.mean("return", "a", points=points)
    assert len(curve.x) <= points
    width = 2 * curve.x[0]
    for x, y, lo, hi in zip(*curve, strict=True):
        here = [r for t, r in rows if x - width / 2 < t <= x + width / 2 + 1e-6]
        expected = mean_interval(here, 0.95)
        assert y == pytest.approx(expected["mean"], nan_ok=True)
        assert [lo, hi] == pytest.approx(expected["interval"] or [math.nan] * 2, nan_ok=True, abs=1e-6)


def test_rates_count_episodes_and_have_exact_intervals():
    rows = [episode(100, {"a": 0.0}, violation=1 if i < 3 else None) for i in range(40)]
    rate = folded(rows, 100).rate()
    assert rate.y[-1] == pytest.approx(3 / 40)
    assert (rate.lo[-1], rate.hi[-1]) == pytest.approx((0.0157, 0.2039), abs=1e-3)


def test_violations_so_far_never_fall_and_end_at_their_number():
    rows = [episode(10 * i + 1, {"a": 0.0}, violation=2 if i % 3 == 0 else None) for i in range(100)]
    y = folded(rows, 1000).violations_so_far().y
    assert (np.diff(y) >= 0).all()
    assert y[-1] == 34


def test_overrides_are_a_share_of_the_steps_of_those_who_played():
    rows = [episode(5, {"a": 0.0, "b": 0.0}, overrides={"b": 2}) for _ in range(50)]
    curves = folded(rows, 5)
    assert curves.share_of_steps("overrides", "b").y[-1] == pytest.approx(0.5)
    assert curves.share_of_steps("overrides").y[-1] == pytest.approx(0.25)


def test_evaluations_on_the_way_and_interrupted_episodes_are_no_training_episodes():
    rows = [episode(8, {"a": 1.0}, split="eval"), episode(8, {"a": 9.0}, end="interrupted")]
    curves = folded(rows, 8)
    assert len(curves.mean("return").x) == 0
    assert curves.evaluations == {8: [1.0]}


@pytest.mark.parametrize(
    "damage",
    [
        {"returns": 3},
        {"returns": {"a": "x"}},
        {"t_end": None},
        {"t_end": math.inf},
        {"lengths": {}},
        {"ends": []},
    ],
)
def test_a_row_that_is_no_episode_is_refused(damage):
    with pytest.raises(CorruptFileError, match="not an episode log"):
        EpisodeCurves(10).add({**episode(1, {"a": 1.0}), **damage})


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(1, 100))
def test_a_thinned_series_has_few_points_in_order_and_their_means(y, points):
    x, means = thinned(range(len(y)), y, points)
    assert len(x) <= points or len(x) == len(y) <= points
    assert (np.diff(x) > 0).all()
    size = -(-len(y) // points)
    assert means[0] == pytest.approx(np.mean(y[:size]), abs=1e-6)


def test_the_mean_over_runs_goes_as_far_as_all_of_them():
    x = np.arange(1.0, 6)
    one, other = Curve(x, x, x, x), Curve(x[:3], x[:3] + 2, x[:3], x[:3])
    mean = mean_curve([one, other])
    assert mean.x.tolist() == [1, 2, 3]
    assert mean.y.tolist() == [2, 3, 4]
    expected = mean_interval([1.0, 3.0], 0.95)["interval"]
    assert [mean.lo[0], mean.hi[0]] == pytest.approx(expected)


def test_one_run_alone_has_no_interval():
    x = np.arange(1.0, 6)
    mean = mean_curve([Curve(x, x, x, x)])
    assert np.isnan(mean.lo).all()
