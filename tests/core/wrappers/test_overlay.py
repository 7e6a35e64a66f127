"""The text panel: readable on light and dark, never over more than its corner."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.core.wrappers.overlay import draw_panel, panel_lines

sides = st.integers(2, 200)


def test_lines_begin_with_step_and_team_and_a_single_agent_needs_no_team():
    assert panel_lines(3, {"a": 1.0, "b": -2.5}, {"a": 0.0, "b": 4.0}) == [
        "step 3",
        "team  R -1.50  C 4.00",
        "a  R 1.00  C 0.00",
        "b  R -2.50  C 4.00",
    ]
    assert panel_lines(0, {"a": 1.0}, {"a": 0.0}) == ["step 0", "a  R 1.00  C 0.00"]


@settings(max_examples=50, deadline=None)
@given(height=sides, width=sides, agents=st.integers(1, 40), turned=st.booleans())
def test_the_panel_keeps_to_its_corner_on_any_frame_and_leaves_the_frame_alone(height, width, agents, turned):
    frame = np.full((width, height, 3), 120, np.uint8).transpose(1, 0, 2)
    frame = frame if turned else np.ascontiguousarray(frame)
    drawn = draw_panel(frame, panel_lines(1, *[{f"agent_{i}": 0.0 for i in range(agents)}] * 2))
    assert (frame == 120).all()
    assert drawn.shape == frame.shape
    assert drawn.strides == frame.strides
    changed = (drawn != 120).any(axis=2)
    assert not changed[:, width * 3 // 5 + 1 :].any()
    # One line is always drawn, however low the frame.
    assert not changed[max(16, height // 2) :].any()


@pytest.mark.parametrize("background", [0, 255])
def test_white_text_stands_out_on_light_and_dark(background):
    drawn = draw_panel(np.full((240, 320, 3), background, np.uint8), ["step 12"])[:15, :60].astype(int)
    assert drawn.max() > 200
    assert np.median(drawn) < 100


def test_lines_that_do_not_fit_are_counted():
    many = draw_panel(np.zeros((100, 200, 3), np.uint8), [f"line {i}" for i in range(9)])
    told = draw_panel(np.zeros((100, 200, 3), np.uint8), ["line 0", "line 1", "+7 more"])
    assert np.array_equal(many, told)


def test_even_a_single_pixel_is_no_error():
    assert draw_panel(np.zeros((1, 1, 3), np.uint8), ["step 12"]).shape == (1, 1, 3)
