"""The law of MASA's Markov stag hunt in arrays: all draws of a step are expanded, stage by stage, and equal outcomes merged."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.envs.fields import FieldGame, Floats, Laws
from marl_tools.envs.grid import Bools, Ints

# As MASA numbers them: left, right, up, down, stay.
_MOVES = np.array([(0, -1), (0, 1), (-1, 0), (1, 0), (0, 0)])
_ROWS_AT_ONCE = 1 << 14


class HuntGame(FieldGame):
    """Hunters, plants and stags on a grid. The state is the cell of each hunter, then of each plant and each stag, sorted.

    A thing that is nowhere, because no cell was free for it, is on cell ``cells``. Where a hunter shares a stag's cell the
    hunt is over: it was mauled there.

    Args:
        shape: rows and columns.
        roam: probability that a stag tries to come nearer in a step.
        needed: hunters that it takes to hunt a stag.
    """

    def __init__(
        self,
        *,
        name: str,
        agents: tuple[str, ...],
        shape: tuple[int, int],
        plants: int,
        stags: int,
        roam: float,
        needed: int,
    ) -> None:
        self.name, self.agents, self.shape = name, agents, shape
        self.actions = (len(_MOVES),) * len(agents)
        self.cells = shape[0] * shape[1]
        self.roam, self.needed = roam, needed
        count = len(agents)
        self.sizes = (self.cells,) * count + (self.cells + 1,) * (plants + stags)
        self.plants, self.stags = slice(count, count + plants), slice(count + plants, count + plants + stags)
        self._hunters = slice(0, count)
        cells: Ints = np.arange(self.cells)
        self._rows, self._columns = cells // shape[1], cells % shape[1]
        down = np.clip(self._rows[:, None] + _MOVES[:, 0], 0, shape[0] - 1)
        right = np.clip(self._columns[:, None] + _MOVES[:, 1], 0, shape[1] - 1)
        self._moved = down * shape[1] + right
        self._circle = (np.arange(count) + np.arange(count)[:, None]) % count
        self._who = np.eye(count, dtype=np.float32)
        self._one_hot = np.eye(self.cells + 1, self.cells, dtype=np.float32)

    @property
    def obs_size(self) -> int:
        return (len(self.agents) + 2) * self.cells + len(self.agents)

    def row(self, hunters: list[int], plants: list[int], stags: list[int]) -> list[int]:
        """Cells of all hunters, and of the plants and stags that are there, as whole numbers (F,)."""
        missing = [self.cells] * (len(self.sizes) - len(self.agents))
        plants = sorted([*plants, *missing])[: self.plants.stop - self.plants.start]
        stags = sorted([*stags, *missing])[: self.stags.stop - self.stags.start]
        return [*hunters, *plants, *stags]

    def ended(self, state: Ints) -> Bools:
        """Everybody has ended once somebody is mauled."""
        over = np.any(self._met(state), axis=(1, 2))
        return np.repeat(over[:, None], len(self.agents), axis=1)

    def observe(self, state: Ints) -> NDArray[np.float32]:
        """Zeros and ones (N, A, obs_size): the cell of each hunter, oneself first, those of plants, of stags, and who one is."""
        n, count, cells = len(state), len(self.agents), self.cells
        seen = np.empty((n, count, self.obs_size), np.float32)
        seen[..., : count * cells] = self._one_hot[state[:, self._hunters][:, self._circle]].reshape(
            n, count, -1
        )
        for at, part in ((count, self.plants), (count + 1, self.stags)):
            seen[..., at * cells : (at + 1) * cells] = self._one_hot[state[:, part]].sum(axis=1)[:, None]
        seen[..., -count:] = self._who
        return seen

    @property
    def num_starts(self) -> int:
        """In how many states an episode may begin; found without listing them."""
        plants, stags = (part.stop - part.start for part in (self.plants, self.stags))
        free = self.cells - np.array([len(set(row)) for row in self._placings().tolist()])
        grown = np.minimum(plants, free)
        left = free - grown
        ways = (
            map(comb, free.tolist(), grown.tolist()),
            map(comb, left.tolist(), np.minimum(stags, left).tolist()),
        )
        return sum(a * b for a, b in zip(*ways, strict=True))

    def start_law(self) -> tuple[Floats, Ints]:
        hunters = self._placings()
        nothing = np.full((len(hunters), len(self.sizes) - len(self.agents)), self.cells)
        row, probability, state = self._respawn(
            np.arange(len(hunters)), np.full(len(hunters), 1.0 / len(hunters)), np.hstack([hunters, nothing])
        )
        laws = self.merged(
            np.zeros_like(row), probability, state, np.zeros((len(row), len(self.agents)), bool)
        )
        return laws.probability, laws.state

    def laws(self, state: Ints, actions: Ints) -> Laws:
        parts = []
        for at in range(0, len(state), _ROWS_AT_ONCE):
            part = self._laws(state[at : at + _ROWS_AT_ONCE], actions[at : at + _ROWS_AT_ONCE])
            parts.append(part._replace(row=part.row + at))
        return Laws(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _laws(self, state: Ints, actions: Ints) -> Laws:
        row, probability = np.arange(len(state)), np.ones(len(state))
        over = self.ended(state)[:, 0]
        after = state.copy()
        still = np.where(over[:, None], len(_MOVES) - 1, actions)
        after[:, self._hunters] = self._moved[state[:, self._hunters], still]
        # Plants that are walked upon are gone, stags that enough hunters meet are taken, the others maul.
        picked = (after[:, self._hunters, None] == after[:, None, self.plants]).any(axis=1)
        after[:, self.plants] = np.where(picked, self.cells, after[:, self.plants])
        met = self._met(after)
        taken = met.sum(axis=1) >= self.needed
        mauled = (met & ~taken[:, None]).any(axis=2)
        after[:, self.stags] = np.where(taken, self.cells, after[:, self.stags])
        after = np.where(over[:, None], state, after)
        violated = mauled & ~over[:, None]
        go_on = ~(over | mauled.any(axis=1))
        row_on, probability_on, after_on = self._respawn(
            *self._roam(row[go_on], probability[go_on], after[go_on])
        )
        row = np.concatenate([row[~go_on], row_on])
        probability = np.concatenate([probability[~go_on], probability_on])
        after = np.concatenate([self._sorted(after[~go_on]), after_on])
        return self.merged(row, probability, after, violated[row])

    def _met(self, state: Ints) -> Bools:
        """(N, A, S) which hunter shares the cell of which stag."""
        return state[:, self._hunters, None] == state[:, None, self.stags]

    def _roam(self, row: Ints, probability: Floats, state: Ints) -> tuple[Ints, Floats, Ints]:
        """Each stag, in the order of its cell, stays or goes a step nearer to the nearest hunter, the first of several."""
        state = self._sorted(state)
        before = state.copy()
        for stag in range(self.stags.start, self.stags.stop):
            at = before[:, stag]
            there = np.flatnonzero(at < self.cells)
            hunters = before[there, self._hunters]
            down = self._rows[hunters] - self._rows[at[there]][:, None]
            right = self._columns[hunters] - self._columns[at[there]][:, None]
            pick = np.arange(len(there)), np.argmin(np.abs(down) + np.abs(right), axis=1)
            # Two ways to go, equally likely, unless the hunter is straight ahead.
            down, right = np.sign(down[pick]), np.sign(right[pick])
            steps = (
                np.where(down != 0, down * self.shape[1], right),
                np.where(right != 0, right, down * self.shape[1]),
            )
            parts: list[tuple[Any, Any, Ints]] = [
                (slice(None), np.where(at < self.cells, 1.0 - self.roam, 1.0), at)
            ]
            for step in steps:
                target = at[there] + step
                # Neither onto anybody or anything, nor where another stag has gone.
                taken = (before[there] == target[:, None]).any(1) | (
                    state[there, self.stags.start : stag] == target[:, None]
                ).any(1)
                parts.append(
                    (there, np.full(len(there), 0.5 * self.roam), np.where(taken, at[there], target))
                )
            row, probability, state, before = self._spread(parts, stag, row, probability, state, before)
        possible = probability > 0
        return row[possible], probability[possible], state[possible]

    def _spread(
        self,
        parts: list[tuple[Any, Any, Ints]],
        field: int,
        row: Ints,
        probability: Floats,
        state: Ints,
        before: Ints,
    ) -> tuple[Ints, Floats, Ints, Ints]:
        """Every (which rows, with what probability, new value of a field) side by side."""
        new = np.concatenate([state[which] for which, _, _ in parts])
        new[:, field] = np.concatenate([value for _, _, value in parts])
        return (
            np.concatenate([row[which] for which, _, _ in parts]),
            np.concatenate([probability[which] * weight for which, weight, _ in parts]),
            new,
            np.concatenate([before[which] for which, _, _ in parts]),
        )

    def _respawn(self, row: Ints, probability: Floats, state: Ints) -> tuple[Ints, Floats, Ints]:
        """Plants, then stags, that are nowhere come up on a cell that is free, all being equally likely."""
        for part in (self.plants, self.stags):
            for thing in range(part.start, part.stop):
                free = np.ones((len(state), self.cells + 1), bool)
                free[np.arange(len(state))[:, None], state] = False
                free[:, self.cells] = False
                # What is there stays, and so does, nowhere, what no cell is free for.
                stays = (state[:, thing] < self.cells) | ~free.any(axis=1)
                free[stays] = np.eye(self.cells + 1, dtype=bool)[state[stays, thing]]
                which, cell = np.nonzero(free)
                probability = probability[which] / free.sum(axis=1)[which]
                row, state = row[which], state[which]
                state[:, thing] = cell
            state = self._sorted(state)
        return row, probability, state

    def _sorted(self, state: Ints) -> Ints:
        """Plants and stags in the order of their cells: they are all alike."""
        hunters, plants, stags = state[:, self._hunters], state[:, self.plants], state[:, self.stags]
        return np.hstack([hunters, np.sort(plants, axis=1), np.sort(stags, axis=1)])

    def _placings(self) -> Ints:
        """(cells ** A, A) wherever the hunters may be."""
        places = np.indices((self.cells,) * len(self.agents))
        return places.reshape(len(self.agents), -1).T
