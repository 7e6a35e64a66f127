"""The games of the package in small, and scripts of actions that lead to something."""

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from marl_tools.envs import corridor, crossing, gridmaps, stag_hunt
from marl_tools.envs.game import Game, Laws
from marl_tools.envs.gridmaps import GridRobots
from marl_tools.envs.parallel import GameEnv

TINY_MAP = """
    A..
    .#B
    ...
"""


def tiny_robots(slip=0.0, max_cycles=12, render_mode=None):
    return GameEnv(GridRobots(TINY_MAP, name="tiny_v0", slip=slip, max_cycles=max_cycles), render_mode)


MAKERS = {
    "crossing": lambda **more: crossing.parallel_env(**{"slip": 0.3, "max_cycles": 12, **more}),
    "crossing of three": lambda **more: crossing.parallel_env(
        **{"n_agents": 3, "slip": 0.3, "max_cycles": 12, **more}
    ),
    "corridor": lambda **more: corridor.parallel_env(**{"length": 3, "slip": 0.3, "max_cycles": 12, **more}),
    "robots": tiny_robots,
    "slipping robots": lambda **more: tiny_robots(slip=0.3, **more),
    "streets": lambda **more: gridmaps.parallel_env(**{"map_name": "streets", "max_cycles": 12, **more}),
    "stag hunt": lambda **more: stag_hunt.parallel_env(**{"max_cycles": 12, **more}),
}
SMALL = ["crossing", "crossing of three", "corridor", "robots", "slipping robots", "stag hunt"]


def joint_actions(game):
    """All joint actions (J, A) of a team that is all there."""
    return np.array(list(product(*map(range, game.actions))))


def rows_of(game, states):
    """Every (state, joint action) once: ended agents choose "none", as in a transition table."""
    joint = joint_actions(game)
    state, choice = np.repeat(states, len(joint), axis=0), np.tile(joint, (len(states), 1))
    choice = np.where(game.ended(state), game.actions, choice)
    _, first = np.unique(distinct(game.ids(state), choice), return_index=True)
    return state[first], choice[first]


def distinct(*columns):
    """One number a row, equal where all columns (N,) or (N, A) of small whole numbers are."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in np.column_stack(columns).T:
        number = number * (int(column.max()) + 1) + column
    return number


class Enumerated(NamedTuple):
    """A game with all its reachable states, the rows of its law and the law."""

    game: Game
    reachable: np.ndarray
    states: np.ndarray
    choices: np.ndarray
    laws: Laws


@cache
def enumerated(name):
    game = MAKERS[name]().game
    reachable = game.reachable()
    states, choices = rows_of(game, reachable)
    return Enumerated(game, reachable, states, choices, game.laws(states, choices))
