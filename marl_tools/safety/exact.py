"""Ground truth on enumerable envs: exact violation probabilities of policies, shielded or not, and the worst there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.transitions import joint_index
from marl_tools.safety.agent import AgentShield
from marl_tools.safety.config import LEVELS
from marl_tools.safety.enumeration import ExactModel, solve
from marl_tools.safety.rows import AgentRows, Opponents

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
) -> ViolationCurve:
    """Exact violation probabilities when agent i draws from ``policies[i]`` (K, n_i) under its frozen shield.

    The state that is propagated is the key, each agent's slack and who has violated; no sampling. ``key_ids`` (K,) are the
    shields' ids of the model's keys (-1: unknown to them), by default the model's own.
    """
    actions, count = model.table.actions, len(model.agents)
    shields = [None] * count if shields is None else shields
    ids = np.arange(len(model.keys)) if key_ids is None else np.asarray(key_ids)
    codes = (
        model.table.row_key.astype(np.int64) * _width(actions) + model.table.row_joint
    )  # ascending, by `solve`
    choices = list(product(*(range(n + 1) for n in actions)))
    joints = joint_index(actions, np.array(choices))

    key = np.flatnonzero(model.initial)
    probability = model.initial[key]
    flags = np.zeros((len(key), count), bool)
    slack = np.zeros((len(key), count), np.int32)
    for agent, shield in enumerate(shields):
        if shield is not None:
            slack[:, agent] = shield.start(ids[key])[0]
    curve = ViolationCurve(agents=np.zeros((horizon + 1, count)), team=np.zeros(horizon + 1))
    for k in range(horizon, 0, -1):
        played = [
            _played(model, agent, policies[agent], shields[agent], key, ids[key], slack[:, agent], k)
            for agent in range(count)
        ]
        parts = []
        for choice, joint in zip(choices, joints, strict=True):
            weight = probability * math.prod(law[:, a] for (law, _), a in zip(played, choice, strict=True))
            at = np.flatnonzero(weight > 0)
            if not len(at):
                continue
            rows = np.searchsorted(codes, key[at] * _width(actions) + joint)
            left = np.stack([after[at, a] for (_, after), a in zip(played, choice, strict=True)], 1)
            source, slot = np.nonzero(model.table.lo[rows] > 0)
            row = rows[source]
            parts.append(
                (
                    weight[at][source] * model.table.lo[row, slot],
                    model.table.succ[row, slot],
                    flags[at][source],
                    model.table.violated[row, slot],
                    left[source],
                )
            )
        step = horizon - k + 1
        curve.agents[step], curve.team[step] = curve.agents[step - 1], curve.team[step - 1]
        if not parts:
            continue
        probability, key, flags, violated, slack = (np.concatenate(part) for part in zip(*parts, strict=True))
        curve.agents[step] += probability @ (violated & ~flags)
        curve.team[step] += probability @ (violated.any(1) & ~flags.any(1))
        probability, key, flags, slack = _merge(probability, key, flags | violated, slack)
        going = ~model.ended[key].all(1)
        probability, key, flags, slack = probability[going], key[going], flags[going], slack[going]
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


def _width(actions: Sequence[int]) -> int:
    return math.prod(n + 1 for n in actions)


def _played(
    model: ExactModel,
    agent: int,
    policy: NDArray[np.float64],
    shield: AgentShield | None,
    key: NDArray[np.intp],
    key_ids: NDArray[np.integer],
    slack: NDArray[np.int32],
    k: int,
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
        instead = shield.safest(look, np.full(len(live), -1), chosen.__getitem__)
        chosen = admitted
        chosen[np.arange(len(live)), instead] += 1.0 - admitted.sum(1)
        if shield.config.rule == "ledger":
            after[live, :-1] = np.maximum(0, slack[live, None] - look.price)
    law[live, :-1] = chosen
    return law, after


def _merge(
    probability: NDArray[np.float64], key: NDArray, flags: NDArray[np.bool_], slack: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray, NDArray[np.bool_], NDArray[np.int32]]:
    """Equal states become one."""
    states = np.concatenate([key[:, None], flags, slack], axis=1)
    _, first, group = np.unique(states, axis=0, return_index=True, return_inverse=True)
    merged = np.bincount(group.ravel(), probability).astype(np.float64)
    return merged, key[first], flags[first], slack[first]
