"""The crossing: lanes, crashes, rewards, and a plain reference of one step."""

from itertools import pairwise

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.envs.crossing import GO, WAIT, Crossing, parallel_env
from tests.envs.games import enumerated

GONE = 7
SURE = Crossing(n_agents=2, slip=0.0)
FOUR = Crossing(n_agents=4, slip=0.0)


def step(game, state, actions, slipped=None):
    rolls = np.array([slipped or [0] * len(state)])
    result = game.transition(np.array([state]), np.array([actions]), rolls)
    return result.state[0].tolist(), result.violated[0].tolist(), result.rewards[0].tolist()


def test_each_lane_is_a_straight_line_from_its_start_to_its_goal_on_the_right_hand_side():
    grid = FOUR.grid
    lanes = [[(grid.rows[c], grid.columns[c]) for c in lane] for lane in FOUR._lanes]
    assert [lane[0] for lane in lanes] == [(4, 0), (7, 4), (3, 7), (0, 3)]
    assert [lane[-1] for lane in lanes] == [(4, 7), (0, 4), (3, 0), (7, 3)]
    for lane in lanes:
        assert {abs(a - c) + abs(b - d) for (a, b), (c, d) in pairwise(lane)} == {1}


def test_crossing_roads_share_one_cell_and_opposite_ones_none():
    lanes = [set(lane.tolist()) for lane in FOUR._lanes]
    shared = {(i, j): len(lanes[i] & lanes[j]) for i in range(4) for j in range(i)}
    assert shared == {(1, 0): 1, (2, 0): 0, (2, 1): 1, (3, 0): 1, (3, 1): 0, (3, 2): 1}


def test_going_moves_one_cell_waiting_none_and_slipping_none():
    assert step(SURE, [0, 0], [GO, WAIT])[0] == [1, 0]
    assert step(SURE, [0, 0], [GO, GO], [1, 0])[0] == [0, 1]


def test_arriving_ends_the_car_with_the_goal_reward_on_top_of_the_step():
    assert step(SURE, [6, 0], [GO, WAIT]) == ([GONE, 0], [False, False], [9.0, -1.0])


def test_contending_cars_both_crash_and_leave_without_the_goal():
    # Car 0 crosses the lane of car 1 at its cell 4, which is cell 3 of that lane.
    assert step(SURE, [3, 2], [GO, GO]) == ([GONE, GONE], [True, True], [-1.0, -1.0])


def test_ramming_a_waiting_car_is_charged_to_the_one_that_moved_and_the_other_drives_on():
    assert step(SURE, [3, 3], [GO, WAIT]) == ([GONE, 3], [True, False], [-1.0, -1.0])


def test_driving_up_behind_a_car_that_leaves_is_safe_unless_that_one_slips():
    assert step(SURE, [3, 3], [GO, GO])[:2] == ([4, 4], [False, False])
    assert step(SURE, [3, 3], [GO, GO], [0, 1])[:2] == ([GONE, 3], [True, False])


def test_four_cars_can_turn_through_the_middle_at_once_and_pile_up_when_one_slips():
    assert step(FOUR, [3] * 4, [GO] * 4)[:2] == ([4] * 4, [False] * 4)
    after, crashed, _ = step(FOUR, [3] * 4, [GO] * 4, [1, 0, 0, 0])
    assert after == [3, GONE, GONE, GONE]
    assert crashed == [False, True, True, True]


def test_a_car_that_is_gone_is_no_obstacle_and_earns_nothing():
    assert step(SURE, [3, GONE], [GO, GO]) == ([4, GONE], [False, False], [-1.0, 0.0])


def reference(cars, lanes, state, actions, slipped):
    """One step car by car: where it is, and whether it crashes."""
    here = {i: lanes[i][state[i]] for i in cars if state[i] != GONE}
    goes = {i for i in here if actions[i] == GO and not slipped[i]}
    there = {i: lanes[i][state[i] + 1] for i in goes}
    crashed = {i for i in goes for j in goes if i != j and there[i] == there[j]}
    crashed |= {i for i in goes for j in goes if i != j and there[i] == here[j] and there[j] == here[i]}
    while True:
        standing = {here[i] for i in here if i not in goes or i in crashed}
        more = {i for i in goes - crashed if there[i] in standing}
        if not more:
            break
        crashed |= more
    return [GONE if i in crashed else state[i] + (i in goes) for i in cars], [i in crashed for i in cars]


def test_every_step_of_three_cars_is_that_of_a_plain_reference():
    game, _, states, choices, _ = enumerated("crossing of three")
    lanes = game._lanes.tolist()
    rng = np.random.default_rng(0)
    for row in rng.integers(len(states), size=400):
        slipped = rng.integers(2, size=3).tolist()
        state, action = states[row].tolist(), choices[row].tolist()
        after, violated, _ = step(game, state, action, slipped)
        assert (after, violated) == reference(range(3), lanes, state, action, slipped)


def test_cars_start_on_the_first_or_second_cell_of_their_lane():
    law = parallel_env().initial_law()
    assert [probability for probability, _ in law] == [0.25] * 4
    states = SURE.states([key for _, key in law])
    assert sorted(states.tolist()) == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_waiting_for_ever_is_cut_off_at_the_cap_and_not_a_violation():
    env = parallel_env(max_cycles=5)
    env.reset(seed=0)
    for left in (4, 3, 2, 1, 0):
        _, rewards, terminations, truncations, infos = env.step(dict.fromkeys(env.agents, WAIT))
        assert set(rewards.values()) == {-1.0}
        assert set(terminations.values()) == {False}
        assert set(truncations.values()) == {left == 0}
        assert {info["cost"] for info in infos.values()} == {0.0}
    assert env.agents == []


@pytest.mark.parametrize("n_agents", [1, 5, 0])
def test_a_team_that_the_roads_cannot_take_is_refused(n_agents):
    with pytest.raises(ConfigError, match="n_agents") as error:
        parallel_env(n_agents=n_agents)
    assert str(n_agents) in str(error.value)
