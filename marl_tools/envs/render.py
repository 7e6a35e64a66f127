"""Pictures of a game: its map, goals and tokens, with crosses for violations and rings for a shield's overrides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from marl_tools.envs.game import Game

# Okabe and Ito's palette, which colour-blind people can tell apart.
_AGENTS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_THING = "#6B4E2E"
_FLOOR, _LINE, _WALL, _HAZARD = "#F7F5F0", "#DDD9CF", "#3C4250", "#F2C14E"
_CRACK, _PLANT, _INK, _ALARM, _RING = "#B5651D", "#7FB069", "#202020", "#D00000", "#FFE100"
_MAX_SIDE, _MIN_CELL, _MAX_CELL = 640, 24, 64


def draw(
    game: Game,
    tokens: NDArray[np.integer],
    *,
    violated: Sequence[bool] | NDArray[np.bool_],
    overridden: Sequence[bool],
    caption: str,
) -> NDArray[np.uint8]:
    """An RGB picture (H, W, 3) with even sides.

    ``tokens`` (F,) are cells, those off the map are not drawn. Tokens that share a cell are drawn smaller, side by side.
    """
    from PIL import Image, ImageDraw

    size = _cell_size(game)
    picture = Image.fromarray(_background(game, size))
    pen = ImageDraw.Draw(picture)
    on_map = [f for f, cell in enumerate(tokens) if cell < game.grid.num_cells]
    for token in on_map:
        company = [other for other in on_map if tokens[other] == tokens[token]]
        place = (company.index(token) + 0.5) / len(company)
        x = float((game.grid.columns[tokens[token]] + place) * size)
        y = float((game.grid.rows[tokens[token]] + 0.5) * size)
        radius = 0.38 * size / len(company) ** 0.7
        agent = token < len(game.agents)
        colour = _AGENTS[token] if agent else _THING
        if agent and overridden[token]:
            _disc(pen, x, y, radius + 0.1 * size, _INK)
            _disc(pen, x, y, radius + 0.07 * size, _RING)
        _disc(pen, x, y, radius, colour)
        _letter(pen, x, y, game.labels[token], "white", radius * 1.2)
        if agent and violated[token]:
            reach, width = radius * 1.2, max(2, size // 16)
            for side in (-1, 1):
                ends = (x - reach, y - side * reach, x + reach, y + side * reach)
                pen.line(ends, fill="white", width=width + 3)
            for side in (-1, 1):
                ends = (x - reach, y - side * reach, x + reach, y + side * reach)
                pen.line(ends, fill=_ALARM, width=width)
    pen.text((6, picture.height - 11), caption, fill=_INK, font=_font(13), anchor="lm")
    return np.array(picture)


def ring(
    picture: NDArray[np.uint8], centres: Sequence[tuple[float, float]], radius: float
) -> NDArray[np.uint8]:
    """The RGB picture (H, W, 3) with a ring around each centre (x, y), as `draw` puts around overridden agents."""
    if not centres:
        return picture
    from PIL import Image, ImageDraw

    image = Image.fromarray(picture)
    pen = ImageDraw.Draw(image)
    width = max(2, round(0.16 * radius))
    for x, y in centres:
        for reach, colour, thick in ((radius, _INK, width + 2), (radius - 1, _RING, width)):
            pen.ellipse((x - reach, y - reach, x + reach, y + reach), outline=colour, width=thick)
    return np.array(image)


def _cell_size(game: Game) -> int:
    """Even, so that the picture's sides are: video codecs want that."""
    return int(np.clip(_MAX_SIDE // max(game.grid.shape), _MIN_CELL, _MAX_CELL)) // 2 * 2


@lru_cache(maxsize=16)
def _background(game: Game, size: int) -> NDArray[np.uint8]:
    """All that never moves, with a strip for the caption below."""
    from PIL import Image, ImageDraw

    grid = game.grid
    height, width = grid.shape
    picture = Image.new("RGB", (width * size, height * size + 22), "white")
    pen = ImageDraw.Draw(picture)
    for row, column in np.ndindex(height, width):
        x, y = column * size, row * size
        box = (x, y, x + size - 1, y + size - 1)
        cell = grid.cell_at[row, column]
        if cell < 0:
            pen.rectangle(box, fill=_WALL)
            continue
        pen.rectangle(box, fill=_HAZARD if grid.hazard[cell] else _FLOOR, outline=_LINE)
        if grid.hazard[cell]:
            for offset in (0.3, 0.65):
                level = y + offset * size
                waves = [(x + size * i / 4, level + size * (0.06 if i % 2 else -0.06)) for i in range(5)]
                pen.line(waves, fill=_CRACK, width=max(2, size // 16))
        if grid.signs[cell] == "p":
            for dx, dy in ((-0.16, 0.1), (0.16, 0.1), (0, -0.16)):
                _disc(pen, x + (0.5 + dx) * size, y + (0.5 + dy) * size, 0.18 * size, _PLANT)
    for agent, goal in enumerate(game.goals):
        x, y = int(grid.columns[goal]) * size, int(grid.rows[goal]) * size
        inset = max(2, size // 12)
        box = (x + inset, y + inset, x + size - inset, y + size - inset)
        pen.rectangle(box, outline=_AGENTS[agent], width=max(2, size // 14))
        _letter(pen, x + size / 2, y + size / 2, game.labels[agent].lower(), _AGENTS[agent], size * 0.5)
    return np.array(picture)


def _disc(pen: Any, x: float, y: float, radius: float, colour: str) -> None:
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _letter(pen: Any, x: float, y: float, text: str, colour: str, size: float) -> None:
    pen.text((x, y), text, fill=colour, font=_font(max(9, round(size))), anchor="mm")


@lru_cache(maxsize=32)
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)
