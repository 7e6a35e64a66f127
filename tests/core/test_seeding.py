"""Seeds of episodes: in range, never twice within a run, and a function of both arguments alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.core.seeding import _mix, episode_seed


@pytest.mark.parametrize("run_seed", [0, 123456789])
def test_200_000_episodes_of_a_run_have_as_many_seeds(run_seed):
    seeds = {episode_seed(run_seed, episode) for episode in range(200_000)}
    assert len(seeds) == 200_000
    assert min(seeds) >= 0
    assert max(seeds) < 2**31
    # Spread over the whole range, not crowded at one end.
    counts = np.histogram(list(seeds), bins=16, range=(0, 2**31))[0]
    assert (abs(counts - 12_500) < 600).all()


def inverse_mix(value: int) -> int:
    """Undo `_mix` step by step: the proof that it is a bijection of 31 bits."""
    mask = (1 << 31) - 1
    value = value ^ value >> 15 ^ value >> 30
    value = value * pow(0x297A2D39, -1, 1 << 31) & mask
    value = value ^ value >> 12 ^ value >> 24
    value = value * pow(0x2C1B3C6D, -1, 1 << 31) & mask
    return value ^ value >> 15 ^ value >> 30


@given(st.integers(0, 2**31 - 1))
def test_the_mixing_can_be_undone(value):
    assert inverse_mix(_mix(value)) == value


@settings(max_examples=50)
@given(run_seed=st.integers(-(2**70), 2**70), first=st.integers(0, 2**31 - 2000))
def test_no_two_of_any_thousand_episodes_of_any_run_share_a_seed(run_seed, first):
    seeds = {episode_seed(run_seed, first + n) for n in range(1000)}
    assert len(seeds) == 1000
    assert min(seeds) >= 0
    assert max(seeds) < 2**31


@given(run_seed=st.integers(0, 2**31 - 1), episode=st.integers(0, 2**31 - 1))
def test_numpy_integers_count_as_the_numbers_that_they_are(run_seed, episode):
    expected = episode_seed(run_seed, episode)
    for kind in (np.int32, np.uint32, np.int64, np.uint64):
        assert episode_seed(kind(run_seed), kind(episode)) == expected
    assert type(expected) is int


def test_neighbouring_runs_share_hardly_any_seed():
    runs = [{episode_seed(run, episode) for episode in range(5000)} for run in (0, 1, 2, 3, 2**31, 2**31 + 1)]
    # Six draws of 5000 out of 2**31 would share about 0.2.
    assert sum(map(len, runs)) - len(set().union(*runs)) <= 3
