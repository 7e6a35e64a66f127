"""Comparisons of two methods against SciPy, brute force and the definitions of the papers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from marl_tools.bench.statistics import (
    caveats,
    holm,
    paired_permutation_test,
    probability_of_improvement,
    smallest_p,
)
from marl_tools.core.errors import ConfigError

# Whole numbers, so that ties and equal sums are equal.
whole = st.integers(-5, 5).map(float)
p_values = st.lists(st.floats(0, 1, allow_subnormal=False), max_size=8)


def columns(rows):
    return hnp.arrays(float, rows, elements=whole)


def generator(seed=0):
    return np.random.default_rng(seed)


def improvement(x, y, **changes):
    return probability_of_improvement(x, y, rng=generator(), **{"reps": 50, **changes})


def test_the_probability_of_improvement_of_fixed_tables_worked_out_by_hand():
    x = np.array([[1.0, 5.0], [2.0, 5.0]])
    y = np.array([[1.0, 4.0], [1.5, 5.0], [3.0, 6.0]])
    # Task 0: 1 ties with 1, 2 beats 1 and 1.5: 2.5 of 6. Task 1: each 5 beats 4 and ties with 5: 3 of 6.
    assert improvement(x, y).probability == pytest.approx((2.5 / 6 + 3 / 6) / 2)


@given(columns(st.tuples(st.integers(1, 5), st.just(2))), columns(st.tuples(st.integers(1, 5), st.just(2))))
@settings(max_examples=40)
def test_it_is_the_mann_whitney_statistic_over_all_pairs_averaged_over_tasks(x, y):
    expected = np.mean(
        [stats.mannwhitneyu(x[:, task], y[:, task]).statistic / (len(x) * len(y)) for task in (0, 1)]
    )
    assert improvement(x, y).probability == pytest.approx(float(expected))


@given(columns(st.integers(1, 5)), columns(st.integers(1, 5)), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_it_is_a_probability_with_its_complement_whatever_the_order_of_runs(x, y, random):
    shuffled = x.tolist()
    random.shuffle(shuffled)
    there, back = improvement(x, y), improvement(y, x)
    assert there.probability + back.probability == pytest.approx(1)
    assert improvement(shuffled, y).probability == pytest.approx(there.probability)
    assert 0 <= there.low <= there.high <= 1
    # A better run of x never makes it less.
    assert improvement(x + 1, y).probability >= there.probability


def test_its_interval_resamples_both_methods():
    x, y = np.array([0.0, 3.0]), np.array([1.0, 2.0])
    # x resampled is all 0, all 3 or mixed: 0, 1 or 1/2, in shares of 1, 1 and 2 in 4; y changes nothing.
    mine = improvement(x, y, reps=4000, confidence=0.4)
    assert (mine.low, mine.high) == (0.5, 0.5)
    assert (improvement(x, y, reps=4000).low, improvement(x, y, reps=4000).high) == (0, 1)
    # Only y varies here.
    theirs = improvement([1.0, 1.0], [0.0, 2.0], reps=4000)
    assert (theirs.low, theirs.probability, theirs.high) == (0, 0.5, 1)


@given(columns(st.integers(2, 7)), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_the_exact_test_is_the_share_of_all_sign_flips_and_that_of_scipy(x, random):
    y = np.array([random.randint(-5, 5) for _ in x], float)
    flips = [
        abs(sum(sign * (a - b) for sign, a, b in zip(signs, x, y, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(x))
    ]
    p = paired_permutation_test(x, y)
    assert p == sum(flip >= abs((x - y).sum()) for flip in flips) / len(flips)
    # SciPy's two-sided p is twice the smaller tail, which is the same for a symmetric law.
    theirs = stats.permutation_test(
        (x, y), lambda a, b, axis: np.mean(a - b, axis=axis), permutation_type="samples", vectorized=True
    )
    assert p == pytest.approx(theirs.pvalue)


@given(columns(st.integers(1, 8)), st.floats(0.1, 10))
@settings(max_examples=40)
def test_p_depends_neither_on_which_method_comes_first_nor_on_the_unit(x, unit):
    y = np.zeros_like(x)
    p = paired_permutation_test(x, y)
    assert p == paired_permutation_test(y, x) == paired_permutation_test(x[::-1], y)
    assert p == paired_permutation_test(unit * x, unit * y)
    assert smallest_p(len(x)) <= p <= 1


@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 10, 16])
def test_the_least_p_is_reached_where_one_method_always_wins(seeds):
    p = paired_permutation_test(np.arange(1.0, seeds + 1), np.zeros(seeds))
    assert p == smallest_p(seeds) == min(1, 2 / 2**seeds)


def test_sums_that_differ_only_in_their_rounding_are_as_extreme():
    # 0.1 + 0.2 and 0.3 - 0 differ in the last bit.
    assert paired_permutation_test([0.1, 0.2, 0.3], [0.0, 0.0, 0.0]) == 0.25
    assert paired_permutation_test([0.1, 0.2, -0.3], [0.0, 0.0, 0.0]) == 1.0


def test_seeds_on_several_tasks_are_pairs_of_their_own():
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert paired_permutation_test(x, np.zeros((2, 2))) == smallest_p(4)


def test_many_pairs_are_sampled_and_agree_with_the_normal_law():
    x = generator(1).normal(0.25, size=60)
    sampled = paired_permutation_test(x, np.zeros(60), rng=generator(2), reps=20_000)
    normal = 2 * stats.norm.sf(abs(x.sum()) / math.sqrt((x**2).sum()))
    assert sampled == pytest.approx(normal, abs=0.01)
    # Never 0, however clear it is.
    assert paired_permutation_test(np.ones(60), np.zeros(60), rng=generator(), reps=999) == 1 / 1000


@pytest.mark.parametrize("seeds", [6, 20])
def test_without_a_difference_p_is_below_alpha_no_more_often_than_alpha(seeds):
    rng = generator(3)
    low = [
        paired_permutation_test(rng.normal(size=seeds), rng.normal(size=seeds), rng=rng, reps=199) <= 0.1
        for _ in range(400)
    ]
    # Four standard deviations of 400 draws at 0.1 are 0.06.
    assert np.mean(low) <= 0.16


def definition(values):
    """Holm 1979, test by test: reject in order while p_(k) <= alpha / (m - k + 1); the least alpha that rejects each."""
    order = sorted(range(len(values)), key=values.__getitem__)

    def rejected(alpha):
        kept = set()
        for k, index in enumerate(order):
            if values[index] > alpha / (len(values) - k):
                break
            kept.add(index)
        return kept

    candidates = sorted(
        {min(1.0, (len(values) - k) * values[index]) for k, index in enumerate(order)} | {1.0}
    )
    return [
        next((alpha for alpha in candidates if index in rejected(alpha * (1 + 1e-9))), 1.0)
        for index in range(len(values))
    ]


@given(p_values)
@settings(max_examples=40)
def test_holm_is_the_least_level_at_which_its_procedure_rejects(values):
    np.testing.assert_allclose(holm(values), definition(values), rtol=1e-6)


@given(p_values, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_holm_keeps_the_order_between_bonferroni_and_the_p_values(values, random):
    adjusted = holm(values)
    assert (adjusted >= np.array(values)).all()
    assert (adjusted <= np.minimum(1, len(values) * np.array(values)) + 1e-12).all()
    assert (np.diff(adjusted[np.argsort(values, kind="stable")]) >= 0).all()
    order = list(range(len(values)))
    random.shuffle(order)
    np.testing.assert_array_equal(holm([values[i] for i in order]), adjusted[order])


def test_holm_worked_out_by_hand_with_a_test_that_was_not_made():
    np.testing.assert_allclose(holm([0.01, math.nan, 0.04, 0.03, 0.005]), [0.03, math.nan, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    ("ask", "hint"),
    [
        (lambda: holm([0.5, 1.5]), r"p_values=\[0.5, 1.5\]"),
        (lambda: holm([-0.1]), "p-value lies in"),
        (lambda: paired_permutation_test([1.0, 2.0], [1.0]), r"\(2, 1\) and y \(1, 1\)"),
        (lambda: paired_permutation_test([1.0, math.nan], [1.0, 2.0]), "x holds 1 values"),
        (lambda: paired_permutation_test(np.ones(17), np.ones(17)), "17 pairs.*give rng"),
        (lambda: improvement(np.ones((2, 2)), np.ones((2, 3))), "x has 2 tasks and y 3"),
        (lambda: improvement([], [1.0]), "x of shape"),
        (lambda: improvement([1.0], [1.0], reps=0), "reps=0"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_remedy(ask, hint):
    with pytest.raises(ConfigError, match=hint):
        ask()


def test_few_seeds_are_told_what_they_cannot_show():
    assert caveats(3)[0] == (
        "With 3 seeds a paired sign-flip test cannot give p < 0.25; no claim of a difference is made."
    )
    assert "too narrow" in caveats(4)[1]
    assert "1 seed a paired" in caveats(1)[0]
    assert "no intervals" in caveats(1)[1]
    assert "no seed" in caveats(0)[0]
    [five] = caveats(5)
    assert "single task cannot give p < 0.0625" in five
    assert caveats(6) == []
    assert caveats(6, alpha=0.01) != []
