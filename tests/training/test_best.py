"""Which team of a run counts as the best, and when a task is solved."""

import json
import math

import pytest
from hypothesis import given, strategies as st

from marl_tools.training.best import BestCheckpoint


def test_until_the_window_is_full_the_latest_is_the_best_and_then_the_greatest_average():
    best = BestCheckpoint(window=10)
    offers = [(50.0, 2), (40.0, 6), (30.0, 10), (29.0, 10), (31.0, 10), (31.0, 10), (99.0, 9)]
    taken = [best.offer(average, episodes=count, update=i) for i, (average, count) in enumerate(offers)]
    assert taken == [True, True, True, False, True, False, False]
    assert (best.average, best.update) == (31.0, 4)


def test_no_episode_and_no_number_are_no_offer():
    best = BestCheckpoint()
    assert not best.offer(math.nan, episodes=3, update=0)
    assert not best.offer(5.0, episodes=0, update=0)
    assert best.update is None


@pytest.mark.parametrize(
    ("average", "episodes", "solved"), [(5.0, 10, True), (4.9, 10, False), (99.0, 9, False), (5.0, 200, True)]
)
def test_solved_takes_a_full_window_and_enough_return(average, episodes, solved):
    best = BestCheckpoint(window=10, solved_at=5.0)
    assert not best.solved
    best.offer(average, episodes=episodes, update=0)
    assert best.solved is solved
    assert not BestCheckpoint(window=10).solved


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 8)), max_size=20), st.integers(0, 20))
def test_it_goes_on_from_its_state_as_if_it_had_never_stopped(offers, stop):
    whole, first, second = (BestCheckpoint(window=5) for _ in range(3))
    answers = [whole.offer(average, episodes=n, update=i) for i, (average, n) in enumerate(offers)]
    again = [first.offer(average, episodes=n, update=i) for i, (average, n) in enumerate(offers[:stop])]
    second.load(json.loads(json.dumps(first.state())))
    again += [
        second.offer(average, episodes=n, update=stop + i) for i, (average, n) in enumerate(offers[stop:])
    ]
    assert (again, second.state()) == (answers, whole.state())
