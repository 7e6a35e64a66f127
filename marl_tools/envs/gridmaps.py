"""`gridmap_<name>`: two robots swap places on one of four maps, after the tasks of the shielding literature."""

from __future__ import annotations

import numpy as np

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.envs.game import Dice, Game, Transition, check_probability, order_die
from marl_tools.envs.grid import STAY, Bools, GridMap, Ints, move_together
from marl_tools.envs.parallel import GameEnv

MAPS = {
    # Two rooms, two doors: the robots may take one each.
    "rooms": """
        ....#....
        ....#....
        .A.......
        ....#....
        ....#....
        ....#....
        ....#....
        .......B.
        ....#....
        ....#....
    """,
    # Streets one cell wide: the shortest way is the same for both, the side streets are for giving way.
    "streets": """
        .............
        .#####.#####.
        .#####.#####.
        .#####.#####.
        A...........B
        .#####.#####.
        .#####.#####.
        .#####.#####.
        .#####.#####.
        .............
    """,
    # Aisles between shelves, and many ways of one length.
    "warehouse": """
        A................
        .##.##.##.##.##..
        .##.##.##.##.##..
        .##.##.##.##.##..
        .................
        .##.##.##.##.##..
        .##.##.##.##.##..
        .##.##.##.##.##..
        .................
        ................B
    """,
    # Two halls, a short bridge with a bay to pass in, and a longer way round.
    "bridges": """
        .......#########.......
        .......#########.......
        .A...................B.
        .......####.####.......
        .......#########.......
        .......#########.......
        .......#########.......
        .......................
        .......#########.......
        .......#########.......
    """,
}
# The three ways that a move may go, by the side of the slip die: as meant, to its left, to its right.
_VEER = np.array([[0, 1, 2, 3, 4], [0, 4, 1, 2, 3], [0, 2, 3, 4, 1]])


class GridRobots(Game):
    """Two robots on a map, each of which wants to be where the other starts.

    Actions: stay, north, east, south, west. With probability ``slip`` a move veers to its left or right, half each. Of two
    robots that contend for a cell one, drawn at random, gets it; both have collided. Collisions do not end the episode.
    A robot on its goal has ended: it is frozen there and stands in the way of the other.

    Reward in each step: -1, or -10 for a move into a wall, or -30 for a collision; and 100 on the goal. The rewards,
    the swapped goals and the cap follow ElSayed-Aly et al. 2021 (2101.11196); the maps are this package's own.
    """

    labels = "AB"
    agents = ("robot_0", "robot_1")
    actions = (5, 5)

    def __init__(self, text: str, *, name: str, slip: float = 0.0, max_cycles: int = 500) -> None:
        self.name = name
        self.grid = GridMap(text)
        self.max_cycles = at_least(1)("max_cycles", max_cycles)
        slip = check_probability("slip", slip)
        order, self._priority = order_die(2)
        self.start_dice = Dice([])
        self.dice = Dice([*((1.0 - slip, slip / 2, slip / 2),) * 2, order])
        self._starts = np.array([self.grid.the("A"), self.grid.the("B")])
        self.goals = self._starts[::-1]
        # No field is ever `nowhere`: nobody leaves the map.
        self.sizes = (self.grid.num_cells,) * 2
        self.features = self.grid.features[:-1]

    def start(self, rolls: Ints) -> Ints:
        return np.tile(self._starts, (len(rolls), 1))

    def ended(self, state: Ints) -> Bools:
        return state == self.goals

    def tokens(self, state: Ints) -> Ints:
        return state

    def transition(self, state: Ints, actions: Ints, rolls: Ints) -> Transition:
        live = ~self.ended(state)
        move = _VEER[rolls[:, :2], np.where(live, actions, STAY)]
        target = self.grid.neighbours[state, move]
        bumped = (target == state) & (move != STAY)
        here = np.ones_like(live)
        cells, collided = move_together(state, target, here, self._priority[rolls[:, 2]])
        step = np.where(collided, -30.0, np.where(bumped, -10.0, -1.0))
        rewards = live * (step + 100.0 * (cells == self.goals))
        return Transition(cells, cells, rewards, collided)


def parallel_env(
    *, map_name: str = "rooms", slip: float = 0.0, max_cycles: int = 500, render_mode: str | None = None
) -> GameEnv:
    """Two robots on the map of that name as a parallel env; see `GridRobots`.

    Raises:
        ConfigError: no such map, a slip outside [0, 1), or no step allowed.
    """
    if map_name not in MAPS:
        raise ConfigError(f"map_name={map_name!r}: there is no such map.{did_you_mean(map_name, MAPS)}")
    game = GridRobots(MAPS[map_name], name=f"gridmap_{map_name}_v0", slip=slip, max_cycles=max_cycles)
    return GameEnv(game, render_mode)
