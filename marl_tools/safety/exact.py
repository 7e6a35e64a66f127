"""Ground truth on enumerable envs: exact violation probabilities of policies, shielded or not, and the worst there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.transitions import TransitionTable, joint_choices
from marl_tools.safety.agent import AgentShield
from marl_tools.safety.config import LEVELS
from marl_tools.safety.enumeration import ExactModel, solve
from marl_tools.safety.rows import AgentRows, Opponents

_DENSE = 1 << 22
"""States that are added up in place; of more, those that occur are sorted."""

__all__ = ["ExactModel", "ViolationCurve", "solve", "violation_probability", "worst_case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationCurve:
    """Probability of a first violation within k = 0..T steps."""

    agents: NDArray[np.float64]  # (T+1, A)
    team: NDArray[np.float64]  # (T+1,) of any agent


def violation_probability(
    model: ExactModel,
    policies: Sequence[NDArray[np.float64]],
    horizon: int,
    *,
    shields: Sequence[AgentShield | None] | None = None,
    key_ids: NDArray[np.integer] | None = None,
    legal: Sequence[NDArray[np.bool_]] | None = None,
) -> ViolationCurve:
    """Exact violation probabilities when agent i draws from ``policies[i]`` (K, n_i) under its frozen shield.

    The state that is propagated is the key, each agent's slack and who has violated; no sampling. ``key_ids`` (K,) are the
    shields' ids of the model's keys (-1: unknown to them), by default the model's own. ``legal[i]`` (K, n_i) is what the env
    allows, which no shield replaces an action by anything else.
    """
    count = len(model.agents)
    shields = [None] * count if shields is None else shields
    guarded = [agent for agent, shield in enumerate(shields) if shield is not None]
    ids = np.arange(len(model.keys)) if key_ids is None else np.asarray(key_ids)
    outcomes, over = _Outcomes(model.table), np.all(model.ended, axis=1)

    key = np.flatnonzero(model.initial)
    probability = model.initial[key]
    harmed = np.zeros(len(key), np.int64)  # a bit for each agent that has violated
    slack = [np.zeros(len(key), np.int32) if one is None else one.start(ids[key])[0] for one in shields]
    curve = ViolationCurve(agents=np.zeros((horizon + 1, count)), team=np.zeros(horizon + 1))
    for k in range(horizon, 0, -1):
        step = horizon - k + 1
        curve.agents[step], curve.team[step] = curve.agents[step - 1], curve.team[step - 1]
        state, row, weight = outcomes.rows_of(key, probability)
        left: list[NDArray[np.int32]] = []
        for agent, shield in enumerate(shields):
            may = None if legal is None else legal[agent]
            law, after = _played(model, agent, policies[agent], shield, key, ids[key], slack[agent], k, may)
            choice = outcomes.choices[agent][row]
            weight *= law[state, choice]
            left.append(after[state, choice] if shield is not None else after[:0, 0])
        played = np.flatnonzero(weight)
        source, outcome = outcomes.of(row[played])
        origin = played[source]
        probability, before = weight[origin] * outcomes.probability[outcome], harmed[state[origin]]
        now = outcomes.violated[outcome]
        for agent in range(count):
            curve.agents[step, agent] += probability[(now & ~before) >> agent & 1 > 0].sum()
        curve.team[step] += probability[(now > 0) & (before == 0)].sum()
        going = np.flatnonzero(~over[outcomes.succ[outcome]])
        columns = [outcomes.succ[outcome][going], (before | now)[going]]
        columns += [left[agent][origin[going]] for agent in guarded]
        probability, (key, harmed, *kept) = _merge(probability[going], columns)
        slack = [np.zeros(len(key), np.int32)] * count
        for agent, column in zip(guarded, kept, strict=True):
            slack[agent] = column.astype(np.int32)
    return curve


def worst_case(
    model: ExactModel, agent: int, shield: AgentShield, horizon: int, opponents: Opponents = None
) -> NDArray[np.float64]:
    """The most (K,) that an agent can violate within ``horizon`` steps from each key, under its shield's rule alone.

    The maximum is over all policies that see key, slack and time and play only what the rule admits
    (price <= slack, whatever ``over_budget`` says), and over opponents above their floors that see the same.
    """
    rows, config = AgentRows(model.table, agent), shield.config
    keys = np.arange(rows.num_keys)
    lo, target = model.table.lo[rows.order].T, rows.target
    weight = rows.weights(opponents, "zero")
    action = rows.cell % rows.num_actions
    cell_key = rows.cell // rows.num_actions
    ledger = config.rule == "ledger"
    levels = np.arange(LEVELS + 1) if ledger else np.zeros(1, np.int64)
    risk = np.zeros((rows.num_keys + 2, len(levels)))  # (K + 2, slack)
    risk[-1] = 1.0
    for k in range(1, horizon + 1):
        look = shield.look(keys, np.full(len(keys), k), np.zeros(len(keys), np.int32))
        price = look.price[cell_key, action].astype(np.int64)
        if ledger:
            left = levels - price[:, None]  # (cells, slack)
        else:
            value = look.value[cell_key]
            left = np.where(price <= np.maximum(0, config.max_risk - value) / config.level, 0, -1)[:, None]
        after = np.repeat(np.maximum(left, 0), rows.found, axis=0)
        expected = sum(mass[:, None] * risk[to[:, None], after] for mass, to in zip(lo, target, strict=True))
        reply = np.maximum.reduceat(expected, rows.start)
        if weight is not None:
            floor = np.add.reduceat(weight, rows.start)[:, None]
            reply = np.add.reduceat(weight[:, None] * expected, rows.start) + (1.0 - floor) * reply
        reply[left < 0] = 0.0
        new = np.zeros_like(risk)
        np.maximum.at(new, cell_key, reply)
        new[-1] = 1.0
        risk = new
    return risk[keys, shield.start(keys)[0]]


class _Outcomes:
    """A table's rows by key, and the M outcomes that have a probability side by side."""

    def __init__(self, table: TransitionTable) -> None:
        choices = joint_choices(table.actions, table.row_joint).astype(np.int8)
        self.choices = np.ascontiguousarray(choices.T)  # (A, R)
        self._first = np.searchsorted(table.row_key, np.arange(table.num_keys + 1))  # ascending, by `solve`
        row, slot = np.nonzero(table.lo > 0)
        self._start = np.searchsorted(row, np.arange(len(table.row_key) + 1))
        self.probability, self.succ = table.lo[row, slot], table.succ[row, slot]  # (M,)
        # (M,) a bit for each agent that violates.
        self.violated = table.violated[row, slot] @ (1 << np.arange(len(table.actions)))

    def rows_of(
        self, key: NDArray[np.integer], probability: NDArray[np.float64]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
        """Which of N states, row and probability of the state, for every row of the states' keys."""
        state, row = _ranges(self._first[key], self._first[np.add(key, 1)])
        return state, row, probability[state]

    def of(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Which of the rows, and outcome, for every outcome of these rows."""
        return _ranges(self._start[rows], self._start[rows + 1])


def _ranges(start: NDArray[np.intp], stop: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The numbers from each start to its stop, side by side, each with the index of its range in front."""
    length = stop - start
    which = np.repeat(np.arange(len(start)), length)
    return which, np.arange(len(which)) + (start - np.cumsum(length) + length)[which]


def _played(
    model: ExactModel,
    agent: int,
    policy: NDArray[np.float64],
    shield: AgentShield | None,
    key: NDArray[np.intp],
    key_ids: NDArray[np.integer],
    slack: NDArray[np.int32],
    k: int,
    legal: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Law (N, n + 1) of what one agent executes in N states, the last entry being nothing; and its slack after each."""
    num_actions = policy.shape[1]
    law = np.zeros((len(key), num_actions + 1))
    after = np.repeat(slack[:, None], num_actions + 1, axis=1)
    gone = model.ended[key, agent]
    law[gone, -1] = 1.0
    live = np.flatnonzero(~gone)
    chosen = policy[key[live]]
    if shield is not None and len(live):
        look = shield.look(key_ids[live], np.full(len(live), k), slack[live])
        admitted = np.where(look.safe, chosen, 0.0)
        if shield.config.action == "mask":
            mass = admitted.sum(1, keepdims=True)
            admitted /= np.where(mass > 0, mass, 1.0)
        may = None if legal is None else legal[key[live]]
        instead = shield.safest(look, np.full(len(live), -1), chosen.__getitem__, may)
        chosen = admitted
        chosen[np.arange(len(live)), instead] += 1.0 - admitted.sum(1)
        if shield.config.rule == "ledger":
            after[live, :-1] = np.maximum(0, slack[live, None] - look.price)
    law[live, :-1] = chosen
    return law, after


def _merge(
    probability: NDArray[np.float64], columns: Sequence[NDArray[np.integer]]
) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """Equal states, rows of the columns (N,), become one: each is a number, in which a column that never differs takes no room."""
    lows = [int(column.min(initial=0)) for column in columns]
    sizes = [int(column.max(initial=0)) - low + 1 for column, low in zip(columns, lows, strict=True)]
    code = np.zeros(len(probability), np.int64)
    for column, low, size in zip(columns, lows, sizes, strict=True):
        code = code * size + (column - low)
    if math.prod(sizes) <= _DENSE:
        merged: NDArray[np.float64] = np.bincount(code, probability).astype(np.float64)
        code = np.flatnonzero(merged)
        merged = merged[code]
    else:
        code, group = np.unique(code, return_inverse=True)
        merged = np.bincount(group, probability).astype(np.float64)
    fields = []
    for low, size in zip(lows[::-1], sizes[::-1], strict=True):
        code, field = np.divmod(code, size)
        fields.append(field + low)
    return merged, fields[::-1]
