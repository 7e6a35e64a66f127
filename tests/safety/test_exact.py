"""Exact models and exact violation probabilities, against brute force, closed forms and simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import joint_choices, joint_index
from marl_tools.safety.agent import AgentShield
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.exact import solve, violation_probability, worst_case
from marl_tools.safety.recursion import risk_tables
from marl_tools.safety.shield import TeamShield
from tests.random_mdps import RandomTeam, SlipperyCorridor, loosen, random_policies


def agent_shields(table, config: ShieldConfig) -> list[AgentShield]:
    shields = [AgentShield(f"agent_{i}", i, n, config) for i, n in enumerate(table.actions)]
    for shield in shields:
        shield.tables.update(table)
    return shields


def test_a_solved_model_holds_the_law_of_every_reachable_joint_action():
    team = RandomTeam(0, actions=(2, 3))
    model = solve(team)
    assert model.agents == ("agent_0", "agent_1")
    np.testing.assert_allclose(model.initial[:2], 0.5)
    assert model.ended.tolist() == [list(team.ended_agents(key)) for key in model.keys]
    table = model.table
    np.testing.assert_allclose(table.lo.sum(1), 1)
    for row in range(0, len(table.row_key), 7):
        key = model.keys[table.row_key[row]]
        choices = joint_choices(table.actions, table.row_joint[row]).tolist()
        outcomes = team.joint_law(key, choices)
        assert [model.keys[k] for k in table.succ[row] if k >= 0] == [outcome.key for outcome in outcomes]
        assert table.violated[row, : len(outcomes)].tolist() == [list(o.violated) for o in outcomes]
        assert [n == choice for n, choice in zip(table.actions, choices, strict=True)] == list(
            team.ended_agents(key)
        )


def test_a_model_beyond_the_limit_is_refused():
    with pytest.raises(ConfigError, match="more than 3 keys"):
        solve(RandomTeam(0), max_keys=3)


@pytest.mark.parametrize(("slip", "push"), [(0.01, 0.8), (0.1, 0.3), (0.02, 1.0)])
def test_the_corridor_equals_its_closed_form(slip, push):
    corridor = SlipperyCorridor(6, slip, push)
    model = solve(corridor)
    risk = risk_tables(model.table, 0, 40)
    walk = [np.tile([0.0, 1.0], (len(model.keys), 1))]
    for cells in range(1, 7):
        key = model.keys.index(bytes([cells]))
        closed = [corridor.risk(cells, k) for k in range(1, 41)]
        np.testing.assert_allclose(risk.v[1:, key], closed, atol=1e-12, rtol=0)
    np.testing.assert_allclose(
        violation_probability(model, walk, 40).agents[:, 0],
        [0, *(corridor.risk(6, k) for k in range(1, 41))],
        atol=1e-12,
    )


def walked(team: RandomTeam, model, policies, horizon: int):
    """Team and agent violation probabilities by walking every path of a tree."""
    agents, everyone = np.zeros(len(team.actions)), 0.0
    stack = [(p, key, (False,) * len(team.actions), horizon) for p, key in team.initial_law()]
    while stack:
        mass, key, flags, left = stack.pop()
        gone = team.ended_agents(key)
        if not left or all(gone):
            agents += mass * np.array(flags)
            everyone += mass * any(flags)
            continue
        row = model.keys.index(key)
        options = [[n] if out else range(n) for n, out in zip(team.actions, gone, strict=True)]
        for choice in product(*options):
            share = np.prod([1.0 if out else policies[i][row, choice[i]] for i, out in enumerate(gone)])
            for outcome in team.joint_law(key, choice):
                after = tuple(a or b for a, b in zip(flags, outcome.violated, strict=True))
                stack.append((mass * share * outcome.probability, outcome.key, after, left - 1))
    return agents, everyone


@pytest.mark.parametrize("seed", range(4))
def test_violation_probabilities_equal_a_walk_over_every_path(seed):
    team = RandomTeam(seed, states=3, hazards=(0.0, 0.1, 0.3))
    model = solve(team)
    policies = random_policies(len(model.keys), team.actions, np.random.default_rng(seed))
    curve = violation_probability(model, policies, 3)
    for horizon in (1, 3):
        agents, everyone = walked(team, model, policies, horizon)
        np.testing.assert_allclose(curve.agents[horizon], agents, atol=1e-12)
        assert curve.team[horizon] == pytest.approx(everyone, abs=1e-12)


@pytest.mark.parametrize("rule", ["ledger", "step"])
@pytest.mark.parametrize("action", ["override", "mask"])
def test_shielded_probabilities_agree_with_playing_the_shield(rule, action):
    team = RandomTeam(11, states=4, actions=(2, 3), hazards=(0.0, 0.02, 0.1))
    model, horizon, copies = solve(team), 6, 40_000
    config = ShieldConfig(
        horizon=horizon,
        max_risk=0.2,
        rule=rule,
        action=action,
        step_horizon=2,
        patience=0,
        reward_mode="none",
    )
    rng = np.random.default_rng(0)
    table = loosen(model.table, rng, width=0.05, forget=0.0)
    policies = random_policies(len(model.keys), team.actions, rng)
    curve = violation_probability(model, policies, horizon, shields=agent_shields(table, config))

    shield = TeamShield(model.agents, team.actions, config, num_envs=copies)
    shield.refresh(table)
    key = rng.choice(len(model.keys), copies, p=model.initial)
    shield.begin(np.ones(copies, bool), key)
    violated = np.zeros((copies, 2), bool)
    row_of = {
        (int(k), int(j)): r
        for r, (k, j) in enumerate(zip(model.table.row_key, model.table.row_joint, strict=True))
    }
    for _ in range(horizon):
        active = ~model.ended[key]
        laws = [policy[key] for policy in policies]

        def probabilities(copies, agents, laws=laws):
            table = np.zeros((len(copies), max(team.actions)))
            for agent, law in enumerate(laws):
                table[agents == agent, : law.shape[1]] = law[copies[agents == agent]]
            return table

        if action == "mask":
            masks = shield.masks(probabilities=probabilities)
            laws = [law * mask for law, mask in zip(laws, masks, strict=True)]
        chosen = np.stack([drawn(law, rng) for law in laws], 1)
        decision = (
            shield.play(chosen, active) if action == "mask" else shield.decide(chosen, active, probabilities)
        )
        played = np.where(active, decision.executed, team.actions)
        joint = joint_index(team.actions, played)
        over = ~active.any(1)
        rows = np.array(
            [0 if o else row_of[k, j] for k, j, o in zip(key.tolist(), joint.tolist(), over, strict=True)]
        )
        slot = drawn(model.table.lo[rows], rng)
        violated |= model.table.violated[rows, slot] & ~over[:, None]
        key = np.where(over, key, model.table.succ[rows, slot])
        shield.observe(key, np.zeros(copies, bool))
    deviation = 4.5 * np.sqrt(0.25 / copies)
    np.testing.assert_allclose(violated.mean(0), curve.agents[-1], atol=deviation)
    assert violated.any(1).mean() == pytest.approx(curve.team[-1], abs=deviation)
    plain = violation_probability(model, policies, horizon)
    assert (plain.agents[-1] > curve.agents[-1] + 2 * deviation).any()


def drawn(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    cumulative = weights.cumsum(1)
    return (
        (rng.random((len(weights), 1)) * cumulative[:, -1:] >= cumulative)
        .sum(1)
        .clip(0, weights.shape[1] - 1)
    )


def test_another_numbering_of_the_shields_keys_changes_nothing():
    team = RandomTeam(2)
    model = solve(team)
    policies = random_policies(len(model.keys), team.actions, np.random.default_rng(2))
    config = ShieldConfig(horizon=5, max_risk=0.1, patience=0)
    straight = violation_probability(model, policies, 5, shields=agent_shields(model.table, config))
    ids = np.random.default_rng(0).permutation(len(model.keys))
    renamed = loosen(model.table, np.random.default_rng(0), width=0.0, forget=0.0)
    renamed.row_key[:] = ids[renamed.row_key]
    renamed.succ[:] = np.where(renamed.succ < 0, -1, ids[renamed.succ])
    turned = violation_probability(model, policies, 5, shields=agent_shields(renamed, config), key_ids=ids)
    np.testing.assert_allclose(turned.agents, straight.agents, atol=1e-12)


def test_the_worst_policy_without_prices_is_the_worst_of_all_policies():
    model = solve(RandomTeam(4, actions=(2,)))
    config = ShieldConfig(horizon=6, max_risk=0.999, patience=0)
    (shield,) = agent_shields(model.table, config)
    shield.tables.price[:] = 0
    horizon, keys = 6, len(model.keys)
    worst = np.zeros(keys + 2)
    worst[-1] = 1
    table = model.table
    target = np.where(table.violated[..., 0], keys + 1, np.where(table.ended[..., 0], keys, table.succ))
    for _ in range(horizon):
        rows = (table.lo * worst[target]).sum(1)
        worst[:keys] = 0
        np.maximum.at(worst, table.row_key, rows)
    np.testing.assert_allclose(worst_case(model, 0, shield, horizon), worst[:keys], atol=1e-12)
