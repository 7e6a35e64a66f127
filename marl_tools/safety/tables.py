"""Risk of one agent as a shield looks it up: values, and prices in whole levels, kept up to date as models learn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.transitions import TransitionTable
from marl_tools.safety.recursion import Sweep
from marl_tools.safety.rows import AgentRows, Opponents, Side, check_sets
from marl_tools.safety.store import NEVER, TableStore

_ROUNDING = 1e-12  # a difference of risks below this is floating point, not a price


def price_levels(
    q: NDArray[np.float64], level: float, value: NDArray[np.float64] | None = None
) -> NDArray[np.uint16]:
    """Prices max(0, Q - V) of Q values (..., n) in levels, rounded up; 0 stays 0. V (...,) is the least Q by default."""
    price = q - (q.min(-1) if value is None else value)[..., None]
    levels = np.minimum(np.ceil(price / level), NEVER)
    return np.where(price <= _ROUNDING, 0, levels).astype(np.uint16)


def slack_levels(slack: NDArray[np.float64], level: float) -> NDArray[np.int32]:
    """Slack in levels, rounded down and never below 0 (nor above what `NEVER` costs)."""
    levels = np.floor(slack / level + 1e-9)
    return np.minimum(np.maximum(levels, 0), NEVER - 1).astype(np.int32)


class RiskTables:
    """Look-up tables of one agent for k = 0..T steps left: its part of a `TableStore`, or of one of its own.

    ``value`` (T+1, C) and ``price`` (T+1, C, n) bound the risk, ``lower`` (T+1, C, n) is the optimistic Q, or None where
    nothing unknown is ever played, ``mean`` (T+1, C, n) the posterior-mean Q; see the store for rows. Updates write into
    the same arrays. With ``later`` all are those of playing that action after the first one.
    """

    def __init__(
        self,
        agent: int,
        num_actions: int,
        horizon: int,
        level: float,
        *,
        with_lower: bool = True,
        store: TableStore | None = None,
        later: int | None = None,
    ) -> None:
        self.agent, self.num_actions, self.horizon, self.level = agent, num_actions, horizon, level
        self._slot = 0 if store is None else agent
        self._later = later
        self.store = TableStore([num_actions], horizon, with_lower=with_lower) if store is None else store
        self._rows: AgentRows | None = None
        self._sweeps: dict[Side, Sweep] = {}
        self._sets: dict[Side, Opponents] = {}

    @property
    def num_keys(self) -> int:
        return self.store.num_keys

    @property
    def value(self) -> NDArray[np.float64]:
        return self.store.value[self._slot]

    @property
    def price(self) -> NDArray[np.uint16]:
        return self.store.price[self._slot, ..., : self.num_actions]

    @property
    def lower(self) -> NDArray[np.float32] | None:
        lower = self.store.lower
        return None if lower is None else lower[self._slot, ..., : self.num_actions]

    @property
    def mean(self) -> NDArray[np.float32]:
        return self.store.mean[self._slot, ..., : self.num_actions]

    def rows(self, key_ids: NDArray[np.integer]) -> NDArray[np.intp]:
        """See `TableStore.rows`."""
        return self.store.rows(key_ids)

    def update(self, table: TransitionTable, floors: Opponents = None, guesses: Opponents = None) -> int:
        """Bring all up to date with a table; returns how many (key, k) of the upper side were computed.

        Only keys whose own rows or floors changed, and those that lead to a changed value, are computed again. Floors
        bound the others' behaviour, guesses are their distributions for the posterior mean (uniform by default).

        Raises:
            ConfigError: too many joint actions, or opponents' arrays of a wrong shape; see `risk_tables`.
        """
        for sets in (floors, guesses):
            check_sets(sets, table.actions, table.num_keys)
        self.store.reserve(table.num_keys)
        before = None if self._rows is None else self._rows.table
        if self._rows is not None and self._rows.same_rows(table):
            self._rows.table = table
        else:
            self._rows, self._sweeps = AgentRows(table, self.agent), {}
        computed, lower, mean = 0, self.lower, self.mean
        whole = None if self.store.q is None else self.store.q[self._slot, ..., : self.num_actions]
        upper = self.price if whole is None else whole
        last, kept = np.empty(0), np.empty(0)
        for k, keys, q in self._sweep("upper", self._rows, before, floors, upper):
            if q is not last:
                last, kept = q, price_levels(q, self.level) if whole is None else q
            upper[k, keys] = kept
            computed += len(keys)
        if lower is not None:
            for k, keys, q in self._sweep("lower", self._rows, before, floors, lower):
                low = q.astype(np.float32)
                lower[k, keys] = np.where(low > q, np.nextafter(low, np.float32(-1)), low)
        for k, keys, q in self._sweep("mean", self._rows, before, guesses, mean):
            mean[k, keys] = q
        self.store.num_keys = table.num_keys
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
            sweep = self._sweeps[side] = Sweep(rows, side, opponents, self._later)
        for k, (keys, q) in enumerate(
            sweep.run(self.store.values[side][self._slot][:, known], stale=stale), start=1
        ):
            if stale is None and k > 1:
                looked_up[k, known] = looked_up[k - 1, known]
            yield k, keys + 1, q


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
