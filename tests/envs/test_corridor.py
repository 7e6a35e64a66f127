"""The corridor: wind, falls, and the closed form of the straight way."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marl_tools.core.errors import ConfigError
from marl_tools.envs.corridor import Corridor, parallel_env, violation_probability
from marl_tools.envs.grid import EAST, NORTH, SOUTH, STAY, WEST

ONE = Corridor(n_agents=1, length=3)
LEDGE = [ONE.grid.cell_at[2, column] for column in (1, 2, 3, 4)]
ABOVE = [ONE.grid.cell_at[1, column] for column in (1, 2, 3, 4)]
GONE = ONE.grid.nowhere
CALM, WIND = 0, 1


def step(cell, action, wind):
    result = ONE.transition(np.array([[cell]]), np.array([[action]]), np.array([[wind]]))
    return int(result.state[0, 0]), bool(result.violated[0, 0]), float(result.rewards[0, 0])


def test_it_starts_on_the_ledge_and_ends_at_its_goal():
    assert ONE.start_law()[1].tolist() == [[LEDGE[0]]]
    assert step(LEDGE[2], EAST, CALM) == (GONE, False, 9.0)


def test_on_the_ledge_the_wind_blows_a_moving_walker_into_the_abyss():
    for action in (NORTH, EAST, WEST, SOUTH):
        assert step(LEDGE[1], action, WIND) == (GONE, True, -1.0)


def test_one_row_up_the_wind_only_costs_the_way_back():
    assert step(ABOVE[1], EAST, WIND) == (LEDGE[1], False, -1.0)


def test_who_stays_put_is_safe_from_the_wind():
    assert step(LEDGE[1], STAY, WIND) == (LEDGE[1], False, -1.0)


def test_walking_off_the_ledge_is_a_violation_without_any_wind():
    assert step(LEDGE[1], SOUTH, CALM) == (GONE, True, -1.0)


def test_a_wall_keeps_the_walker_in_place():
    assert step(ABOVE[0], NORTH, CALM) == (ABOVE[0], False, -1.0)


def risk_of_going_east(game, steps):
    """Violation probability within ``steps`` steps of walkers that always go east, by propagating the exact law."""
    (now,) = game.ids(game.start_law()[1])
    alive, fallen = {int(now): 1.0}, 0.0
    for _ in range(steps):
        ids = np.array(list(alive))
        laws = game.laws(game.state_of_ids(ids), np.full((len(ids), len(game.agents)), EAST))
        mass = laws.probability * np.array([alive[int(i)] for i in ids])[laws.row]
        harmed = laws.violated.any(axis=1)
        fallen += mass[harmed].sum()
        alive = {}
        for key, p in zip(game.ids(laws.state[~harmed]).tolist(), mass[~harmed].tolist(), strict=True):
            alive[key] = alive.get(key, 0.0) + p
    return fallen


@pytest.mark.parametrize("agents", [1, 2])
@given(slip=st.floats(0.0, 0.9), length=st.integers(2, 6), steps=st.integers(0, 8))
def test_the_closed_form_is_what_the_law_adds_up_to(agents, slip, length, steps):
    game = Corridor(n_agents=agents, length=length, slip=slip)
    closed = violation_probability(slip=slip, length=length, steps=steps, agents=agents)
    assert closed == pytest.approx(risk_of_going_east(game, steps), abs=1e-12)


def test_the_straight_way_breaks_a_risk_that_the_way_round_keeps():
    """What the defaults are for: 5 % allowed, 22 % straight on, under 4 % one row up."""
    assert violation_probability(slip=0.03, length=8, steps=50) > 0.2
    game = Corridor(n_agents=1)
    grid = game.grid
    policy = np.full(grid.num_cells + 1, EAST)
    policy[[grid.cell_at[2, column] for column in range(1, 9)]] = NORTH
    policy[grid.cell_at[1, 9]] = SOUTH
    mass, fallen = np.zeros(grid.num_cells + 1), 0.0
    mass[game.start_law()[1][0, 0]] = 1.0
    for _ in range(50):
        states = np.flatnonzero(mass)[:, None]
        laws = game.laws(states, policy[states])
        flow = laws.probability * mass[states[laws.row, 0]]
        fallen += flow[laws.violated[:, 0]].sum()
        mass = np.bincount(laws.state[:, 0], flow, minlength=len(mass))
    assert 0.03 < fallen < 0.04
    assert mass[grid.nowhere] > 0.99


def test_walkers_in_different_corridors_have_nothing_to_do_with_each_other():
    game = Corridor(n_agents=2, length=3, slip=0.2)
    start = game.start_law()[1]
    alone = Corridor(n_agents=1, length=3, slip=0.2)
    single = alone.laws(alone.start_law()[1], np.array([[EAST]]))
    pair = game.laws(start, np.array([[EAST, STAY]]))
    assert pair.probability == pytest.approx(single.probability, abs=1e-15)
    assert (pair.state[:, 1] == start[0, 1]).all()


@pytest.mark.parametrize("wrong", [{"n_agents": 4}, {"n_agents": 0}, {"length": 1}, {"max_cycles": 0}])
def test_a_corridor_that_cannot_be_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        parallel_env(**wrong)
