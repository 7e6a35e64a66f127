"""Bounds that add up over factors, held against teams whose joint law is known."""

from __future__ import annotations

import numpy as np
import pytest

from marl_tools.core.transitions import exact_table, joint_choices
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.exact import solve, violation_probability, worst_case
from marl_tools.safety.factor_store import Groups
from marl_tools.safety.factors import FactoredShield
from marl_tools.safety.recursion import risk_tables
from tests.factored_teams import Tracks
from tests.random_mdps import loosen, random_policies


def groups_of(team: Tracks) -> Groups:
    factors, names = team.factors(), team.possible_agents
    members = tuple(tuple(names.index(agent) for agent in part.agents) for part in factors.parts)
    return Groups(members, tuple(factors.backup[agent] for agent in names))


def factored(team: Tracks, config: ShieldConfig, *, num_envs: int = 1, loose=None):
    """The team as a whole, and its shield over factors, which numbers the team's keys alike."""
    whole, parts = solve(team), team.factors().parts
    models = [solve(part.law) for part in parts]
    numbers = [{key: i for i, key in enumerate(model.keys)} for model in models]
    # Where all of a pair have ended there is nothing to enumerate for the pair alone.
    ids = np.array(
        [
            [of.get(part.project(key), -1) for part, of in zip(parts, numbers, strict=True)]
            for key in whole.keys
        ]
    )
    shield = FactoredShield(
        team.possible_agents, whole.table.actions, config, groups_of(team), ids.__getitem__, num_envs=num_envs
    )
    shield.refresh_factors([model.table if loose is None else loose(model.table) for model in models])
    return whole, shield


@pytest.mark.parametrize("seed", range(3))
def test_each_factor_is_markov_under_the_actions_of_its_own_agents(seed):
    team = Tracks(seed)
    whole = solve(team)
    for part in team.factors().parts:
        group = [team.possible_agents.index(agent) for agent in part.agents]
        for row in range(len(whole.table.row_key)):
            key, choices = (
                whole.keys[whole.table.row_key[row]],
                joint_choices((2, 2, 2), whole.table.row_joint[row]),
            )
            seen: dict = {}
            for outcome in team.joint_law(key, choices.tolist()):
                after = part.project(outcome.key)
                seen[after] = seen.get(after, 0.0) + outcome.probability
            own = part.law.joint_law(part.project(key), choices[group].tolist())
            expected = {outcome.key: outcome.probability for outcome in own}
            assert seen.keys() == expected.keys()
            assert all(abs(seen[after] - expected[after]) < 1e-12 for after in seen)


@pytest.mark.parametrize("batch", range(3))
def test_sums_over_factors_bound_the_risk_of_the_whole_and_no_play_exceeds_the_ledger(batch):
    risky = 0
    for seed in range(20 * batch, 20 * batch + 20):
        rng = np.random.default_rng(seed)
        horizon = int(rng.integers(1, 10))
        config = ShieldConfig(
            horizon=horizon,
            max_risk=float(rng.choice([0.02, 0.1, 0.3])),
            patience=0,
            over_budget="ledger" if seed % 2 else "fallback",
        )
        loose = None if seed % 3 else lambda table, rng=rng: loosen(table, rng, width=0.05, forget=0.02)
        whole, shield = factored(Tracks(seed, actions=3 if seed % 8 == 0 else 2), config, loose=loose)
        agent = seed % 3
        one = shield.shields[agent]
        truth = risk_tables(whole.table, agent, horizon, later=0)
        ids = np.arange(len(whole.keys))
        look = one.look(ids, np.full(len(ids), horizon), np.zeros(len(ids), np.int32))
        live = ~whole.ended.all(1)
        assert (look.value >= truth.v[-1] - 1e-12)[live].all(), seed
        # Prices are rounded up, and Q is never below V here.
        q = look.value[:, None] + look.price * config.level
        assert (q >= truth.q[-1] - 1e-12)[live].all(), seed
        worst, (_, bound) = worst_case(whole, agent, one, horizon), one.start(ids)
        assert (worst <= bound + 1e-12).all(), seed
        risky += int((worst > 0.01).any())
    assert risky > 8  # else the bounds would be empty


def test_safest_actions_of_each_factor_would_add_up_to_less_than_the_risk_of_the_whole():
    # Action 1 is harmless with one neighbour and hurts with the other, and action 2 the other way round.
    left, right = (
        exact_table(
            (3,),
            1,
            np.zeros(3, int),
            np.arange(3)[:, None],
            np.full(3, 2),
            np.zeros(6, int),
            np.ravel([[1 - risk, risk] for risk in risks]),
            np.tile([False, True], 3)[:, None],
            np.zeros((6, 1), bool),
        )
        for risks in ([0.1, 0.0, 0.5], [0.1, 0.5, 0.0])
    )
    assert risk_tables(left, 0, 5).v[-1, 0] + risk_tables(right, 0, 5).v[-1, 0] == 0
    shield = FactoredShield(
        ["agent"],
        [3],
        ShieldConfig(horizon=5, max_risk=0.9, patience=0),
        Groups(((0,), (0,)), (0,)),
        lambda ids: np.zeros((len(ids), 2), int),
        num_envs=1,
    )
    shield.refresh_factors([left, right])
    _, bound = shield.shields[0].start(np.zeros(1, int))
    # The safest policy for the whole is the backup here: 5 steps with a risk of 0.1 twice.
    assert 1 - 0.81**5 <= bound[0] == pytest.approx(max(0.9, 2 * (1 - 0.9**5)))


def test_a_team_behind_the_factored_ledger_violates_at_most_as_often_as_its_bounds_say():
    for seed in range(8):
        config = ShieldConfig(horizon=6, max_risk=0.05, patience=0)
        whole, shield = factored(Tracks(seed), config)
        policies = random_policies(len(whole.keys), (2, 2, 2), np.random.default_rng(seed))
        curve = violation_probability(whole, policies, 6, shields=shield.shields)
        bounds = [whole.initial @ one.start(np.arange(len(whole.keys)))[1] for one in shield.shields]
        assert (curve.agents[-1] <= np.array(bounds) + 1e-12).all()
        assert curve.team[-1] <= sum(bounds) + 1e-12
