"""Running statistics against NumPy's over everything seen, lane by lane."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from marl_tools.models.normalise import RunningNorm

LANES, WIDTH = 2, 3
rows = hnp.arrays(
    np.float32,
    st.tuples(st.just(LANES), st.integers(1, 6), st.just(WIDTH)),
    elements=st.floats(-1e3, 1e3, width=32),
)
batches = st.lists(
    rows.flatmap(lambda array: st.tuples(st.just(array), hnp.arrays(bool, array.shape[:2]))),
    min_size=1,
    max_size=5,
)


def feed(norm: RunningNorm, batch: np.ndarray, weights: np.ndarray) -> None:
    norm.update(torch.from_numpy(batch), torch.from_numpy(weights.astype(np.float32)))


def weighted(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (n, d) over rows; a column that does not vary has 1."""
    mean = np.average(values, axis=0, weights=weights)
    variance = np.average((values - mean) ** 2, axis=0, weights=weights)
    return mean, np.sqrt(np.where(variance > 1e-8, variance, 1.0))


@settings(max_examples=60)
@given(batches=batches, decay=st.sampled_from([1.0, 0.9, 0.5]))
def test_statistics_are_numpys_over_all_rows_that_count_older_ones_decayed(batches, decay):
    norm = RunningNorm(LANES, (WIDTH,), decay)
    for batch, counts in batches:
        feed(norm, batch, counts)
    for lane in range(LANES):
        own = [batch[lane][counts[lane]] for batch, counts in batches if counts[lane].any()]
        if not own:
            # Nothing seen: the identity.
            assert (norm.mean[lane] == 0).all()
            assert (norm.std[lane] == 1).all()
            continue
        age = np.concatenate([np.full(len(part), len(own) - 1 - i) for i, part in enumerate(own)])
        assert norm.count[lane].item() == pytest.approx((decay**age).sum())
        values = np.concatenate(own).astype(np.float64)
        if decay == 1.0:
            mean, std = weighted(values, np.ones(len(values)))
        else:
            mean, std = brute_force(own, decay)
        np.testing.assert_allclose(norm.mean[lane, 0], mean, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(norm.std[lane, 0], std, rtol=1e-4)


def brute_force(parts: list[np.ndarray], decay: float) -> tuple[np.ndarray, np.ndarray]:
    """Every row weighs decay to the number of batches after it: the weighted mean and deviation, in one go."""
    weights = np.concatenate(
        [np.full(len(part), decay ** (len(parts) - 1 - i)) for i, part in enumerate(parts)]
    )
    return weighted(np.concatenate(parts).astype(np.float64), weights)


def test_before_the_first_update_it_is_the_identity():
    norm = RunningNorm(2, (3,))
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(norm(x), x)


def test_padding_is_ignored_whatever_it_holds():
    values = np.random.default_rng(0).normal(size=(1, 6, 2)).astype(np.float32)
    plain, padded = RunningNorm(1, (2,)), RunningNorm(1, (2,))
    feed(plain, values, np.ones((1, 6)))
    feed(
        padded,
        np.concatenate([values, np.full((1, 3, 2), 1e6, np.float32)], 1),
        np.array([[1] * 6 + [0] * 3]),
    )
    torch.testing.assert_close(plain.state_dict(), padded.state_dict())


def test_a_lane_learns_from_its_own_rows_alone():
    rng = np.random.default_rng(1)
    values, counts = (
        rng.normal(size=(3, 8, 2)).astype(np.float32),
        np.array([[1] * 8, [0] * 8, [1] * 3 + [0] * 5]),
    )
    together = RunningNorm(3, (2,))
    feed(together, values, counts)
    for lane in range(3):
        alone = RunningNorm(1, (2,))
        feed(alone, values[lane : lane + 1], counts[lane : lane + 1])
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(together.state_dict()[name][lane : lane + 1], value)


@pytest.mark.parametrize("updates", [1, 30, 400])
def test_a_lane_whose_agents_are_away_keeps_what_it_knows(updates):
    norm = RunningNorm(2, (), decay=0.9)
    feed(norm, np.array([[1.0, 3.0], [1.0, 3.0]], np.float32), np.ones((2, 2)))
    before = norm.std[0].item()
    for _ in range(updates):
        feed(norm, np.zeros((2, 2), np.float32), np.array([[0, 0], [1, 1]]))
    assert (norm.mean[0].item(), norm.std[0].item()) == (2.0, before)
    assert norm.count[0].item() == 2.0


@pytest.mark.parametrize("value", [0.0, 5.0, -1e6, 0.1])
def test_a_column_that_never_varies_is_centred_and_keeps_its_scale(value):
    norm = RunningNorm(1, (2,))
    x = torch.full((1, 50, 2), value)
    x[0, :, 1] += torch.arange(50.0)
    for part in x.split(7, 1):
        norm.update(part, torch.ones(1, part.shape[1]))
    assert norm.std[0, 0, 0].item() == 1.0
    assert (norm(x)[..., 0] == 0).all()
    # Its first change comes through at its own size, not blown up.
    assert norm(x + 0.25)[0, 0, 0].item() == pytest.approx(0.25, abs=1e-6)
    assert norm(x)[..., 1].std(correction=0).item() == pytest.approx(1.0, rel=1e-4)


def test_one_row_alone_says_nothing_about_the_scale():
    norm = RunningNorm(1, (1,))
    norm.update(torch.tensor([[[7.0]]]), torch.ones(1, 1))
    assert norm(torch.tensor([[[9.0]]])).item() == 2.0


def test_outliers_are_clipped_at_ten_deviations():
    norm = RunningNorm(1, (1,))
    norm.update(torch.tensor([[[-1.0], [1.0]]]), torch.ones(1, 2))
    assert norm(torch.tensor([[[1e9], [-1e9], [0.5]]])).flatten().tolist() == [10.0, -10.0, 0.5]


def test_a_large_offset_does_not_swallow_a_small_spread():
    values = (1e4 + np.random.default_rng(0).normal(size=(1, 4000, 1))).astype(np.float32)
    norm = RunningNorm(1, (1,))
    for part in np.split(values, 40, axis=1):
        feed(norm, part, np.ones((1, 100)))
    assert norm.std.item() == pytest.approx(values.astype(np.float64).std(), rel=1e-6)


def test_images_have_statistics_an_element():
    values = np.random.default_rng(0).normal(size=(2, 30, 4, 3, 2)).astype(np.float32)
    norm = RunningNorm(2, (4, 3, 2))
    feed(norm, values, np.ones((2, 30)))
    np.testing.assert_allclose(norm.mean[:, 0], values.mean(1), atol=1e-6)
    np.testing.assert_allclose(norm.std[:, 0], values.std(1), rtol=1e-5)


def test_the_statistics_travel_with_the_state():
    norm, other = RunningNorm(1, (2,)), RunningNorm(1, (2,))
    feed(norm, np.random.default_rng(0).normal(size=(1, 9, 2)).astype(np.float32), np.ones((1, 9)))
    other.load_state_dict(norm.state_dict())
    more = np.random.default_rng(1).normal(size=(1, 9, 2)).astype(np.float32)
    for each in (norm, other):
        feed(each, more, np.ones((1, 9)))
    torch.testing.assert_close(norm.state_dict(), other.state_dict(), rtol=0, atol=0)
