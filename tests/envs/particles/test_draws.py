"""Draws for many seeds at once are those of a freshly seeded NumPy generator."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.envs.particles.draws import SeededDraws

# Of the greatest count a quarter of all words is refused, of the others almost none.
COUNTS = st.sampled_from([1, 2, 3, 7, 3 << 30])


def of_numpy(seed, choices, uniforms):
    generator = np.random.Generator(np.random.PCG64(seed))
    chosen = [int(generator.integers(n)) for n in choices]
    return chosen, generator.random(uniforms).tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=30),
    st.lists(COUNTS, max_size=4),
    st.integers(0, 12),
)
def test_every_column_is_what_numpy_draws_with_that_seed(seeds, choices, uniforms):
    chosen, numbers = SeededDraws(choices, uniforms).draw(seeds)
    assert chosen.shape == (len(choices), len(seeds))
    assert numbers.shape == (uniforms, len(seeds))
    for column, seed in enumerate(seeds):
        expected = of_numpy(seed, choices, uniforms)
        assert (chosen[:, column].tolist(), numbers[:, column].tolist()) == expected


@pytest.mark.parametrize("choices", [(), (3,), (3 << 30, 2)])
def test_the_ends_of_the_range_and_many_seeds_together(choices):
    seeds = [0, 1, 2**31 - 1, 2**32 - 1, *range(5000, 5600)]
    chosen, numbers = SeededDraws(choices, 10).draw(seeds)
    for column, seed in enumerate(seeds):
        assert (chosen[:, column].tolist(), numbers[:, column].tolist()) == of_numpy(seed, choices, 10)
