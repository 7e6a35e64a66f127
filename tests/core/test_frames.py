"""Rendered frames as RGB pictures, fitted and tiled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from marl_tools.core.errors import VideoError
from marl_tools.core.frames import as_rgb, fit, tile
from tests.core.film import rgb

sides = st.integers(1, 40)
grey = sides.flatmap(lambda height: sides.flatmap(lambda width: arrays(np.uint8, (height, width))))


@given(grey)
def test_a_grey_picture_has_three_equal_channels_however_it_is_shaped(image):
    for frame in (image, image[..., None], np.dstack([image] * 3), np.dstack([image] * 4)):
        result = as_rgb(frame)
        assert result.shape == (*image.shape, 3)
        assert result.dtype == np.uint8
        assert all(np.array_equal(result[..., channel], image) for channel in range(3))


def test_an_rgb_frame_is_not_copied():
    frame = rgb(5)
    assert np.shares_memory(as_rgb(frame), frame)


@given(grey)
def test_floats_from_0_to_1_bools_and_wide_integers_keep_their_picture(image):
    assert np.array_equal(as_rgb(image / 255)[..., 0], image)
    assert np.array_equal(as_rgb(image.astype(np.int64))[..., 0], image)
    assert np.array_equal(as_rgb(image > 99)[..., 0], (image > 99) * 255)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (None, "frame is None.*rgb_array"),
        ("a text", "no picture"),
        (np.zeros((3, 64, 64, 3), np.uint8), r"\(3, 64, 64, 3\)"),
        (np.zeros((64, 64, 2), np.uint8), r"\(64, 64, 2\)"),
        (np.zeros((0, 64, 3), np.uint8), r"\(0, 64, 3\)"),
        (np.full((4, 4, 3), 200.0), "200.0.*0..1"),
        (np.full((4, 4, 3), np.nan), "nan"),
        (np.full((4, 4, 3), -1), "from -1"),
        (np.full((4, 4, 3), 256), "to 256"),
        (np.full((4, 4, 3), "x"), "no pictures"),
    ],
)
def test_what_is_no_picture_is_refused_with_the_reason(frame, words):
    with pytest.raises(VideoError, match=words):
        as_rgb(frame)


@given(grey, sides, sides)
def test_a_fitted_frame_has_the_size_asked_for_and_no_brighter_pixel(image, width, height):
    result = fit(as_rgb(image), (width, height))
    assert result.shape == (height, width, 3)
    assert result.max(initial=0) <= image.max(initial=0)


def test_a_frame_is_scaled_as_a_whole_and_centred_on_black():
    result = fit(np.full((10, 20, 3), 200, np.uint8), (40, 40))
    assert (result[10:30] == 200).all()
    assert (result[:10] == 0).all()
    assert (result[30:] == 0).all()


def test_tiles_run_row_by_row_and_a_missing_one_is_black():
    frames = [np.full((8, 6, 3), value, np.uint8) for value in (10, 20, 30)]
    grid = tile(frames, 2, 2)
    assert grid.shape == (16, 12, 3)
    corners = [grid[top, left, 0] for top in (0, 15) for left in (0, 11)]
    assert corners == [10, 20, 30, 0]


@pytest.mark.parametrize("count", [0, 5])
def test_a_grid_that_its_frames_cannot_fill_is_refused(count):
    with pytest.raises(VideoError, match=f"{count} frames do not fill a grid of 2x2"):
        tile([rgb(0)] * count, 2, 2)
