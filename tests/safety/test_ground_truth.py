"""What the shield claims, on hundreds of small random teams whose law is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marl_tools.core.transitions import TransitionTable
from marl_tools.safety.agent import AgentShield
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.exact import solve, violation_probability, worst_case
from marl_tools.safety.recursion import risk_tables
from tests.random_mdps import RandomTeam, loosen, random_policies

SHAPES = [(2,), (3,), (2, 2), (2, 3), (2, 2, 2)]


def shield_of(table: TransitionTable, agent: int, config: ShieldConfig, floors=None) -> AgentShield:
    shield = AgentShield(f"agent_{agent}", agent, table.actions[agent], config)
    shield.tables.update(table, floors)
    return shield


@pytest.mark.parametrize("batch", range(6))
def test_no_policy_under_the_ledger_exceeds_its_bound_where_the_law_is_known(batch):
    tight = 0
    for seed in range(50 * batch, 50 * batch + 50):
        rng = np.random.default_rng(seed)
        team = RandomTeam(seed, states=4, actions=SHAPES[seed % 5])
        model, horizon = solve(team), int(rng.integers(2, 14))
        config = ShieldConfig(
            horizon=horizon, max_risk=float(rng.choice([0.01, 0.05, 0.2])), patience=0, over_budget="ledger"
        )
        floors = [rng.random() * law for law in random_policies(len(model.keys), team.actions, rng)]
        shield = shield_of(model.table, 0, config, floors)
        worst = worst_case(model, 0, shield, horizon, floors)
        bound = np.maximum(config.max_risk, risk_tables(model.table, 0, horizon, floors).v[-1])
        assert (worst <= bound + 1e-12).all(), seed
        tight += int((worst > 0.9 * bound).any())
    assert tight > 10  # else the bound would be empty


@pytest.mark.parametrize("batch", range(4))
def test_risk_brackets_the_truth_whenever_the_truth_lies_in_the_sets(batch):
    strict = 0
    for seed in range(50 * batch, 50 * batch + 50):
        rng = np.random.default_rng(seed)
        team = RandomTeam(seed, actions=SHAPES[seed % 5], successors=3)
        model = solve(team)
        truth = random_policies(len(model.keys), team.actions, rng)
        floors = [law * rng.random(law.shape) for law in truth]
        table = loosen(model.table, rng)
        true_q = risk_tables(model.table, 0, 10, truth).q
        upper = risk_tables(table, 0, 10, floors).q
        lower = risk_tables(table, 0, 10, floors, side="lower").q
        played = ~model.ended.all(1)  # nobody acts at the others, and so they have no rows
        assert (upper[:, played] >= true_q[:, played] - 1e-12).all(), seed
        assert (lower <= true_q + 1e-12).all(), seed
        strict += int((upper[-1, played] > true_q[-1, played] + 1e-3).any())
    assert strict > 40


@pytest.mark.parametrize("batch", range(4))
def test_the_ledger_bounds_the_true_violation_probability_from_learned_sets(batch):
    for seed in range(40 * batch, 40 * batch + 40):
        rng = np.random.default_rng(seed)
        team = RandomTeam(seed, states=4, actions=SHAPES[seed % 5])
        model, horizon = solve(team), 8
        table = loosen(model.table, rng, width=0.1, forget=0.03)
        config = ShieldConfig(
            horizon=horizon, max_risk=0.1, patience=0, over_budget="ledger" if seed % 2 else "fallback"
        )
        shield = shield_of(table, 0, config)
        worst = worst_case(model, 0, shield, horizon)
        _, bound = shield.start(np.arange(len(model.keys)))
        assert (worst <= bound + 1e-12).all(), seed
        policies = random_policies(len(model.keys), team.actions, rng)
        shields = [shield, *[None] * (len(team.actions) - 1)]
        curve = violation_probability(model, policies, horizon, shields=shields)
        assert curve.agents[-1, 0] <= model.initial @ bound + 1e-12, seed


class Temptation(RandomTeam):
    """One state; one of two actions violates with a small probability, and nothing ever ends otherwise."""

    def __init__(self, hazard: float) -> None:
        super().__init__(0, states=1, actions=(2,))
        self.hazard = hazard

    def joint_law(self, key, choices):
        here = super().joint_law(key, choices)[0]
        outcome = here._replace(probability=1.0, key=key, violated=(False,), ended=(False,))
        if choices[0] == 0:
            return [outcome]
        over = here._replace(
            probability=self.hazard, key=self._key(0, (True,)), violated=(True,), ended=(True,)
        )
        return [outcome._replace(probability=1 - self.hazard), over]


def test_the_step_rule_does_not_bound_the_episode_where_the_ledger_does():
    # Even ten tempting steps in a row keep within max_risk, so that the step rule never objects.
    rho, horizon = 0.05, 100
    model = solve(Temptation(hazard=1 - (1 - rho) ** (1 / 10)))
    risky = [np.tile([0.0, 1.0], (len(model.keys), 1))]
    step = ShieldConfig(horizon=horizon, max_risk=rho, rule="step", step_horizon=10, patience=0)
    ledger = replace(step, rule="ledger")
    violations = {}
    for config in (step, ledger):
        shield = shield_of(model.table, 0, config)
        curve = violation_probability(model, risky, horizon, shields=[shield])
        violations[config.rule] = curve.agents[-1, 0]
        assert curve.agents[10, 0] <= rho + 1e-12
        assert worst_case(model, 0, shield, horizon)[0] == pytest.approx(curve.agents[-1, 0])
    assert violations["step"] == pytest.approx(1 - (1 - rho) ** 10)  # 40 %
    assert 0.04 < violations["ledger"] <= rho


def test_the_step_rule_fails_on_random_teams_as_well():
    exceeded = 0
    for seed in range(60):
        model = solve(RandomTeam(seed, states=4, actions=(3,), hazards=(0.0, 0.002, 0.005), ends=0.0))
        config = ShieldConfig(horizon=100, max_risk=0.05, rule="step", patience=0)
        worst = worst_case(model, 0, shield_of(model.table, 0, config), 100)
        least = risk_tables(model.table, 0, 100).v[-1]
        exceeded += int((worst > np.maximum(0.05, least) + 0.01)[model.initial > 0].any())
    assert exceeded > 20


@pytest.mark.parametrize("over_budget", ["fallback", "ledger"])
@pytest.mark.parametrize("batch", range(3))
def test_a_team_of_ledgers_with_floors_stays_below_the_sum_of_its_bounds(batch, over_budget):
    floored = 0
    for seed in range(35 * batch, 35 * batch + 35):
        rng = np.random.default_rng(seed)
        shape = [(2, 2), (2, 3), (2, 2, 2)][seed % 3]
        team = RandomTeam(seed, states=3, actions=shape, hazards=(0.0, 0.0, 0.02, 0.1))
        model, horizon = solve(team), 5
        policies = random_policies(len(model.keys), team.actions, rng)
        table = loosen(model.table, rng, width=0.05, forget=0.0)
        config = ShieldConfig(horizon=horizon, max_risk=0.15, patience=0, over_budget=over_budget)
        # Agent by agent: an opponent's tables are frozen before anyone relies on its floors.
        shields: list[AgentShield] = []
        floors: list[np.ndarray | None] = [None] * len(shape)
        for agent in range(len(shape)):
            shields.append(shield_of(table, agent, config, floors))
            floors[agent] = 0.9 * policies[agent] * shields[agent].always_admitted()
            floored += int(floors[agent].any())
        curve = violation_probability(model, policies, horizon, shields=shields)
        bounds = [model.initial @ shield.start(np.arange(len(model.keys)))[1] for shield in shields]
        assert (curve.agents[-1] <= np.array(bounds) + 1e-12).all(), seed
        assert curve.team[-1] <= min(1.0, sum(bounds)) + 1e-12, seed
    assert floored > 20


def test_an_action_that_is_always_admitted_is_admitted_at_every_slack_and_time():
    for seed in range(30):
        model = solve(RandomTeam(seed, states=4, hazards=(0.0, 0.0, 0.05)))
        for over_budget in ("fallback", "ledger"):
            for rule in ("ledger", "step"):
                config = ShieldConfig(
                    horizon=12, max_risk=0.1, patience=0, over_budget=over_budget, rule=rule, step_horizon=4
                )
                shield = shield_of(model.table, 0, config)
                keys = np.arange(len(model.keys))
                always = shield.always_admitted()
                seen = np.ones_like(always)
                for k in range(1, 13):
                    for slack in (0, 1, 100, 256):
                        look = shield.look(keys, np.full(len(keys), k), np.full(len(keys), slack, np.int32))
                        seen &= look.safe
                np.testing.assert_array_equal(always, seen)
