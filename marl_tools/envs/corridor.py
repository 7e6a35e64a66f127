"""`corridor`: a windy ledge above an abyss, with a violation probability in closed form and a safer way round."""

from __future__ import annotations

import math

import numpy as np

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError
from marl_tools.envs.game import Dice, Game, Transition, check_probability
from marl_tools.envs.grid import SOUTH, STAY, Bools, GridMap, Ints
from marl_tools.envs.parallel import GameEnv


class Corridor(Game):
    """One to three walkers, each in a corridor of its own, ``length`` moves from its goal.

    Actions: stay, north, east, south, west. With probability ``slip`` the wind blows a walker that moves one cell to the south
    instead. On the straight way, the ledge, that is a hazard: the walker falls, which is its violation and the end of its
    episode. On the row above it only costs the way back. Whoever stays put is safe.

    Reward: ``step_reward`` in each step and ``goal_reward`` at the goal; a fall has none of its own.
    """

    labels = "ABC"

    def __init__(
        self,
        *,
        n_agents: int = 2,
        length: int = 8,
        slip: float = 0.03,
        step_reward: float = -1.0,
        goal_reward: float = 10.0,
        max_cycles: int = 50,
    ) -> None:
        if not 1 <= at_least(1)("n_agents", n_agents) <= 3:
            raise ConfigError(f"n_agents={n_agents}: the corridor is for 1 to 3 walkers")
        self.name = "corridor_v0"
        self.grid = GridMap(_draw_map(n_agents, at_least(2)("length", length)))
        self.agents = tuple(f"walker_{i}" for i in range(n_agents))
        self.actions = (5,) * n_agents
        self.max_cycles = at_least(1)("max_cycles", max_cycles)
        self.step_reward, self.goal_reward = step_reward, goal_reward
        slip = check_probability("slip", slip)
        self.start_dice = Dice([])
        self.dice = Dice([(1.0 - slip, slip)] * n_agents)
        self._starts = np.array([self.grid.the(sign) for sign in "ABC"[:n_agents]])
        self.goals = np.array([self.grid.the(sign) for sign in "abc"[:n_agents]])
        self.sizes = (self.grid.num_cells + 1,) * n_agents
        self.features = self.grid.features

    def start(self, rolls: Ints) -> Ints:
        return np.tile(self._starts, (len(rolls), 1))

    def ended(self, state: Ints) -> Bools:
        return state == self.grid.nowhere

    def tokens(self, state: Ints) -> Ints:
        return state

    def transition(self, state: Ints, actions: Ints, rolls: Ints) -> Transition:
        live = state != self.grid.nowhere
        move = np.where(live, actions, STAY)
        move = np.where((rolls == 1) & (move != STAY), SOUTH, move)
        cells = self.grid.neighbours[state, move]
        fell = live & np.append(self.grid.hazard, False)[cells]
        arrived = live & (cells == self.goals)
        after = np.where(fell | arrived, self.grid.nowhere, cells)
        return Transition(after, cells, live * self.step_reward + arrived * self.goal_reward, fell)


def violation_probability(*, slip: float, length: int, steps: int, agents: int = 1) -> float:
    """Probability that a walker who always goes east falls within ``steps`` steps: ``1 - (1 - slip)**min(steps, length)``.

    With ``agents`` above 1 it is that of at least one of so many walkers, whose corridors are independent.
    """
    return -math.expm1(agents * min(steps, length) * math.log1p(-slip))


def _draw_map(n_agents: int, length: int) -> str:
    """The corridors one below the other."""
    wall = "#" * (length + 3)
    lines = [wall]
    for start, goal in zip("ABC"[:n_agents], "abc", strict=False):
        lines += [
            f"#{'.' * (length + 1)}#",
            f"#{start}{'.' * (length - 1)}{goal}#",
            f"#{'~' * (length + 1)}#",
            wall,
        ]
    return "\n".join(lines)


def parallel_env(
    *,
    n_agents: int = 2,
    length: int = 8,
    slip: float = 0.03,
    step_reward: float = -1.0,
    goal_reward: float = 10.0,
    max_cycles: int = 50,
    render_mode: str | None = None,
) -> GameEnv:
    """The corridor as a parallel env; see `Corridor`.

    Raises:
        ConfigError: not 1 to 3 agents, a length below 2, a slip outside [0, 1), or no step allowed.
    """
    game = Corridor(
        n_agents=n_agents,
        length=length,
        slip=slip,
        step_reward=step_reward,
        goal_reward=goal_reward,
        max_cycles=max_cycles,
    )
    return GameEnv(game, render_mode)
