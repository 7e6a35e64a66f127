"""A transition table as one agent sees it: rows by key and own action, successors as indices into its risk values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import TransitionTable, joint_choices

Side = Literal["upper", "lower", "mean"]
Opponents = Sequence[NDArray[np.float64] | None] | None
"""Per agent (K, n_j) lower bounds on the probability of each action; None for an agent, or at all: any behaviour."""

MAX_OTHERS = 25


class AgentRows:
    """The R rows in which the agent plays, sorted by key and own action. The rows of one (key, action) are a cell.

    ``target`` (S, R) points into a vector of K values followed by 0 (ended, or padding) and 1 (violated).
    """

    def __init__(self, table: TransitionTable, agent: int) -> None:
        actions = np.asarray(table.actions, np.int64)
        others = math.prod(table.actions) // table.actions[agent]
        if others > MAX_OTHERS:
            raise ConfigError(
                f"the agents beside agent {agent} have {others} joint actions, more than {MAX_OTHERS}: declare which of "
                "them interact with a factors() method of the env (core.transitions.Factors), shield fewer agents at once, or "
                "give them fewer actions."
            )
        self.num_keys, self.num_actions = table.num_keys, table.actions[agent]
        choices = joint_choices(table.actions, table.row_joint)
        live = choices < actions
        acts = np.flatnonzero(live[:, agent])
        self.order = acts[np.lexsort((choices[acts, agent], table.row_key[acts]))]
        self.gone = np.zeros(self.num_keys, bool)
        self.gone[table.row_key[~live[:, agent]]] = True
        self.key = table.row_key[self.order].astype(np.intp)
        self.choices, live = choices[self.order], live[self.order]

        cell = self.key * self.num_actions + self.choices[:, agent]
        self.start = np.flatnonzero(np.diff(cell, prepend=-1))
        self.cell = cell[self.start]
        self.found = np.diff(self.start, append=len(cell))
        replies = np.where(live, actions, 1).prod(1) // actions[agent]
        self.partial = self.found < replies[self.start]
        self.row_span = np.searchsorted(self.key, np.arange(self.num_keys + 1))
        self.cell_span = np.searchsorted(self.cell, np.arange(self.num_keys + 1) * self.num_actions)

        ended = table.ended[self.order, :, agent] | (table.succ[self.order] < 0)
        target = np.where(ended, self.num_keys, table.succ[self.order])
        target[table.violated[self.order, :, agent]] = self.num_keys + 1
        self.target = np.ascontiguousarray(target.T).astype(np.intp)  # (S, R)
        self.table, self.agent = table, agent

    def weights(self, opponents: Opponents, absent: Literal["zero", "uniform"]) -> NDArray[np.float64] | None:
        """Probability (R,) that each row's replies are known to have at least, the product over the others; None: all 0."""
        actions = self.table.actions
        check_sets(opponents, actions, self.num_keys)
        weight = np.ones(len(self.key))
        for other in range(len(actions)):
            if other == self.agent:
                continue
            floor = None if opponents is None else opponents[other]
            played = self.choices[:, other]
            plays = np.flatnonzero(played < actions[other])
            if floor is not None:
                weight[plays] *= floor[self.key[plays], played[plays]]
            else:
                weight[plays] *= 1.0 / actions[other] if absent == "uniform" else 0.0
        return weight if weight.any() else None

    def bounds(
        self, side: Side, at: slice | NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Least mass and how much more there may be, (S+1, r) each, of the rows ``at``; what was never seen comes first."""
        table, rows = self.table, self.order[at]
        if side == "mean":
            lo = np.concatenate([table.mean_unseen[None, rows], table.mean[rows].T])
            return lo, np.zeros_like(lo)
        lo = np.concatenate([np.zeros((1, len(rows))), table.lo[rows].T])
        hi = np.concatenate([table.unseen[None, rows], table.hi[rows].T])
        return lo, np.maximum(0.0, hi - lo)

    @cached_property
    def predecessors(self) -> csr_array:
        """Rows that lead to each value: entry (successor, row)."""
        targets = self.target.T
        ends = np.arange(len(targets) + 1) * targets.shape[1]
        ones = np.ones(targets.size, np.int8)
        shape = (len(targets), self.num_keys + 2)
        return csr_array(csr_array((ones, targets.ravel(), ends), shape=shape).T)

    def same_rows(self, table: TransitionTable) -> bool:
        """Whether a table differs from this one in nothing but probabilities."""
        names = ("row_key", "row_joint", "succ", "violated", "ended")
        return table.num_keys == self.num_keys and all(
            np.array_equal(getattr(self.table, name), getattr(table, name)) for name in names
        )


def spans(ends: NDArray[np.intp], keys: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """All indices from ``ends[key]`` to ``ends[key + 1]`` of some keys, and the position in ``keys`` each belongs to."""
    first, count = ends[keys], ends[keys + 1] - ends[keys]
    owner = np.repeat(np.arange(len(keys)), count)
    skip = np.repeat(first - (np.cumsum(count) - count), count)
    return np.arange(len(owner)) + skip, owner


def check_sets(opponents: Opponents, actions: Sequence[int], num_keys: int) -> None:
    """Refuse opponents' arrays of a wrong shape.

    Raises:
        ConfigError: names the agent and both shapes.
    """
    for agent, given in enumerate(opponents or ()):
        if given is not None and given.shape != (num_keys, actions[agent]):
            raise ConfigError(
                f"floors of agent {agent} have shape {given.shape}: must be {(num_keys, actions[agent])}, "
                "one row per key of the table."
            )
