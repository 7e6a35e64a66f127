"""`drones`: a fleet crosses one square of airspace, where only pairs can come too close."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import Factor, Factors, Key
from marl_tools.envs.game import Dice, Game, Transition, check_probability
from marl_tools.envs.grid import STAY, Bools, GridMap, Ints
from marl_tools.envs.parallel import GameEnv


class Drones(Game):
    """Two to eight drones that start in the corners of an open square, then amid its edges, each bound for the place opposite.

    Actions: stay, north, east, south, west. With probability ``slip`` a gust holds a drone that moves where it is. Drones do
    not block each other. Two in the air that are in one cell after a step, or have changed places in it, come too close:
    a violation of those of the two that moved. They fly on. A drone at its goal has landed and is in nobody's way.

    So a drone's flight depends on nothing but its own actions and gusts, and a violation on two flights: every pair is Markov
    by itself.

    Reward: ``step_reward`` in each step, ``goal_reward`` on arrival.
    """

    labels = "ABCDEFGH"

    def __init__(
        self,
        *,
        n_agents: int = 4,
        size: int = 5,
        slip: float = 0.1,
        step_reward: float = -1.0,
        goal_reward: float = 10.0,
        max_cycles: int = 30,
        fleet: tuple[int, ...] | None = None,
    ) -> None:
        if not 2 <= at_least(1)("n_agents", n_agents) <= 8:
            raise ConfigError(f"n_agents={n_agents}: there are 2 to 8 drones, one a corner and edge")
        fleet = tuple(range(n_agents)) if fleet is None else fleet
        self.name = "drones_v0"
        self.grid = GridMap(_draw_map(at_least(3)("size", size)))
        self.agents = tuple(f"drone_{i}" for i in fleet)
        self.actions = (5,) * len(fleet)
        self.max_cycles = at_least(1)("max_cycles", max_cycles)
        self.step_reward, self.goal_reward = step_reward, goal_reward
        slip = check_probability("slip", slip)
        self.start_dice = Dice([])
        self.dice = Dice([(1.0 - slip, slip)] * len(fleet))
        self._starts = np.array([self.grid.the("ABCDEFGH"[i]) for i in fleet])
        self.goals = np.array([self.grid.the("CDABGHEF"[i]) for i in fleet])
        self.sizes = (self.grid.num_cells,) * len(fleet)
        self.features = self.grid.features[:-1]

    def start(self, rolls: Ints) -> Ints:
        return np.tile(self._starts, (len(rolls), 1))

    def ended(self, state: Ints) -> Bools:
        return state == self.goals

    def tokens(self, state: Ints) -> Ints:
        return state

    def transition(self, state: Ints, actions: Ints, rolls: Ints) -> Transition:
        live = ~self.ended(state)
        move = np.where(live & (rolls == 0), actions, STAY)
        cells = self.grid.neighbours[state, move]
        rewards = live * (self.step_reward + self.goal_reward * (cells == self.goals))
        return Transition(cells, cells, rewards, self.close(state, cells))

    def close(self, state: Ints, after: Ints) -> Bools:
        """Which drones (N, A) come too close to another between two states (N, A)."""
        live = ~self.ended(state)
        met = after[:, :, None] == after[:, None, :]
        swapped = (after[:, :, None] == state[:, None, :]) & (state[:, :, None] == after[:, None, :])
        pair = live[:, :, None] & live[:, None, :] & ~np.eye(state.shape[1], dtype=bool)
        return ((met | swapped) & pair).any(axis=2) & (after != state)


class DronesEnv(GameEnv):
    """The parallel env of `Drones`, which declares its pairs as `core.transitions.Factored` says."""

    game: Drones

    def __init__(self, game: Drones, pairs: dict[tuple[int, int], Drones], render_mode: str | None) -> None:
        super().__init__(game, render_mode)
        self._pairs = pairs

    def factors(self) -> Factors | None:
        """A factor for each pair, which backs off by staying where it is; None for a single pair."""
        if len(self._pairs) < 2:
            return None
        parts = tuple(_pair(self.game.agents, pair, game) for pair, game in self._pairs.items())
        return Factors(parts=parts, backup=dict.fromkeys(self.game.agents, STAY))


def _pair(agents: tuple[str, ...], pair: tuple[int, int], game: Drones) -> Factor:
    first, second = (slice(2 * i, 2 * i + 2) for i in pair)  # two bytes a drone

    def violated(key: Key, choices: tuple[int, ...], next_key: Key) -> list[bool]:
        states = game.states([key, next_key])
        return game.close(states[:1], states[1:])[0].tolist()

    return Factor(
        agents=(agents[pair[0]], agents[pair[1]]),
        project=lambda key: key[first] + key[second],
        violated=violated,
        law=GameEnv(game),
    )


def _draw_map(size: int) -> str:
    """An open square with a start in each corner, A north-west, and amid each edge, E north; both clockwise."""
    half, rows = size // 2, np.full((size, size), ".")
    rows[[0, 0, -1, -1], [0, -1, -1, 0]] = list("ABCD")
    rows[[0, half, -1, half], [half, -1, half, 0]] = list("EFGH")
    return "\n".join("".join(row) for row in rows)


def parallel_env(
    *,
    n_agents: int = 4,
    size: int = 5,
    slip: float = 0.1,
    step_reward: float = -1.0,
    goal_reward: float = 10.0,
    max_cycles: int = 30,
    render_mode: str | None = None,
) -> DronesEnv:
    """The drones as a parallel env; see `Drones`.

    Raises:
        ConfigError: not 2 to 8 agents, a size below 3, a slip outside [0, 1), or no step allowed.
    """

    def make(fleet: tuple[int, ...]) -> Drones:
        return Drones(
            n_agents=n_agents,
            size=size,
            slip=slip,
            step_reward=step_reward,
            goal_reward=goal_reward,
            max_cycles=max_cycles,
            fleet=fleet,
        )

    fleet = make(tuple(range(n_agents)))
    return DronesEnv(fleet, {pair: make(pair) for pair in combinations(range(n_agents), 2)}, render_mode)
