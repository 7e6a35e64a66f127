"""Copies cut into slices, and the states of vector envs with them."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marl_tools.core.copies import cut_state, join_states, slices
from marl_tools.core.errors import ConfigError


def state(copies):
    return {
        "frames": 12 * copies,
        "episodes_started": 3 * copies,
        "copies": [{"builder": {"episode": k}} for k in range(copies)],
        "worlds": {"block": np.arange(2.0 * copies).reshape(copies, 2), "seeds": list(range(copies))},
    }


@given(st.integers(1, 200), st.data())
def test_slices_hold_every_copy_once_in_order_and_are_as_equal_as_can_be(num_envs, data):
    parts = slices(num_envs, data.draw(st.integers(1, num_envs)))
    assert [copy for part in parts for copy in part] == list(range(num_envs))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 40), st.data())
def test_a_state_that_was_cut_up_and_joined_is_the_same_state(copies, data):
    parts = slices(copies, data.draw(st.integers(1, copies)))
    whole = state(copies)
    cut = [cut_state(whole, part, copies) for part in parts]
    assert [len(part["copies"]) for part in cut] == [len(part) for part in parts]
    assert {part["frames"] for part in cut} == {whole["frames"]}
    np.testing.assert_equal(join_states(cut), whole)


@pytest.mark.parametrize("saved", [2, 4])
def test_the_state_of_another_number_of_copies_is_refused(saved):
    with pytest.raises(ConfigError, match=f"state of {saved} copies cannot be restored in 3"):
        cut_state(state(saved), range(1), 3)
