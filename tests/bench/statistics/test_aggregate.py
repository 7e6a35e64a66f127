"""Aggregates against loops in plain Python and SciPy, and what bootstrap intervals have to be."""

import math
import statistics
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from marl_tools.bench.statistics import AGGREGATES, iqm, mean, median, optimality_gap, stratified_bootstrap
from marl_tools.core.errors import ConfigError

FIXED = np.array(
    [[0.1, 0.9, -0.3], [0.4, 1.2, 0.0], [0.2, 0.8, 0.7], [0.9, 1.1, 0.3], [5.0, 1.0, 0.2]]
)  # 5 runs, 3 tasks; one wild run

tables = hnp.arrays(
    float,
    st.tuples(st.integers(1, 6), st.integers(1, 4)),
    elements=st.floats(-1e6, 1e6, allow_subnormal=False),
)


def generator(seed=0):
    return np.random.default_rng(seed)


def trimmed(values):
    """The published definition, one score at a time: sort all, cut a quarter (whole scores) at each end, average."""
    left = sorted(values)
    for _ in range(int(0.25 * len(values))):
        left = left[1:-1]
    return math.fsum(left) / len(left)


def test_the_aggregates_of_a_fixed_table_worked_out_by_hand():
    # Of 15 scores three go at each end: 0.2, 0.2, 0.3, 0.4, 0.7, 0.8, 0.9, 0.9, 1.0 stay.
    assert iqm(FIXED) == pytest.approx(5.4 / 9)
    assert mean(FIXED) == pytest.approx(12.5 / 15)
    # Tasks have the means 1.32, 1.0 and 0.18.
    assert median(FIXED) == pytest.approx(1.0)
    # What is missing to 1, task by task; the wild run makes up for nothing.
    assert optimality_gap(FIXED) == pytest.approx(
        ((0.9 + 0.6 + 0.8 + 0.1) + (0.1 + 0.2) + (1.3 + 1 + 0.3 + 0.7 + 0.8)) / 15
    )


@given(tables)
@settings(max_examples=40)
def test_the_iqm_is_scipys_trimmed_mean_and_that_of_a_loop(scores):
    expected = trimmed(scores.reshape(-1).tolist())
    scale = 1e-9 * max(1.0, np.abs(scores).max())
    assert iqm(scores) == pytest.approx(expected, abs=scale)
    assert iqm(scores) == pytest.approx(float(stats.trim_mean(scores, 0.25, axis=None)), abs=scale)


@given(tables)
@settings(max_examples=40)
def test_median_and_gap_are_those_of_loops(scores):
    columns = scores.T.tolist()
    scale = 1e-9 * max(1.0, np.abs(scores).max())
    assert median(scores) == pytest.approx(statistics.median(map(statistics.fmean, columns)), abs=scale)
    gaps = [max(0.0, 1 - score) for column in columns for score in column]
    assert optimality_gap(scores) == pytest.approx(statistics.fmean(gaps), abs=scale)


@given(tables, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_no_aggregate_depends_on_the_order_of_runs_or_tasks(scores, random):
    rows, columns = list(range(len(scores))), list(range(scores.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    scale = 1e-9 * max(1.0, np.abs(scores).max())
    for statistic in AGGREGATES.values():
        assert statistic(scores[rows][:, columns]) == pytest.approx(float(statistic(scores)), abs=scale)


@given(tables, st.floats(0, 100))
@settings(max_examples=40)
def test_a_better_run_never_makes_an_aggregate_worse(scores, gain):
    better = scores.copy()
    better[0, 0] += gain
    scale = 1e-9 * max(1.0, np.abs(scores).max())
    for name, statistic in AGGREGATES.items():
        moved = float(statistic(better) - statistic(scores))
        assert (-moved if name == "optimality_gap" else moved) >= -scale


@given(tables)
@settings(max_examples=40)
def test_statistics_of_many_tables_at_once_are_those_of_each(scores):
    batch = np.stack([scores, scores + 1.0, scores[::-1]])
    for statistic in AGGREGATES.values():
        assert statistic(batch).tolist() == [float(statistic(table)) for table in batch]


def test_the_interval_is_the_percentiles_of_resamples_within_tasks():
    # Two runs a task: each resampled mean takes one of three values a task, in shares of 1, 2 and 1 in 4.
    scores = np.array([[0.0, 0.0], [1.0, 10.0]])
    seen = []

    def spy(batch):
        seen.append(batch)
        return batch.mean((-2, -1))

    low, high = stratified_bootstrap(scores, spy, rng=generator(), reps=4000, confidence=0.8)
    drawn = np.concatenate(seen)
    assert drawn.shape == (4000, 2, 2)
    # A run's score on one task never lands in another.
    assert set(drawn[..., 0].reshape(-1)) == {0.0, 1.0}
    assert set(drawn[..., 1].reshape(-1)) == {0.0, 10.0}
    for task in (0, 1):
        counts = np.unique(drawn[..., task].mean(1), return_counts=True)[1] / 4000
        np.testing.assert_allclose(counts, [0.25, 0.5, 0.25], atol=0.03)
    # Tasks are drawn apart: nine sums, and the least and the greatest are 1/16 each.
    assert len(np.unique(drawn.mean((1, 2)))) == 9
    assert (low, high) == tuple(np.quantile(drawn.mean((1, 2)), [0.1, 0.9]))


@pytest.mark.parametrize("name", AGGREGATES)
def test_the_interval_of_many_runs_agrees_with_scipys_bootstrap(name):
    scores = generator(1).normal(size=(40, 1))
    statistic = AGGREGATES[name]
    ours = stratified_bootstrap(scores, statistic, rng=generator(2), reps=4000)

    def flat(sample, axis):
        return statistic(np.moveaxis(sample, axis, -1)[..., None])

    theirs = stats.bootstrap(
        (scores[:, 0],), flat, n_resamples=4000, method="percentile", rng=generator(3)
    ).confidence_interval
    np.testing.assert_allclose(ours, theirs, atol=0.05)


@given(tables, st.floats(0.01, 0.99))
@settings(max_examples=30)
def test_an_interval_lies_within_the_scores_and_widens_with_confidence(scores, confidence):
    narrow, wide = (
        stratified_bootstrap(scores, iqm, rng=generator(), reps=200, confidence=level)
        for level in (confidence * 0.9, confidence)
    )
    assert scores.min() - 1e-6 <= wide[0] <= narrow[0] <= narrow[1] <= wide[1] <= scores.max() + 1e-6


def test_a_bootstrap_interval_of_many_runs_holds_the_truth_about_as_often_as_it_says():
    rng, hits = generator(5), 0
    for _ in range(200):
        scores = rng.normal(loc=[0.0, 3.0], size=(20, 2))
        low, high = stratified_bootstrap(scores, mean, rng=rng, reps=300, confidence=0.9)
        hits += bool(low <= 1.5 <= high)
    # Of 200 at 0.9: four standard deviations are 0.085.
    assert 0.8 <= hits / 200 <= 0.985


def test_a_vector_of_statistics_has_a_vector_of_ends():
    low, high = stratified_bootstrap(FIXED, lambda batch: batch.mean(1), rng=generator(), reps=50)
    assert low.shape == high.shape == (3,)
    assert (low <= FIXED.mean(0)).all()
    assert (FIXED.mean(0) <= high).all()


def test_equal_generators_give_equal_intervals_and_one_task_may_be_a_list():
    scores = generator(6).normal(size=12).tolist()
    first, again = (stratified_bootstrap(scores, mean, rng=generator(7), reps=100) for _ in range(2))
    assert first == again
    assert stratified_bootstrap(scores, mean, rng=generator(8), reps=100) != first


def test_more_scores_than_fit_into_one_batch_are_still_all_resampled():
    scores = generator().normal(size=(3000, 50))
    counted = []
    stratified_bootstrap(
        scores, lambda batch: counted.append(len(batch)) or batch.mean((1, 2)), rng=generator(), reps=5
    )
    assert sum(counted) == 5
    assert len(counted) > 1


@pytest.mark.parametrize(
    ("scores", "changes", "hint"),
    [
        ([], {}, r"shape \(0,\)"),
        (np.zeros((2, 3, 4)), {}, r"shape \(2, 3, 4\)"),
        (np.zeros((2, 0)), {}, r"shape \(2, 0\)"),
        ([1.0, math.nan], {}, "1 values that are no finite number"),
        ([1.0, math.inf], {}, "no finite number"),
        ([1.0], {"reps": 0}, "reps=0"),
        ([1.0], {"confidence": 95}, "confidence=95"),
        ([1.0], {"confidence": 1}, "confidence=1"),
    ],
)
def test_scores_and_settings_that_cannot_be_are_refused_with_the_remedy(scores, changes, hint):
    with pytest.raises(ConfigError, match=hint):
        stratified_bootstrap(scores, partial(optimality_gap, target=2.0), rng=generator(), **changes)
