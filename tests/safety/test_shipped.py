"""The shield on the shipped environments and learned models: closed form, learned sets, and floors that were counted."""

from __future__ import annotations

import numpy as np
import pytest

from marl_tools.core.transitions import joint_choices
from marl_tools.envs import corridor, crossing
from marl_tools.models.opponent import OpponentModel
from marl_tools.models.world import WorldModel
from marl_tools.safety.agent import AgentShield
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.exact import ExactModel, solve, violation_probability, worst_case
from marl_tools.safety.recursion import risk_tables
from tests.random_mdps import random_policies


@pytest.mark.parametrize("agents", [1, 2])
def test_the_corridor_equals_its_closed_form(agents):
    length, slip = 5, 0.07
    env = corridor.parallel_env(n_agents=agents, length=length, slip=slip)
    model = solve(env)
    moves = [
        a
        for a in range(env.action_space(env.possible_agents[0]).n)
        if goes_all_the_way(env, model, a, length)
    ]
    assert len(moves) == 1
    walk = [np.eye(env.action_space(name).n)[np.full(len(model.keys), moves[0])] for name in model.agents]
    curve = violation_probability(model, walk, 9)
    for steps in range(10):
        one = corridor.violation_probability(slip=slip, length=length, steps=steps)
        both = corridor.violation_probability(slip=slip, length=length, steps=steps, agents=agents)
        np.testing.assert_allclose(curve.agents[steps], one, atol=1e-12)
        assert curve.team[steps] == pytest.approx(both, abs=1e-12)


def goes_all_the_way(env, model: ExactModel, action: int, length: int) -> bool:
    """Whether repeating the action can end every agent's walk in exactly ``length`` steps."""
    walk = [np.eye(env.action_space(name).n)[np.full(len(model.keys), action)] for name in model.agents]
    curve = violation_probability(model, walk, length + 1)
    return bool(0 < curve.team[1] < 1 and curve.team[length] == curve.team[length + 1])


def learned(model: ExactModel, draws: int, seed: int, *, support: bool) -> WorldModel:
    """A world model that saw ``draws`` of every row of the true law."""
    rng = np.random.default_rng(seed)
    table = model.table
    world = WorldModel(table.actions, support=(model.keys, table) if support else None)
    world.key_ids(model.keys, create=True)
    choices = joint_choices(table.actions, table.row_joint)
    row = np.repeat(np.arange(len(table.row_key)), draws)
    slot = (
        (rng.random((len(row), 1)) > table.lo[row].cumsum(1))
        .sum(1)
        .clip(0, (table.succ[row] >= 0).sum(1) - 1)
    )
    world.add_batch(
        [model.keys[key] for key in table.row_key[row]],
        choices[row],
        [model.keys[key] for key in table.succ[row, slot]],
        table.violated[row, slot],
        table.ended[row, slot],
    )
    return world


@pytest.mark.parametrize("support", [True, False])
def test_a_ledger_on_learned_tables_keeps_its_bound_on_the_true_crossing(support):
    model = solve(crossing.parallel_env())
    world = learned(model, 64, 0, support=support)
    ids = world.key_ids(model.keys)
    horizon, policies = 15, random_policies(len(model.keys), model.table.actions, np.random.default_rng(1))
    table = world.table(0.05)
    config = ShieldConfig(horizon=horizon, max_risk=0.2, patience=0)
    shields = []
    for agent, name in enumerate(model.agents):
        shield = AgentShield(name, agent, model.table.actions[agent], config)
        shield.tables.update(table)
        shields.append(shield)
        true_q = risk_tables(model.table, agent, horizon).q
        learned_q = risk_tables(table, agent, horizon).q[:, ids]
        played = ~model.ended.all(1)
        assert (learned_q[:, played] >= true_q[:, played] - 1e-12).all()
    curve = violation_probability(model, policies, horizon, shields=shields, key_ids=ids)
    bounds = [model.initial @ shield.start(ids)[1] for shield in shields]
    assert (curve.agents[-1] <= np.array(bounds) + 1e-12).all()
    plain = violation_probability(model, policies, horizon)
    assert (curve.agents[-1] < plain.agents[-1]).all()


def test_an_exact_ledger_keeps_max_risk_against_any_play_of_the_others_and_spends_it():
    config = ShieldConfig(horizon=25, max_risk=0.05, patience=0)
    spent = 0.0
    for env in (crossing.parallel_env(), corridor.parallel_env(n_agents=2, length=3)):
        model = solve(env)
        for agent, name in enumerate(model.agents):
            shield = AgentShield(name, agent, model.table.actions[agent], config)
            shield.tables.update(model.table)
            worst = model.initial @ worst_case(model, agent, shield, 25)
            assert worst <= 0.05 + 1e-12
            spent = max(spent, worst)
    assert spent > 0.025


def test_counted_floors_lower_the_risk_and_the_team_stays_below_its_bounds():
    model = solve(crossing.parallel_env())
    actions, num_keys, horizon = model.table.actions, len(model.keys), 12
    rng = np.random.default_rng(3)
    policies = random_policies(num_keys, actions, rng)
    config = ShieldConfig(horizon=horizon, max_risk=0.1, patience=0)
    first = AgentShield(model.agents[0], 0, actions[0], config)
    first.tables.update(model.table)
    others = OpponentModel(actions, 0.05)
    others.restrict(0, first.always_admitted())
    keys = np.repeat(np.arange(num_keys), 400)
    drawn = (rng.random((len(keys), 1)) > policies[0][keys].cumsum(1)).sum(1)
    others.add(keys, 0, drawn.clip(0, actions[0] - 1))
    floors = [others.floors(0, num_keys), None]
    assert (floors[0] <= policies[0] + 1e-12).all()
    second = AgentShield(model.agents[1], 1, actions[1], config)
    second.tables.update(model.table, floors)
    free = risk_tables(model.table, 1, horizon).q
    floored = risk_tables(model.table, 1, horizon, floors).q
    assert (floored <= free + 1e-12).all()
    assert (floored < free - 1e-3).any()
    curve = violation_probability(model, policies, horizon, shields=[first, second])
    bounds = [model.initial @ shield.start(np.arange(num_keys))[1] for shield in (first, second)]
    assert (curve.agents[-1] <= np.array(bounds) + 1e-12).all()
    assert curve.team[-1] <= sum(bounds)
