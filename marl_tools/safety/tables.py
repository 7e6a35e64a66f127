"""Risk of one agent as a shield looks it up: values, and prices in whole levels, kept up to date as models learn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.transitions import TransitionTable
from marl_tools.safety.recursion import Sweep
from marl_tools.safety.rows import AgentRows, Opponents, Side, check_sets

NEVER = np.iinfo(np.uint16).max
"""Price that no slack pays."""

_ROUNDING = 1e-12  # a difference of risks below this is floating point, not a price


def price_levels(q: NDArray[np.float64], level: float) -> NDArray[np.uint16]:
    """Prices Q - V of Q values (m, n) in levels, rounded up; 0 stays 0."""
    price = q - q.min(-1, keepdims=True)
    levels = np.minimum(np.ceil(price / level), NEVER)
    return np.where(price <= _ROUNDING, 0, levels).astype(np.uint16)


def slack_levels(slack: NDArray[np.float64], level: float) -> NDArray[np.int32]:
    """Slack in levels, rounded down and never below 0 (nor above what `NEVER` costs)."""
    return np.clip(np.floor(slack / level + 1e-9), 0, NEVER - 1).astype(np.int32)


class RiskTables:
    """Look-up tables of one agent for k = 0..T steps left; a key's row is its id + 1, row 0 is any key not known yet.

    ``value`` (T+1, C) and ``price`` (T+1, C, n) bound the risk, ``lower`` (T+1, C, n) is the optimistic Q, or None where
    nothing unknown is ever played, ``mean`` (T+1, C, n) the posterior-mean Q. C leaves room for keys to come.
    Updates write into the same arrays.
    """

    def __init__(
        self, agent: int, num_actions: int, horizon: int, level: float, *, with_lower: bool = True
    ) -> None:
        self.agent, self.num_actions, self.horizon, self.level = agent, num_actions, horizon, level
        sides: tuple[Side, ...] = ("upper", "lower", "mean") if with_lower else ("upper", "mean")
        self.num_keys = 0
        self._values = {side: np.empty((horizon + 1, 0)) for side in sides}
        self.price = np.empty((horizon + 1, 0, num_actions), np.uint16)
        self.lower = np.empty((horizon + 1, 0, num_actions), np.float32) if with_lower else None
        self.mean = np.empty((horizon + 1, 0, num_actions), np.float32)
        self._rows: AgentRows | None = None
        self._sweeps: dict[Side, Sweep] = {}
        self._sets: dict[Side, Opponents] = {}
        self._reserve(0)

    @property
    def value(self) -> NDArray[np.float64]:
        return self._values["upper"]

    def rows(self, key_ids: NDArray[np.integer]) -> NDArray[np.intp]:
        """Rows of key ids; that of the unknown key for -1 and for ids that came after the last update."""
        rows = np.asarray(key_ids, np.intp) + 1
        return np.where(rows <= self.num_keys, rows, 0)

    def update(self, table: TransitionTable, floors: Opponents = None, guesses: Opponents = None) -> int:
        """Bring all up to date with a table; returns how many (key, k) of the upper side were computed.

        Only keys whose own rows or floors changed, and those that lead to a changed value, are computed again. Floors
        bound the others' behaviour, guesses are their distributions for the posterior mean (uniform by default).

        Raises:
            ConfigError: too many joint actions, or opponents' arrays of a wrong shape; see `risk_tables`.
        """
        for sets in (floors, guesses):
            check_sets(sets, table.actions, table.num_keys)
        self._reserve(table.num_keys)
        before = None if self._rows is None else self._rows.table
        if self._rows is not None and self._rows.same_rows(table):
            self._rows.table = table
        else:
            self._rows, self._sweeps = AgentRows(table, self.agent), {}
        computed = 0
        for k, keys, q in self._sweep("upper", self._rows, before, floors, self.price):
            self.price[k, keys] = price_levels(q, self.level)
            computed += len(keys)
        if self.lower is not None:
            for k, keys, q in self._sweep("lower", self._rows, before, floors, self.lower):
                low = q.astype(np.float32)
                self.lower[k, keys] = np.where(low > q, np.nextafter(low, np.float32(-1)), low)
        for k, keys, q in self._sweep("mean", self._rows, before, guesses, self.mean):
            self.mean[k, keys] = q
        self.num_keys = table.num_keys
        return computed

    def _sweep(
        self,
        side: Side,
        rows: AgentRows,
        before: TransitionTable | None,
        opponents: Opponents,
        looked_up: NDArray,
    ) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.float64]]]:
        """Recompute what is stale: (k, rows (m,) of ``looked_up`` to fill, their Q (m, n))."""
        known, stale, changed = slice(1, rows.num_keys + 1), None, None
        if before is not None:
            stale = np.zeros(rows.num_keys, bool)
            changed = _changed_rows(side, before, rows.table)
            stale[slice(None) if changed is None else rows.table.row_key[changed]] = True
            stale |= _changed_sets(self._sets[side], opponents, rows.num_keys, self.agent)
        # Copied, since an opponent model may go on in the same arrays.
        self._sets[side] = opponents and [None if one is None else one.copy() for one in opponents]
        if stale is not None and not stale.any():
            return
        if side in self._sweeps and changed is not None:
            sweep = self._sweeps[side]
            sweep.weigh(opponents)
            sweep.revise(np.flatnonzero(changed[rows.order]))
        else:
            sweep = self._sweeps[side] = Sweep(rows, side, opponents)
        for k, (keys, q) in enumerate(sweep.run(self._values[side][:, known], stale=stale), start=1):
            if stale is None and k > 1:
                looked_up[k, known] = looked_up[k - 1, known]
            yield k, keys + 1, q

    def _reserve(self, num_keys: int) -> None:
        """Make room for keys; what is not computed yet reads as unknown: risk 1, optimistic risk 0, no price."""
        rows = self.value.shape[1]
        if num_keys < rows:
            return
        more = max(num_keys + 1 - rows, rows // 2)
        for side, values in self._values.items():
            self._values[side] = _extend(values, more, float(side != "lower"))
        self.price = _extend(self.price, more, 0)
        self.mean = _extend(self.mean, more, 1)
        if self.lower is not None:
            self.lower = _extend(self.lower, more, 0)


def _extend(array: NDArray, more: int, fill: float) -> NDArray:
    """The array with ``more`` rows of ``fill``; 0 at k = 0, where nothing can happen any more."""
    new = np.full((len(array), more, *array.shape[2:]), fill, array.dtype)
    new[0] = 0
    return np.concatenate([array, new], axis=1)


def _changed_rows(side: Side, old: TransitionTable, new: TransitionTable) -> NDArray[np.bool_] | None:
    """Rows (R,) that are new or differ in what this side reads; None where the old rows are not the first of the new."""
    count, width = old.succ.shape
    if len(new.row_key) < count or new.succ.shape[1] < width:
        return None
    for name in ("row_key", "row_joint"):
        if not np.array_equal(getattr(old, name), getattr(new, name)[:count]):
            return None
    changed = np.ones(len(new.row_key), bool)
    changed[:count] = (new.succ[:count, width:] >= 0).any(1)
    for name in ("succ", "violated", "ended", *(("mean",) if side == "mean" else ("lo", "hi"))):
        before, after = getattr(old, name), getattr(new, name)[:count, :width]
        if not np.array_equal(before, after):  # mostly they are: then no row-wise comparison is needed
            changed[:count] |= (before != after).reshape(count, -1).any(1)
    unseen = "mean_unseen" if side == "mean" else "unseen"
    changed[:count] |= getattr(old, unseen) != getattr(new, unseen)[:count]
    return changed


def _changed_sets(old: Opponents, new: Opponents, num_keys: int, agent: int) -> NDArray[np.bool_]:
    """Keys (K,) at which a floor of an opponent of ``agent`` is not what it was."""
    changed = np.zeros(num_keys, bool)
    if old is None and new is None:
        return changed
    if old is None or new is None:
        return ~changed
    for other, (before, after) in enumerate(zip(old, new, strict=True)):
        if other == agent or (before is None and after is None):
            continue
        if before is None or after is None:
            return np.ones(num_keys, bool)
        common = min(len(before), len(after))
        changed[:common] |= (before[:common] != after[:common]).any(1)
        changed[common:] = True
    return changed
