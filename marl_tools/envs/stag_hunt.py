"""`stag_hunt`: two hunters may pick plants alone or take a stag together; alone it mauls them."""

from __future__ import annotations

import numpy as np

from marl_tools.core.checks import at_least
from marl_tools.envs.game import Dice, Game, Transition, check_probability
from marl_tools.envs.grid import STAY, Bools, GridMap, Ints
from marl_tools.envs.parallel import GameEnv

MAP = """
A...p
.....
..s..
.....
p...B
"""


class StagHunt(Game):
    """A Markov stag hunt (Peysakhovich and Lerer 2018) on 5x5 cells, in which a meeting ends the hunt.

    Actions: stay, north, east, south, west; hunters may share a cell. When both are in the stag's cell at the end of their
    moves they take it; a hunter who is there alone is mauled, which is its violation. Otherwise the stag takes its
    step, to a random side with probability ``restless``, and then the same holds wherever it arrives. Taking and mauling
    end the episode of both. Plants regrow at once: walking onto one picks it.

    Reward: ``plant_reward`` for a plant, ``stag_reward`` to each for the stag, ``maul_reward`` to the mauled.
    """

    labels = "ABS"

    def __init__(
        self,
        *,
        restless: float = 0.4,
        plant_reward: float = 0.5,
        stag_reward: float = 20.0,
        maul_reward: float = -5.0,
        max_cycles: int = 50,
    ) -> None:
        self.name = "stag_hunt_v0"
        self.grid = GridMap(MAP)
        self.agents = ("hunter_0", "hunter_1")
        self.actions = (5, 5)
        self.max_cycles = at_least(1)("max_cycles", max_cycles)
        self.plant_reward, self.stag_reward, self.maul_reward = plant_reward, stag_reward, maul_reward
        restless = check_probability("restless", restless)
        self.start_dice = Dice([])
        self.dice = Dice([(1.0 - restless, *(restless / 4,) * 4)])
        self._starts = np.array([self.grid.the(sign) for sign in "ABs"])
        self._plants = np.append(self.grid.signs == "p", False)
        self.goals = np.zeros(0, np.int64)
        self.sizes = (self.grid.num_cells + 1,) * 3
        self.features = self.grid.features

    def start(self, rolls: Ints) -> Ints:
        return np.tile(self._starts, (len(rolls), 1))

    def ended(self, state: Ints) -> Bools:
        return state[:, :2] == self.grid.nowhere

    def tokens(self, state: Ints) -> Ints:
        return state

    def transition(self, state: Ints, actions: Ints, rolls: Ints) -> Transition:
        live = ~self.ended(state)
        hunters, stag = state[:, :2], state[:, 2]
        moved = self.grid.neighbours[hunters, np.where(live, actions, STAY)]
        picked = live & self._plants[moved] & (moved != hunters)
        surprised = (moved == stag[:, None]).any(axis=1)
        stag = np.where(surprised, stag, self.grid.neighbours[stag, rolls[:, 0]])
        there = live & (moved == stag[:, None])
        taken = there.all(axis=1, keepdims=True)
        mauled = there & ~taken
        cells = np.column_stack([moved, stag])
        over = there.any(axis=1, keepdims=True)
        rewards = picked * self.plant_reward + taken * self.stag_reward + mauled * self.maul_reward
        return Transition(np.where(over, self.grid.nowhere, cells), cells, rewards, mauled)


def parallel_env(
    *,
    restless: float = 0.4,
    plant_reward: float = 0.5,
    stag_reward: float = 20.0,
    maul_reward: float = -5.0,
    max_cycles: int = 50,
    render_mode: str | None = None,
) -> GameEnv:
    """The stag hunt as a parallel env; see `StagHunt`.

    Raises:
        ConfigError: ``restless`` outside [0, 1), or no step allowed.
    """
    game = StagHunt(
        restless=restless,
        plant_reward=plant_reward,
        stag_reward=stag_reward,
        maul_reward=maul_reward,
        max_cycles=max_cycles,
    )
    return GameEnv(game, render_mode)
