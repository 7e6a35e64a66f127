"""Grid maps as text, and the rule by which the tokens of many worlds move at once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError

STAY, NORTH, EAST, SOUTH, WEST = range(5)
_OFFSETS = ((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1))

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class GridMap:
    """A map drawn as text: ``#`` wall, ``.`` floor, ``~`` hazard, any other sign a floor cell with that name.

    By custom ``A`` to ``D`` are the starts of agents and ``a`` to ``d`` their goals. Cells that are no wall are numbered
    in reading order; the number after the last, `nowhere`, is for a token that is off the map.

    Raises:
        ConfigError: no line, or lines of different lengths.
    """

    def __init__(self, text: str) -> None:
        lines = text.split()
        widths = sorted({len(line) for line in lines})
        if len(widths) != 1:
            raise ConfigError(f"the lines of a map must be equally long, got lengths {widths}:\n{text}")
        signs = np.array([list(line) for line in lines])
        self.walls: Bools = signs == "#"
        self.cell_at: Ints = np.full(signs.shape, -1, np.int64)
        self.cell_at[~self.walls] = np.arange((~self.walls).sum())
        self.rows, self.columns = np.nonzero(~self.walls)
        self.num_cells = self.nowhere = len(self.rows)
        self.signs = signs[self.rows, self.columns]
        self.hazard: Bools = self.signs == "~"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.walls.shape[0], self.walls.shape[1]

    def find(self, sign: str) -> Ints:
        """The cells marked with ``sign``, in reading order."""
        return np.flatnonzero(self.signs == sign)

    def the(self, sign: str) -> int:
        """The only cell marked with ``sign``.

        Raises:
            ConfigError: there is none, or more than one.
        """
        cells = self.find(sign)
        if len(cells) != 1:
            raise ConfigError(f"a map needs exactly one {sign!r}, this one has {len(cells)}")
        return int(cells[0])

    @cached_property
    def neighbours(self) -> Ints:
        """Where each of the five moves leads, (cells + 1, 5); a wall, and the edge of the map, keep one in place."""
        table = np.repeat(np.arange(self.num_cells + 1)[:, None], len(_OFFSETS), axis=1)
        inside = np.pad(self.cell_at, 1, constant_values=-1)
        for move, (down, right) in enumerate(_OFFSETS):
            there = inside[self.rows + 1 + down, self.columns + 1 + right]
            table[:-1, move] = np.where(there >= 0, there, table[:-1, move])
        return table

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """Row and column of each cell as two one-hot vectors, (cells + 1, rows + columns); zeros for `nowhere`."""
        height, width = self.shape
        features = np.zeros((self.num_cells + 1, height + width), np.float32)
        cells = np.arange(self.num_cells)
        features[cells, self.rows] = 1.0
        features[cells, height + self.columns] = 1.0
        return features


def move_together(
    position: Ints, target: Ints, present: Bools, priority: Ints | None = None
) -> tuple[Ints, Bools]:
    """Move the tokens of N worlds from ``position`` to ``target``, both (N, A), all at the same moment.

    A token may follow into a cell that its owner leaves in this step. A move fails, and its token stays, if two tokens
    would swap cells, if the owner of the target cell does not leave it, or if the cell is contested: then the token of
    the least ``priority`` (N, A), a permutation of each row, enters it. Without priorities nobody does.

    Returns the new positions and who is charged with a collision: every token whose own move failed or was contested,
    hence never one that stayed where it was. Tokens that are not ``present`` neither move nor stand in the way.
    """
    moving = present & (target != position)
    both = moving[:, :, None] & moving[:, None, :]
    contested = both & (target[:, :, None] == target[:, None, :])
    agents = np.arange(position.shape[1])
    contested[:, agents, agents] = False
    # [n, i, j]: token i wants the cell in which j is.
    wants = moving[:, :, None] & present[:, None, :] & (target[:, :, None] == position[:, None, :])
    failed = (wants & wants.transpose(0, 2, 1)).any(axis=2)
    charged = failed | contested.any(axis=2)
    if priority is None:
        failed = charged.copy()
    else:
        failed |= (contested & (priority[:, None, :] < priority[:, :, None])).any(axis=2)
    # One that fails holds up those behind it; a queue is at most as long as there are tokens.
    for _ in range(position.shape[1] if wants.any() else 0):
        failed |= (wants & (~moving | failed)[:, None, :]).any(axis=2)
    return np.where(moving & ~failed, target, position), charged | failed
