"""Drones: flights that depend on nobody, and pairs that come too close."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.envs import drones
from marl_tools.envs.grid import EAST, NORTH, SOUTH, STAY, WEST

A, B, C, D = range(4)


def at(game, *places):
    """The state in which the drones are at these (row, column)."""
    return np.array([[game.grid.cell_at[place] for place in places]])


def step(game, state, *moves):
    result = game.transition(state, np.array([moves]), np.zeros((1, len(moves)), np.int64))
    return result.state, result.violated[0].tolist()


def test_a_drone_is_charged_for_its_own_move_into_another_and_not_for_being_met():
    game = drones.Drones(n_agents=3, size=4)
    state = at(game, (1, 1), (1, 2), (3, 3))
    assert step(game, state, EAST, STAY, STAY)[1] == [True, False, False]
    assert step(game, state, EAST, WEST, STAY)[1] == [True, True, False]
    assert step(game, state, EAST, EAST, NORTH)[1] == [False, False, False]
    together, _ = step(game, state, EAST, STAY, STAY)
    assert step(game, together, STAY, STAY, STAY)[1] == [False, False, False]
    assert step(game, together, SOUTH, SOUTH, STAY)[1] == [True, True, False]


def test_nobody_is_in_the_way_of_a_drone_and_a_landed_one_is_met_by_none():
    game = drones.Drones(n_agents=2, size=4)
    goal_of_a = at(game, (3, 3), (2, 3))
    after, violated = step(game, goal_of_a, STAY, SOUTH)
    assert violated == [False, False]
    assert after.tolist() == [[game.goals[0]] * 2]
    assert game.ended(after)[0].tolist() == [True, False]


def test_a_pair_of_the_fleet_is_markov_by_itself_whatever_the_others_do():
    env = drones.parallel_env(n_agents=3, size=3, slip=0.2)
    declared, rng = env.factors(), np.random.default_rng(0)
    assert declared is not None
    for state in rng.integers(9, size=(40, 3)):
        key = env.game.keys(state[None])[0]
        ended = env.ended_agents(key)
        choices = [5 if out else int(rng.integers(5)) for out in ended]
        whole = env.joint_law(key, choices)
        charged = [np.zeros(3, bool) for _ in whole]
        for factor in declared.parts:
            group = [env.possible_agents.index(agent) for agent in factor.agents]
            own, chosen = factor.project(key), tuple(choices[i] for i in group)
            found: dict = {}
            for outcome, flags in zip(whole, charged, strict=True):
                after = factor.project(outcome.key)
                harmed = tuple(factor.violated(own, chosen, after))
                flags[group] |= harmed
                kind = (after, harmed, tuple(outcome.ended[i] for i in group))
                found[kind] = found.get(kind, 0.0) + outcome.probability
            expected = {
                (o.key, o.violated, o.ended): o.probability for o in factor.law.joint_law(own, chosen)
            }
            assert found.keys() == expected.keys()
            assert all(abs(found[kind] - expected[kind]) < 1e-12 for kind in found)
        assert [tuple(flags.tolist()) for flags in charged] == [outcome.violated for outcome in whole]


def test_a_drone_that_stays_never_violates_so_its_backup_is_harmless():
    game = drones.Drones(n_agents=2, size=3)
    for state, move in product(game.reachable(), range(5)):
        assert not step(game, state[None], STAY, move)[1][0]


@pytest.mark.parametrize(
    "wrong", [{"n_agents": 1}, {"n_agents": 9}, {"size": 2}, {"slip": 1.0}, {"max_cycles": 0}]
)
def test_a_fleet_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        drones.parallel_env(**wrong)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_eight_drones_have_a_start_and_a_goal_each_straight_across(size):
    game = drones.Drones(n_agents=8, size=size)
    starts = game.start(np.zeros((1, 0), np.int64))[0]
    assert len(set(starts.tolist())) == len(set(game.goals.tolist())) == 8
    assert set(starts.tolist()) == set(game.goals.tolist())
    assert not game.ended(starts[None]).any()
    rows, columns = game.grid.rows, game.grid.columns
    apart = np.maximum(abs(rows[starts] - rows[game.goals]), abs(columns[starts] - columns[game.goals]))
    assert (apart == size - 1).all()


def test_two_drones_are_looked_at_together():
    assert drones.parallel_env(n_agents=2).factors() is None
