"""Robots on maps: rewards, frozen robots, contested cells; one step against a plain reference on random maps."""

from collections import deque

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from marl_tools.core.errors import ConfigError
from marl_tools.envs.grid import EAST, NORTH, SOUTH, STAY, WEST
from marl_tools.envs.gridmaps import MAPS, GridRobots, parallel_env

MOVES = {STAY: (0, 0), NORTH: (-1, 0), EAST: (0, 1), SOUTH: (1, 0), WEST: (0, -1)}
LINE = GridRobots("A....B", name="line_v0")


def step(game, cells, actions, rolls=(0, 0, 0)):
    result = game.transition(np.array([cells]), np.array([actions]), np.array([rolls]))
    return result.state[0].tolist(), result.violated[0].tolist(), result.rewards[0].tolist()


def test_a_step_costs_one_a_wall_ten_and_the_goal_pays_a_hundred_on_top():
    assert step(LINE, [1, 4], [EAST, STAY]) == ([2, 4], [False, False], [-1.0, -1.0])
    assert step(LINE, [1, 4], [NORTH, SOUTH]) == ([1, 4], [False, False], [-10.0, -10.0])
    assert step(LINE, [4, 2], [EAST, STAY]) == ([5, 2], [False, False], [99.0, -1.0])


def test_a_collision_costs_thirty_and_the_robots_go_on():
    after, collided, rewards = step(LINE, [2, 3], [EAST, WEST])
    assert (after, collided, rewards) == ([2, 3], [True, True], [-30.0, -30.0])
    assert not LINE.ended(np.array([after])).any()


def test_a_robot_on_its_goal_is_frozen_stands_in_the_way_and_is_not_charged():
    assert LINE.ended(np.array([[5, 4]])).tolist() == [[True, False]]
    assert step(LINE, [5, 4], [WEST, EAST]) == ([5, 4], [False, True], [0.0, -30.0])


@pytest.mark.parametrize(("order", "after"), [(0, [3, 4]), (1, [2, 3])])
def test_the_order_says_who_gets_a_contested_cell_and_both_have_collided(order, after):
    assert step(LINE, [2, 4], [EAST, WEST], (0, 0, order)) == (after, [True, True], [-30.0, -30.0])


def test_who_wins_a_contested_goal_gets_both_rewards():
    game = GridRobots("A.B\n...", name="small_v0")
    corner = game.grid.cell_at[1, 2]
    # Robot 0 wants to be where B starts; robot 1 steps back onto that cell from below.
    assert step(game, [1, corner], [EAST, NORTH])[2] == [70.0, -30.0]


@pytest.mark.parametrize(("side", "column_row"), [(0, (1, 2)), (1, (0, 1)), (2, (2, 1))])
def test_a_slip_veers_to_the_left_or_the_right_of_the_move(side, column_row):
    game = GridRobots("A..\n...\n..B", name="square_v0", slip=0.1)
    after, _, _ = step(game, [game.grid.cell_at[1, 1], game.grid.cell_at[2, 2]], [EAST, STAY], (side, 0, 0))
    assert after[0] == game.grid.cell_at[column_row]


def reference(text, cells, actions, sides, first):
    """One step in plain Python on (row, column) pairs; ``first`` is the robot with priority."""
    lines = text.split()
    free = {(r, c) for r, line in enumerate(lines) for c, sign in enumerate(line) if sign != "#"}
    where = {sign: (r, c) for r, line in enumerate(lines) for c, sign in enumerate(line) if sign in "AB"}
    goals = [where["B"], where["A"]]
    around = [NORTH, EAST, SOUTH, WEST]
    targets, rewards, moving = [], [], []
    for i in (0, 1):
        action = actions[i] if cells[i] != goals[i] else STAY
        if action != STAY:
            action = around[(around.index(action) + (0, -1, 1)[sides[i]]) % 4]
        target = tuple(a + b for a, b in zip(cells[i], MOVES[action], strict=True))
        bumped = target not in free
        targets.append(cells[i] if bumped else target)
        moving.append(targets[i] != cells[i])
        rewards.append(-10.0 if bumped else -1.0)
    collided, after = [False, False], list(targets)
    if all(moving) and targets[0] == targets[1]:
        collided = [True, True]
        after[1 - first] = cells[1 - first]
    elif targets == [cells[1], cells[0]] and all(moving):
        collided, after = [True, True], list(cells)
    else:
        for i in (0, 1):
            if moving[i] and not moving[1 - i] and targets[i] == cells[1 - i]:
                collided[i], after[i] = True, cells[i]
    total = []
    for i in (0, 1):
        reward = -30.0 if collided[i] else rewards[i]
        reward += 100.0 if after[i] == goals[i] else 0.0
        total.append(0.0 if cells[i] == goals[i] else reward)
    return after, collided, total


@st.composite
def plans(draw):
    height, width = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    signs = draw(st.lists(st.sampled_from("...#"), min_size=height * width, max_size=height * width))
    first, second = draw(st.lists(st.integers(0, height * width - 1), min_size=2, max_size=2, unique=True))
    signs[first], signs[second] = "A", "B"
    text = "\n".join("".join(signs[row * width : (row + 1) * width]) for row in range(height))
    free = [divmod(i, width) for i, sign in enumerate(signs) if sign != "#"]
    cells = draw(st.lists(st.sampled_from(free), min_size=2, max_size=2, unique=True))
    return text, cells


@given(plans(), st.data())
def test_many_worlds_at_once_step_as_a_plain_reference_does_one_by_one(plan, data):
    text, cells = plan
    game = GridRobots(text, name="random_v0", slip=0.1)
    size = st.lists(st.integers(0, 4), min_size=2, max_size=2)
    actions = data.draw(size)
    rolls = game.dice.outcomes[0]
    numbers = np.tile([game.grid.cell_at[cell] for cell in cells], (len(rolls), 1))
    result = game.transition(numbers, np.tile(actions, (len(rolls), 1)), rolls)
    for roll, after, violated, rewards in zip(
        rolls, result.state, result.violated, result.rewards, strict=True
    ):
        first = int(game._priority[roll[2]].argmin())
        expected = reference(text, cells, actions, roll[:2], first)
        assert [(game.grid.rows[c], game.grid.columns[c]) for c in after] == expected[0]
        assert (violated.tolist(), rewards.tolist()) == expected[1:]


@given(plans())
def test_a_robot_is_never_where_the_other_is(plan):
    game = GridRobots(plan[0], name="random_v0", slip=0.1)
    assume(game.grid.num_cells > 2)
    states = game.reachable()
    assert (states[:, 0] != states[:, 1]).all()


@pytest.mark.parametrize("name", MAPS)
def test_the_maps_are_of_the_announced_sizes(name):
    height, width = GridRobots(MAPS[name], name=name).grid.shape
    assert height == 10
    assert 9 <= width <= 23


def ways(grid, goal, closed):
    """The cells from which ``goal`` can be reached without ``closed``."""
    reached, queue = {goal}, deque([goal])
    while queue:
        for cell in grid.neighbours[queue.popleft()].tolist():
            if cell not in reached and cell != closed:
                reached.add(cell)
                queue.append(cell)
    return reached


@pytest.mark.parametrize("name", MAPS)
def test_a_frozen_robot_never_cuts_the_other_off_from_its_goal(name):
    game = parallel_env(map_name=name).game
    cells = set(range(game.grid.num_cells))
    for robot in (0, 1):
        frozen = int(game.goals[1 - robot])
        assert ways(game.grid, int(game.goals[robot]), frozen) == cells - {frozen}


def test_an_unknown_map_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'bridges'"):
        parallel_env(map_name="bridge")
