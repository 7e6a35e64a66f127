"""`crossing`: cars on straight roads through one intersection, where hurrying pays and may crash."""

from __future__ import annotations

import numpy as np

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError
from marl_tools.envs.game import Dice, Game, Transition, check_probability
from marl_tools.envs.grid import Bools, GridMap, Ints, move_together
from marl_tools.envs.parallel import GameEnv

MAP = """
###Db###
###..###
###..###
c......C
A......a
###..###
###..###
###dB###
"""
WAIT, GO = range(2)


class Crossing(Game):
    """Two to four cars, each on its own lane of a crossroads with traffic on the right.

    Actions: wait, go. With probability ``slip`` a car that goes does not get away and stays where it is. It starts on the
    first or second cell of its lane, each with probability one half, and leaves the map when it reaches the last.

    A car that crashes is towed away at once: its episode ends, and those behind it find its cell taken in that step. Nobody
    enters a contested cell. A car that was rammed while it stood still drives on.

    Reward: ``step_reward`` in each step, ``goal_reward`` on arrival, nothing else; a crash costs the goal, and spares the
    remaining steps. Driving up close behind a crossing car, which fails to clear the cell with probability ``slip``,
    therefore pays on average, although it is a risk.
    """

    labels = "ABCD"

    def __init__(
        self,
        *,
        n_agents: int = 2,
        slip: float = 0.1,
        step_reward: float = -1.0,
        goal_reward: float = 10.0,
        max_cycles: int = 40,
    ) -> None:
        if not 2 <= at_least(1)("n_agents", n_agents) <= 4:
            raise ConfigError(f"n_agents={n_agents}: a crossing has 2 to 4 cars, one a road")
        self.name = "crossing_v0"
        self.grid = GridMap(MAP)
        self.agents = tuple(f"car_{i}" for i in range(n_agents))
        self.actions = (2,) * n_agents
        self.max_cycles = at_least(1)("max_cycles", max_cycles)
        self.step_reward, self.goal_reward = step_reward, goal_reward
        slip = check_probability("slip", slip)
        self.start_dice = Dice([(0.5, 0.5)] * n_agents)
        self.dice = Dice([(1.0 - slip, slip)] * n_agents)
        lanes = np.array([_lane(self.grid, sign, sign.lower()) for sign in "ABCD"[:n_agents]])
        # A field counts the cells a car has behind it; the goal is never a state, so its number means "gone".
        self._gone = lanes.shape[1] - 1
        self.goals = lanes[:, -1]
        self._lanes = lanes
        self._road = np.where(np.arange(self._gone + 1) == self._gone, self.grid.nowhere, lanes)
        self.sizes = (self._gone + 1,) * n_agents
        self.features = np.eye(self._gone + 1, self._gone, dtype=np.float32)

    def start(self, rolls: Ints) -> Ints:
        return rolls

    def ended(self, state: Ints) -> Bools:
        return state == self._gone

    def tokens(self, state: Ints) -> Ints:
        return self._road[np.arange(len(self.agents)), state]

    def transition(self, state: Ints, actions: Ints, rolls: Ints) -> Transition:
        live = state != self._gone
        ahead = state + (live & (actions == GO) & (rolls == 0))
        here = self.tokens(state)
        there = np.where(live, self._lanes[np.arange(len(self.agents)), ahead], here)
        cells, crashed = move_together(here, there, live)
        arrived = live & ~crashed & (ahead == self._gone)
        after = np.where(crashed, self._gone, ahead)
        return Transition(after, cells, live * self.step_reward + arrived * self.goal_reward, crashed)


def _lane(grid: GridMap, start: str, goal: str) -> Ints:
    """The cells of the straight line between two signs."""
    first, last = grid.the(start), grid.the(goal)
    down, right = grid.rows[last] - grid.rows[first], grid.columns[last] - grid.columns[first]
    steps = np.arange(max(abs(down), abs(right)) + 1)
    return grid.cell_at[
        grid.rows[first] + np.sign(down) * steps, grid.columns[first] + np.sign(right) * steps
    ]


def parallel_env(
    *,
    n_agents: int = 2,
    slip: float = 0.1,
    step_reward: float = -1.0,
    goal_reward: float = 10.0,
    max_cycles: int = 40,
    render_mode: str | None = None,
) -> GameEnv:
    """The crossing as a parallel env; see `Crossing`.

    Raises:
        ConfigError: not 2 to 4 agents, a slip outside [0, 1), or no step allowed.
    """
    game = Crossing(
        n_agents=n_agents,
        slip=slip,
        step_reward=step_reward,
        goal_reward=goal_reward,
        max_cycles=max_cycles,
    )
    return GameEnv(game, render_mode)
