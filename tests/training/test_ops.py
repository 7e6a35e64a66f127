"""Advantages against their definition, schedules at their ends, explained variance."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from marl_tools.training.ops import explained_variance, gae, schedule

numbers = st.floats(-100, 100, width=32)
unit = st.floats(0, 1)


@st.composite
def experience(draw):
    """Rewards, values, next values, terminated and ended (terminated, truncated or absent), all (steps, 2, 2)."""
    shape = (draw(st.integers(1, 7)), 2, 2)
    rewards, values, next_values = (draw(arrays(np.float64, shape, elements=numbers)) for _ in range(3))
    terminated, truncated = (draw(arrays(np.bool_, shape)) for _ in range(2))
    return rewards, values, next_values, terminated, terminated | truncated


def advantages_by_definition(rewards, values, next_values, terminated, ended, gamma, lam):
    """sum over k of (gamma lam)^k delta_{t+k}, up to and including the first step that ended."""
    result = np.zeros_like(rewards)
    for t, *lane in np.ndindex(rewards.shape):
        weight = 1.0
        for k in range(t, len(rewards)):
            at = (k, *lane)
            future = 0.0 if terminated[at] else next_values[at]
            result[(t, *lane)] += weight * (rewards[at] + gamma * future - values[at])
            if ended[at]:
                break
            weight *= gamma * lam
    return result


@given(experience(), unit, unit)
def test_advantages_are_the_discounted_sum_of_errors_up_to_the_end_of_the_episode(data, gamma, lam):
    expected = advantages_by_definition(*data, gamma, lam)
    np.testing.assert_allclose(gae(*data, gamma=gamma, lam=lam), expected, rtol=1e-9, atol=1e-9)


@given(experience(), unit)
def test_with_lambda_1_the_target_is_the_discounted_return_plus_the_value_at_the_cut(data, gamma):
    rewards, values, next_values, terminated, ended = data
    targets = gae(*data, gamma=gamma, lam=1.0) + values
    for t, *lane in np.ndindex(rewards.shape):
        k, expected, weight = t, 0.0, 1.0
        while True:
            at = (k, *lane)
            expected += weight * rewards[at]
            weight *= gamma
            if ended[at] or k == len(rewards) - 1:
                break
            # In between, values cancel only where they agree with the next values of the step before.
            expected += weight * (next_values[at] - values[(k + 1, *lane)])
            k += 1
        expected += 0.0 if terminated[at] else weight * next_values[at]
        assert targets[(t, *lane)] == pytest.approx(expected, rel=1e-9, abs=1e-7)


def test_a_termination_hides_what_comes_after_it_even_if_that_is_infinite():
    yes, no = np.array([[True]]), np.array([[False]])
    one = np.ones((1, 1))
    assert gae(one, one, one * np.inf, yes, yes, gamma=0.9, lam=0.9).item() == 0.0
    assert gae(one, one, one * 10, no, yes, gamma=0.9, lam=0.9).item() == pytest.approx(9.0)


@given(numbers, numbers)
def test_a_schedule_starts_at_its_start_and_reaches_exactly_its_end(start, end):
    for kind in ("linear", "cosine", "exponential"):
        assert schedule(kind, start, end, 0.0) == schedule(kind, start, end, -0.5) == start
        assert schedule(kind, start, end, 1.0) == schedule(kind, start, end, 1.5) == end
    for kind in ("linear", "cosine"):
        assert schedule(kind, start, end, 0.5) == pytest.approx((start + end) / 2, abs=1e-5)
    assert schedule("constant", start, end, 1.0) == start


@pytest.mark.parametrize("kind", ["linear", "cosine", "exponential"])
def test_a_schedule_with_end_0_decays_all_the_way(kind):
    values = [schedule(kind, 1.0, 0.0, progress) for progress in np.linspace(0, 1, 11)]
    assert all(later < earlier for earlier, later in itertools.pairwise(values))
    assert values[-1] == 0.0


def test_an_exponential_schedule_loses_the_same_share_of_the_way_down_in_equal_times():
    values = [schedule("exponential", 3.0, -1.0, progress) for progress in (0.0, 0.25, 0.5, 0.75)]
    falls = [earlier - later for earlier, later in itertools.pairwise(values)]
    assert falls[1] / falls[0] == pytest.approx(falls[2] / falls[1]) == pytest.approx(math.exp(-5 / 4))


def test_a_cosine_falls_slowly_first_and_a_linear_schedule_evenly():
    assert schedule("linear", 8.0, 0.0, 0.25) == pytest.approx(6.0)
    assert schedule("cosine", 8.0, 0.0, 0.25) == pytest.approx(4 * (1 + math.sqrt(0.5)))


def test_explained_variance_is_1_for_the_truth_0_for_the_mean_and_undefined_for_a_constant():
    target = np.array([1.0, 2.0, 3.0, 6.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(target + 5, target) == 1.0, "an offset is not variance"
    assert explained_variance(np.full(4, 3.0), target) == 0.0
    assert explained_variance(-target, target) == -3.0
    assert math.isnan(explained_variance(target, np.full(4, 2.0)))
