"""Pictures as arrays: any rendered frame to RGB, a frame fitted to another size, several frames in one grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import VideoError

Frame = NDArray[np.uint8]
"""An RGB picture, uint8, shape (height, width, 3)."""


def as_rgb(frame: Any) -> Frame:
    """A rendered frame as RGB: uint8, shape (height, width, 3); a view of it wherever that is possible.

    Takes grey (height, width) and (height, width, 1), RGB, and RGBA, whose alpha is dropped. Values may be
    uint8, bool, other integers from 0 to 255, or floats from 0 to 1.

    Raises:
        VideoError: None, another shape, or values out of range.
    """
    if frame is None:
        raise VideoError(
            "the frame is None: create the env with a render_mode that returns an image, 'rgb_array'"
        )
    image = np.asarray(frame)
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or 0 in image.shape or image.shape[2] not in (1, 3, 4):
        raise VideoError(
            f"a frame of shape {np.shape(frame)} is no picture: (height, width), (height, width, 1), "
            "(height, width, 3) or (height, width, 4) is needed"
        )
    image = _as_bytes(image)
    if image.shape[2] == 1:
        return np.broadcast_to(image, (*image.shape[:2], 3))
    return image[..., :3]


def _as_bytes(image: NDArray[Any]) -> Frame:
    if image.dtype == np.uint8:
        return image
    if image.dtype == np.bool_:
        return image.astype(np.uint8) * np.uint8(255)
    kind, limit = image.dtype.kind, 255 if image.dtype.kind in "iu" else 1
    if kind not in "iuf":
        raise VideoError(f"frames of type {image.dtype} are no pictures: render uint8")
    low, high = image.min(), image.max()
    # Written so that NaN fails as well.
    if not (low >= 0 and high <= limit):
        raise VideoError(
            f"a frame of {image.dtype} holds values from {low} to {high}: integers must lie in 0..255 and "
            "floats in 0..1; render uint8 to be sure"
        )
    return (image if kind != "f" else np.rint(image * 255)).astype(np.uint8)


def fit(frame: Frame, size: tuple[int, int]) -> Frame:
    """The whole frame at ``size`` (width, height): scaled with its proportions kept, centred on black."""
    from PIL import Image

    width, height = size
    if frame.shape[:2] == (height, width):
        return frame
    scale = min(width / frame.shape[1], height / frame.shape[0])
    inner = (max(1, round(frame.shape[1] * scale)), max(1, round(frame.shape[0] * scale)))
    picture = Image.fromarray(np.ascontiguousarray(frame)).resize(inner, Image.Resampling.BILINEAR)
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - inner[1]) // 2, (width - inner[0]) // 2
    canvas[top : top + inner[1], left : left + inner[0]] = np.asarray(picture)
    return canvas


def tile(frames: Sequence[Any], rows: int, cols: int) -> Frame:
    """One picture of ``rows`` x ``cols`` frames, row by row: for a clip of several envs side by side.

    Each is fitted to the size of the first; cells without a frame stay black.

    Raises:
        VideoError: no frame, more frames than cells, or one that is no picture.
    """
    if not 0 < len(frames) <= rows * cols:
        raise VideoError(f"{len(frames)} frames do not fill a grid of {rows}x{cols}: pass 1 to {rows * cols}")
    pictures = [as_rgb(frame) for frame in frames]
    height, width = pictures[0].shape[:2]
    grid = np.zeros((rows * height, cols * width, 3), np.uint8)
    for index, picture in enumerate(pictures):
        top, left = index // cols * height, index % cols * width
        grid[top : top + height, left : left + width] = fit(picture, (width, height))
    return grid
