"""Robust risk by backward recursion: the most that an agent can be made to violate within k steps, for all keys at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.transitions import TransitionTable
from marl_tools.safety.rows import AgentRows, Opponents, Side, spans

_ROUNDING = 1e-12  # probability that may be lost to floating point before it counts as missing


@dataclass(frozen=True, slots=True)
class Risk:
    """Risk of one agent with k = 0..T steps left: Q of playing an action now and the safest ones after, V its minimum."""

    q: NDArray[np.float64]  # (T+1, K, n)
    v: NDArray[np.float64]  # (T+1, K)


def risk_tables(
    table: TransitionTable,
    agent: int,
    horizon: int,
    opponents: Opponents = None,
    *,
    side: Side = "upper",
    later: int | None = None,
) -> Risk:
    """Q and V of one agent. With ``later`` that action is played after the first in place of the safest ones, and V is its Q.

    ``upper`` is the maximum over every law in the table and every opponents' behaviour above its floors, with whatever
    was never seen a violation; ``lower`` the minimum, with the unseen harmless. ``mean`` takes the table's mean and
    ``opponents`` as their distributions, uniform by default. An agent that has ended at a key has risk 0 there.

    Raises:
        ConfigError: the other agents have more than 25 joint actions, or floors are not of shape (K, n_j).

    References:
        Jansen et al. 2020, Safe Reinforcement Learning Using Probabilistic Shields.
        Suilen et al. 2022, Robust Anytime Learning of Markov Decision Processes.
    """
    v = np.zeros((horizon + 1, table.num_keys))
    q = np.zeros((*v.shape, table.actions[agent]))
    sweep = Sweep(AgentRows(table, agent), side, opponents, later)
    for k, (keys, q_keys) in enumerate(sweep.run(v), start=1):
        q[k] = q[k - 1]
        q[k, keys] = q_keys
    return Risk(q, v)


def robust_mass(lo: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Masses (S, R) of a law with ``lo <= mass <= lo + spread`` that prefers earlier successors; columns are rows of a table.

    Every successor starts at ``lo``; what is missing to 1 is handed out from the first to the last. A column sums
    to less than 1 where its bounds allow no law.
    """
    free = np.maximum(0.0, 1.0 - lo.sum(0))
    before = np.cumsum(spread, axis=0) - spread
    return lo + np.clip(free - before, 0.0, spread)


class _Plan(NamedTuple):
    """What a step has to compute for m keys."""

    keys: NDArray[np.intp]  # (m,)
    rows: slice | NDArray[np.intp]  # their r rows
    start: NDArray[np.intp]  # (c,) the first of those rows in each of their cells
    where: NDArray[np.intp]  # (c,) place of each cell in Q (m, n)
    cells: slice | NDArray[np.intp]


class Sweep:
    """The recursion of one side. Keys none of whose successors' values changed are left out of a step.

    ``target``, ``slot`` and ``mass`` (S+1, R) hold each row's successors in the order of the last step, which mostly holds in
    the next one; slot 0 is what was never seen.
    """

    def __init__(
        self, rows: AgentRows, side: Side, opponents: Opponents = None, later: int | None = None
    ) -> None:
        self.rows, self.later = rows, later
        self.side: Side = side
        self.weigh(opponents)
        self.unknown = 0.0 if side == "lower" else 1.0  # risk of what was never seen
        harm = rows.num_keys + (side != "lower")
        self.target = np.concatenate([np.full((1, rows.target.shape[1]), harm), rows.target])
        self.slot = np.repeat(
            np.arange(len(self.target), dtype=np.int16)[:, None], self.target.shape[1], axis=1
        )
        self.mass = np.empty(self.target.shape)
        self.loose = np.zeros(self.target.shape[1], bool)
        self.revise(slice(None))

    def weigh(self, opponents: Opponents) -> None:
        """Take the others' floors, or their distributions where the side is ``mean``."""
        self.weight = self.rows.weights(opponents, "uniform" if self.side == "mean" else "zero")

    def revise(self, at: slice | NDArray[np.intp]) -> None:
        """Take the probabilities of the rows ``at`` from the table anew, in the order that their successors have now."""
        slot = self.slot[:, at]
        lo, spread = (np.take_along_axis(part, slot, axis=0) for part in self.rows.bounds(self.side, at))
        mass = robust_mass(lo, spread)
        # No law fits these bounds: the whole row counts as never seen.
        impossible = np.abs(1.0 - mass.sum(0)) > _ROUNDING
        mass[:, impossible] = slot[:, impossible] == 0
        self.mass[:, at] = mass
        self.loose[at] = ((spread > 0).sum(0) > 1) & ~impossible

    def run(
        self,
        value: NDArray[np.float64],
        *,
        stale: NDArray[np.bool_] | None = None,
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
        """Fill V (T+1, K) from k = 1 on; yields for each k the keys (m,) that were computed and their Q (m, n).

        Without ``stale`` the other keys' Q is that of k - 1. With it, ``value`` holds an earlier result, which
        stays valid where neither the key is stale (K,) nor a successor's value has changed.
        """
        num_keys = self.rows.num_keys
        plan = self._plan(np.arange(num_keys) if stale is None else np.flatnonzero(stale))
        spread = np.full(num_keys, stale is None)
        ahead = np.r_[value[0], 0.0, 1.0]
        q, least = self._backup(plan, ahead)
        for k in range(1, len(value)):
            before = value[k - 1] if stale is None else value[k].copy()
            value[k] = before
            value[k, plan.keys] = least
            yield plan.keys, q
            changed = value[k] != before
            still = np.array_equal(value[k], ahead[:num_keys])
            # Mostly the same keys change again, and then the same keys are to be computed again; and where the values
            # ahead stand still, as they do as soon as no risk builds up any more, so does what follows from them.
            if not np.array_equal(changed, spread):
                plan, spread, still = self._plan(self._affected(changed, stale)), changed, False
            if not still and k + 1 < len(value):
                ahead[:num_keys] = value[k]
                q, least = self._backup(plan, ahead)

    def _affected(self, changed: NDArray[np.bool_], stale: NDArray[np.bool_] | None) -> NDArray[np.intp]:
        """Keys that a step has to compute: stale ones, and those from which a changed value can be reached."""
        rows = self.rows
        count = int(changed.sum())
        if count > rows.num_keys // 2:
            return np.arange(rows.num_keys)
        affected = np.zeros(rows.num_keys, bool) if stale is None else stale.copy()
        if count:
            affected[rows.key[rows.predecessors[np.flatnonzero(changed)].indices]] = True
        keys = np.flatnonzero(affected)
        return keys if 2 * len(keys) < rows.num_keys else np.arange(rows.num_keys)

    def _plan(self, keys: NDArray[np.intp]) -> _Plan:
        """Where the rows and cells of some keys are."""
        rows = self.rows
        if len(keys) == rows.num_keys:
            return _Plan(keys, slice(None), rows.start, rows.cell, slice(None))
        at, _ = spans(rows.row_span, keys)
        cells, owner = spans(rows.cell_span, keys)
        found = rows.found[cells]
        where = owner * rows.num_actions + rows.cell[cells] % rows.num_actions
        return _Plan(keys, at, np.cumsum(found) - found, where, cells)

    def _backup(
        self, plan: _Plan, ahead: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Q (m, n) of some keys and their V (m,), from the V (K + 2,) of one step less, followed by 0 (ended) and 1 (violated)."""
        rows = self.rows
        q = np.full((len(plan.keys), rows.num_actions), self.unknown)
        if len(plan.start):
            risk = self._expectation(plan.rows, ahead)
            q.reshape(-1)[plan.where] = self._reply(risk, plan)
        q[rows.gone[plan.keys]] = 0.0
        return q, q.min(1) if self.later is None else q[:, self.later]

    def _expectation(self, at: slice | NDArray[np.intp], value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Risk (r,) of the rows ``at`` under the worst (or best) law; keeps each row's order while it still holds."""
        target, mass = self.target[:, at], self.mass[:, at]
        risk = value[target]
        if self.side != "mean":
            ahead, behind = (risk[:-1], risk[1:]) if self.side == "upper" else (risk[1:], risk[:-1])
            disorder = np.zeros(risk.shape[1], bool)
            for better, worse in zip(ahead, behind, strict=True):  # faster than any(0) over few successors
                disorder |= better < worse
            moved = np.flatnonzero(disorder & self.loose[at])
            if len(moved):
                index = moved if isinstance(at, slice) else at[moved]
                sign = -1.0 if self.side == "upper" else 1.0
                order = np.argsort(sign * risk[:, moved], axis=0, kind="stable")
                for array in (self.target, self.slot):
                    array[:, index] = np.take_along_axis(array[:, index], order, axis=0)
                self.revise(index)
                mass[:, moved] = self.mass[:, index]
                risk[:, moved] = np.take_along_axis(risk[:, moved], order, axis=0)
        return np.einsum("sr,sr->r", mass, risk)

    def _reply(self, risk: NDArray[np.float64], plan: _Plan) -> NDArray[np.float64]:
        """Risk (c,) of each cell under the others' worst (or best) reply above their floors."""
        start = plan.start
        free = np.ones(len(start))
        fixed = 0.0
        if self.weight is not None:
            weight = self.weight[plan.rows]
            fixed = np.add.reduceat(weight * risk, start)
            free -= np.add.reduceat(weight, start)
            free[free < _ROUNDING] = 0.0
        if self.side == "mean":
            return fixed + free * self.unknown
        extreme = np.maximum if self.side == "upper" else np.minimum
        reply = extreme.reduceat(risk, start)
        reply[self.rows.partial[plan.cells]] = self.unknown
        return fixed + free * reply
