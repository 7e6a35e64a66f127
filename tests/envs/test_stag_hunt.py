"""The stag hunt: who takes, who is mauled, and how the stag walks."""

import numpy as np
import pytest

from marl_tools.envs.grid import EAST, NORTH, SOUTH, STAY, WEST
from marl_tools.envs.stag_hunt import StagHunt, parallel_env

GAME = StagHunt()
AT = GAME.grid.cell_at
OVER = [GAME.grid.nowhere] * 3
STILL = 0


def step(hunter_0, hunter_1, stag, actions, roll=STILL):
    state = np.array([[AT[hunter_0], AT[hunter_1], AT[stag]]])
    result = GAME.transition(state, np.array([actions]), np.array([[roll]]))
    return result.state[0].tolist(), result.violated[0].tolist(), result.rewards[0].tolist()


def test_hunters_that_close_in_together_take_the_stag_and_the_hunt_is_over():
    assert step((2, 1), (2, 3), (2, 2), (EAST, WEST)) == (OVER, [False, False], [20.0, 20.0])


def test_a_hunter_who_closes_in_alone_is_mauled_and_the_hunt_is_over_for_both():
    assert step((2, 1), (4, 4), (2, 2), (EAST, STAY)) == (OVER, [True, False], [-5.0, 0.0])


def test_the_stag_mauls_a_lone_hunter_on_which_it_comes():
    assert step((2, 1), (4, 4), (2, 2), (STAY, STAY), WEST) == (OVER, [True, False], [-5.0, 0.0])


def test_a_stag_that_comes_upon_both_is_taken():
    assert step((2, 1), (2, 1), (2, 2), (STAY, STAY), WEST) == (OVER, [False, False], [20.0, 20.0])


def test_a_surprised_stag_does_not_walk_away():
    assert step((2, 1), (2, 3), (2, 2), (EAST, WEST), NORTH)[2] == [20.0, 20.0]


def test_a_hunter_may_change_places_with_the_stag():
    """They pass each other: only a shared cell at the end of somebody's move counts."""
    after, mauled, _ = step((2, 1), (4, 4), (2, 2), (NORTH, STAY), WEST)
    assert after == [AT[1, 1], AT[4, 4], AT[2, 1]]
    assert mauled == [False, False]


def test_walking_onto_a_plant_picks_it_and_standing_on_it_does_not():
    assert step((0, 3), (4, 4), (2, 2), (EAST, STAY))[2] == [0.5, 0.0]
    assert step((0, 4), (4, 4), (2, 2), (STAY, STAY))[2] == [0.0, 0.0]
    assert step((0, 4), (4, 4), (2, 2), (EAST, STAY))[2] == [0.0, 0.0], "a wall keeps it in place"


def test_hunters_may_share_a_cell_without_harm():
    after, mauled, _ = step((0, 1), (0, 3), (4, 0), (EAST, WEST))
    assert after[:2] == [AT[0, 2]] * 2
    assert mauled == [False, False]


def test_the_stag_stays_or_walks_to_each_side_with_the_announced_probabilities():
    env = parallel_env(restless=0.4)
    ((_, start),) = env.initial_law()
    law = env.joint_law(start, (STAY, STAY))
    stag = {int(GAME.states([o.key])[0, 2]): o.probability for o in law}
    sides = {int(AT[cell]): pytest.approx(0.1) for cell in ((1, 2), (2, 3), (3, 2), (2, 1))}
    assert stag == {int(AT[2, 2]): pytest.approx(0.6), **sides}


def test_at_the_edge_a_stag_that_would_leave_stays():
    assert step((4, 4), (4, 3), (0, 2), (STAY, STAY), NORTH)[0][2] == AT[0, 2]


def test_a_mauling_ends_the_episode_of_both_and_costs_the_mauled():
    env = parallel_env(restless=0.0)
    env.reset(seed=0)
    for action in (SOUTH, SOUTH, EAST):
        env.step({"hunter_0": action, "hunter_1": STAY})
    _, rewards, terminations, truncations, infos = env.step({"hunter_0": EAST, "hunter_1": STAY})
    assert terminations == {"hunter_0": True, "hunter_1": True}
    assert truncations == {"hunter_0": False, "hunter_1": False}
    assert {agent: info["cost"] for agent, info in infos.items()} == {"hunter_0": 1.0, "hunter_1": 0.0}
    assert rewards == {"hunter_0": -5.0, "hunter_1": 0.0}
    assert env.agents == []
