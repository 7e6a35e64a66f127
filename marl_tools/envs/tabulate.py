"""The joint law of a whole game as arrays: what `core.transitions.Tabulated` promises, without an object an outcome."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.transitions import LawTable, exact_table, too_many_keys
from marl_tools.envs.fields import FieldGame
from marl_tools.envs.grid import Ints

_ROWS_AT_ONCE = 1 << 18


def tabulate(game: FieldGame, max_keys: int) -> LawTable:
    """Every row that play can reach; keys by distance from the start, rows by key and then by joint action.

    Raises:
        ConfigError: more than ``max_keys`` keys can be reached.
    """
    probability, starts = game.start_law()
    # Every joint choice of which some key may need a row: an action of each agent, or none.
    grid = np.array(list(product(*(range(n + 1) for n in game.actions))), np.int64)
    known = frontier = np.unique(game.ids(starts))
    levels, parts, offset = [frontier], [], 0
    some = max(1, _ROWS_AT_ONCE // len(grid))
    while len(frontier):
        reached = known
        for at in range(0, len(frontier), some):
            state = game.state_of_ids(frontier[at : at + some])
            row_key, choice = _rows(game, state, grid)
            offset += len(state)
            if not len(row_key):
                continue
            laws = game.laws(state[row_key], grid[choice])
            after = game.ids(laws.state)
            count = np.bincount(laws.row, minlength=len(row_key))
            parts.append(
                (
                    row_key + offset - len(state),
                    grid[choice],
                    count,
                    after,
                    laws.probability,
                    laws.violated,
                    laws.ended,
                )
            )
            reached = np.union1d(reached, after)
            if len(reached) > max_keys:
                raise too_many_keys(max_keys)
        frontier = np.setdiff1d(reached, known)
        known = reached
        levels.append(frontier)
    ids = np.concatenate(levels)
    order = np.argsort(ids)
    states = game.state_of_ids(ids)
    row_key, choices, count, after, law, violated, ended = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    initial = np.zeros(len(ids))
    np.add.at(initial, order[np.searchsorted(known, game.ids(starts))], probability)
    succ = order[np.searchsorted(known, after)]
    return LawTable(
        keys=game.keys(states),
        initial=initial,
        ended=game.ended(states),
        table=exact_table(game.actions, len(ids), row_key, choices, count, succ, law, violated, ended),
    )


def _rows(game: FieldGame, state: Ints, grid: Ints) -> tuple[Ints, Ints]:
    """Which (state, entry of ``grid``) are rows: those who have ended choose none, all others an action."""
    ended = game.ended(state)
    none: NDArray[np.bool_] = np.asarray(grid == np.array(game.actions), np.bool_)
    fits = np.equal(none[None, :, :], ended[:, None, :]).all(axis=2) & ~ended.all(axis=1, keepdims=True)
    row_key, choice = np.nonzero(fits)
    return row_key, choice
