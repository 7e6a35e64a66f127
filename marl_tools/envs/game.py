"""Markov games on whole numbers: one pure transition of many worlds, from which episodes are drawn and laws enumerated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.envs.fields import FieldGame, Floats, Laws
from marl_tools.envs.grid import Bools, GridMap, Ints

# Outcomes that are expanded at a time: bounds the memory of an enumeration to a few hundred MB.
_CHUNK = 1 << 19


class Dice:
    """Independent dice, thrown together: ``sides[d]`` holds the probabilities of the sides of die d."""

    def __init__(self, sides: Sequence[Sequence[float]]) -> None:
        self.sides = tuple(tuple(map(float, die)) for die in sides)
        self._edges = np.full((len(sides), max(map(len, sides), default=1) - 1), 2.0)
        for edges, die in zip(self._edges, self.sides, strict=True):
            edges[: len(die) - 1] = np.cumsum(die)[:-1]

    def __len__(self) -> int:
        return len(self.sides)

    def roll(self, uniforms: Floats) -> Ints:
        """The sides that lie on top, (N, D), for numbers (N, D) that are uniform in [0, 1)."""
        return (uniforms[:, :, None] >= self._edges).sum(axis=2)

    @cached_property
    def outcomes(self) -> tuple[Ints, Floats]:
        """All possible throws (R, D) and their probabilities (R,)."""
        rolls, probability = np.zeros((1, 0), np.int64), np.ones(1)
        for die in self.sides:
            sides = np.flatnonzero(die)
            rolls = np.column_stack([np.repeat(rolls, len(sides), axis=0), np.tile(sides, len(rolls))])
            probability = np.outer(probability, np.array(die)[sides]).ravel()
        return rolls, probability


class Transition(NamedTuple):
    """What one step did to N worlds."""

    state: Ints  # (N, F)
    tokens: Ints  # (N, F) cell of each token at the end of the step, before those that ended leave the map
    rewards: Floats  # (N, A)
    violated: Bools  # (N, A)


class Game(FieldGame):
    """A Markov game. A world is a row of F whole numbers, field f below ``sizes[f]``; chance comes from `Dice`.

    `transition` is a pure function of state, actions and dice; an episode throws the dice, a law adds up all throws.
    Field i of the first A says where agent i is. An agent that has ended plays nothing: its action is ignored.

    Attributes:
        name, agents, actions: of the environment, its A agents, and the number of actions of each.
        grid: the map that the tokens (one a field) stand on.
        labels: one letter a token.
        goals: cell of each agent's goal, or an empty array.
        features: (sizes[0], d), what agents see of a field's value; fields share it.
        max_cycles: steps after which an episode is truncated.
    """

    grid: GridMap
    labels: str
    goals: Ints
    features: NDArray[np.float32]
    max_cycles: int
    start_dice: Dice
    dice: Dice

    @abstractmethod
    def start(self, rolls: Ints) -> Ints:
        """First states (N, F) for throws (N, D) of the start dice."""

    @abstractmethod
    def transition(self, state: Ints, actions: Ints, rolls: Ints) -> Transition:
        """One step of N worlds: states (N, F), actions (N, A), throws (N, D) of the dice."""

    @abstractmethod
    def tokens(self, state: Ints) -> Ints:
        """The cell (N, F) of each token."""

    @property
    def num_uniforms(self) -> int:
        """Uniform numbers that one episode may use: those of the start, then those of each step."""
        return len(self.start_dice) + self.max_cycles * len(self.dice)

    @cached_property
    def _columns(self) -> Ints:
        """For each agent the columns of the plain features, its own first, then on in a circle; its number last."""
        agents, fields, width = len(self.agents), len(self.sizes), self.features.shape[1]
        off, on = fields * width, fields * width + 1
        columns = []
        for agent in range(agents):
            order = [*((agent + i) % agents for i in range(agents)), *range(agents, fields)]
            seen = [field * width + column for field in order for column in range(width)]
            columns.append(seen + [on if other == agent else off for other in range(agents)])
        return np.array(columns)

    @property
    def obs_size(self) -> int:
        return self._columns.shape[1]

    def observe(self, state: Ints) -> NDArray[np.float32]:
        """Observations (N, A, obs_size) of zeros and ones: each agent sees the whole state, and who it is."""
        n, fields = state.shape
        width = self.features.shape[1]
        plain = np.empty((n, fields * width + 2), np.float32)
        plain[:, :-2] = self.features[state].reshape(n, -1)
        plain[:, -2:] = (0.0, 1.0)
        return plain[:, self._columns]

    def start_law(self) -> tuple[Floats, Ints]:
        rolls, probability = self.start_dice.outcomes
        states = self.start(rolls)
        _, first, inverse = np.unique(self.ids(states), return_index=True, return_inverse=True)
        return np.asarray(np.bincount(inverse.ravel(), probability), np.float64), states[first]

    def laws(self, state: Ints, actions: Ints) -> Laws:
        step = max(1, _CHUNK // len(self.dice.outcomes[1]))
        parts = [
            self._laws(state[at : at + step], actions[at : at + step], at)
            for at in range(0, len(state), step)
        ]
        return Laws(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _laws(self, state: Ints, actions: Ints, offset: int) -> Laws:
        rolls, probability = self.dice.outcomes
        n = len(state)
        row = np.repeat(np.arange(n), len(probability))
        result = self.transition(state[row], actions[row], np.tile(rolls, (n, 1)))
        laws = self.merged(row, np.tile(probability, n), result.state, result.violated)
        return laws._replace(row=laws.row + offset)

    def reachable(self) -> Ints:
        """All states (K, F) that some play reaches from a start, sorted by their `ids`; the game is over in some."""
        joint = np.stack(np.meshgrid(*map(np.arange, self.actions), indexing="ij"), -1)
        joint = joint.reshape(-1, len(self.actions))
        known = frontier = np.unique(self.ids(self.start_law()[1]))
        while len(frontier):
            state = np.repeat(self.state_of_ids(frontier), len(joint), axis=0)
            after = self.laws(state, np.tile(joint, (len(frontier), 1))).state
            frontier = np.setdiff1d(self.ids(after), known)
            known = np.union1d(known, frontier)
        return self.state_of_ids(known)


def order_die(agents: int) -> tuple[list[float], Ints]:
    """A die for the order in which agents may enter contested cells, and the priorities (sides, agents) of each side."""
    orders = np.array(list(permutations(range(agents))), np.int64)
    return [1.0 / len(orders)] * len(orders), orders


def check_probability(name: str, value: float) -> float:
    """``value`` if it is a probability below 1.

    Raises:
        ConfigError: it is not.
    """
    if not 0.0 <= value < 1.0:
        raise ConfigError(f"{name}={value!r}: must be a probability, at least 0 and below 1")
    return float(value)
