"""The text panel that `RecordVideo(overlay=True)` draws: step, and return and cost of each agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from marl_tools.core.frames import Frame

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

_BRIGHTNESS_UNDER_TEXT = 0.3
_MARGIN = 4


def panel_lines(step: int, returns: Mapping[str, float], costs: Mapping[str, float]) -> list[str]:
    """``step 12``, the team's sums, then a line an agent: the most telling first, for the last may be cut."""
    lines = [f"step {step}"]
    if len(returns) > 1:
        lines.append(f"team  R {sum(returns.values()):.2f}  C {sum(costs.values()):.2f}")
    return lines + [f"{agent}  R {returns[agent]:.2f}  C {costs[agent]:.2f}" for agent in returns]


def draw_panel(frame: Frame, lines: Sequence[str]) -> Frame:
    """A copy of the frame with white text on a darkened box in its top left corner.

    The box takes at most half of the height and 60 % of the width. Lines that do not fit are counted in the last.
    """
    from PIL import Image, ImageDraw

    height, width = frame.shape[:2]
    size = max(10, min(20, height // 32))
    font, line_height = _font(size), size + 2
    room = max(1, (height // 2 - _MARGIN) // line_height)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"+{len(lines) - room + 1} more"] if room > 1 else lines[:1]
    longest = max(int(font.getlength(line)) for line in lines)
    box_width = max(1, min(width * 3 // 5, longest + 2 * _MARGIN))
    box_height = min(height, len(lines) * line_height + _MARGIN)
    text = Image.new("L", (box_width, box_height))
    draw = ImageDraw.Draw(text)
    for row, line in enumerate(lines):
        draw.text((_MARGIN, row * line_height), line, fill=255, font=font)
    ink = np.asarray(text, np.float32)[..., None]
    # In the memory order of the frame, which the clip writer copies fastest.
    picture = frame.copy(order="K")
    box = picture[:box_height, :box_width]
    box[:] = box * (_BRIGHTNESS_UNDER_TEXT * (1 - ink / 255)) + ink
    return picture


@cache
def _font(size: int) -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)
