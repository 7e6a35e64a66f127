"""Maps, and who may move where: each rule on a hand-drawn situation, then all of them against a plain reference."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marl_tools.core.errors import ConfigError
from marl_tools.envs.grid import EAST, NORTH, SOUTH, STAY, WEST, GridMap, move_together

MAP = """
    A.#
    ~.a
"""


def test_cells_are_numbered_in_reading_order_without_the_walls():
    grid = GridMap(MAP)
    assert grid.shape == (2, 3)
    assert grid.num_cells == grid.nowhere == 5
    assert grid.cell_at.tolist() == [[0, 1, -1], [2, 3, 4]]
    assert grid.hazard.tolist() == [False, False, True, False, False]
    assert (grid.the("A"), grid.the("a"), grid.find(".").tolist()) == (0, 4, [1, 3])


def test_walls_and_the_edge_of_the_map_keep_one_in_place():
    neighbours = GridMap(MAP).neighbours
    assert neighbours[1, [STAY, NORTH, EAST, SOUTH, WEST]].tolist() == [1, 1, 1, 3, 0]
    assert neighbours[4, [STAY, NORTH, EAST, SOUTH, WEST]].tolist() == [4, 4, 4, 4, 3]
    assert neighbours[5].tolist() == [5] * 5, "off the map there is nowhere to go"


def test_a_ragged_map_is_refused_with_the_lengths_found():
    with pytest.raises(ConfigError, match=r"\[2, 3\]"):
        GridMap("...\n..")


def test_a_missing_or_doubled_sign_is_refused():
    with pytest.raises(ConfigError, match="exactly one 'B', this one has 0"):
        GridMap(MAP).the("B")
    with pytest.raises(ConfigError, match=r"exactly one '\.', this one has 2"):
        GridMap(MAP).the(".")


# Cells are numbers on a line; (positions, targets) -> (positions after, who is charged), the first has priority.
RULES = {
    "all move freely": ([0, 5], [1, 6], [1, 6], []),
    "one may follow into a cell that is left": ([0, 1], [1, 2], [1, 2], []),
    "a ring of three may turn": ([0, 1, 2], [1, 2, 0], [1, 2, 0], []),
    "contenders are both charged and the first gets the cell": ([0, 2], [1, 1], [1, 2], [0, 1]),
    "a swap fails and both are charged": ([0, 1], [1, 0], [0, 1], [0, 1]),
    "one that stood still is rammed and not charged": ([0, 1], [1, 1], [0, 1], [0]),
    "two that ram a standing one are charged, it is not": ([0, 2, 1], [1, 1, 1], [0, 2, 1], [0, 1]),
    "who follows one that fails is charged": ([0, 1, 2], [1, 2, 2], [0, 1, 2], [0, 1]),
    "who follows the loser of a contest is charged": ([3, 1, 0], [2, 2, 1], [2, 1, 0], [0, 1, 2]),
    "who follows the winner of a contest is not": ([1, 3, 0], [2, 2, 1], [2, 3, 1], [0, 1]),
    "who follows into a swap is charged": ([1, 2, 0], [2, 1, 1], [1, 2, 0], [0, 1, 2]),
    "contenders for the cell of a loser all fail": ([4, 2, 1, 3], [3, 3, 2, 3], [4, 2, 1, 3], [0, 1, 2]),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_collision_is_charged_to_those_whose_own_move_took_part(rule):
    position, target, after, charged = RULES[rule]
    present = np.ones((1, len(position)), bool)
    cells, collided = move_together(
        np.array([position]), np.array([target]), present, np.arange(len(position))[None]
    )
    assert cells[0].tolist() == after
    assert np.flatnonzero(collided[0]).tolist() == charged


def test_the_other_order_gives_the_cell_to_the_other_contender():
    both = np.ones((1, 2), bool)
    cells, collided = move_together(np.array([[0, 2]]), np.array([[1, 1]]), both, np.array([[1, 0]]))
    assert (cells.tolist(), collided.tolist()) == ([[0, 1]], [[True, True]])


def test_without_priorities_nobody_enters_a_contested_cell():
    cells, collided = move_together(np.array([[0, 2]]), np.array([[1, 1]]), np.ones((1, 2), bool))
    assert (cells.tolist(), collided.tolist()) == ([[0, 2]], [[True, True]])


def test_a_token_off_the_map_neither_moves_nor_stands_in_the_way():
    cells, collided = move_together(np.array([[0, 1]]), np.array([[1, 0]]), np.array([[True, False]]))
    assert (cells.tolist(), collided.tolist()) == ([[1, 1]], [[False, False]])


def reference(position, target, present, priority):
    """The rules said token by token: does token i get where it wants?"""
    team = range(len(position))
    moving = [present[i] and target[i] != position[i] for i in team]
    rivals = {
        i: [j for j in team if j != i and moving[i] and moving[j] and target[j] == target[i]] for i in team
    }

    def swaps(i, j):
        return moving[i] and moving[j] and target[i] == position[j] and target[j] == position[i]

    def gets_there(i, above=()):
        if not moving[i] or any(swaps(i, j) for j in team if j != i):
            return False
        if rivals[i] and (priority is None or any(priority[j] < priority[i] for j in rivals[i])):
            return False
        owners = [j for j in team if j != i and present[j] and position[j] == target[i]]
        # Coming back to a token that is being asked about closes a ring, which turns.
        return all(j in above or gets_there(j, (*above, i)) for j in owners)

    moves = [gets_there(i) for i in team]
    after = [target[i] if moves[i] else position[i] for i in team]
    return after, [moving[i] and (not moves[i] or bool(rivals[i])) for i in team]


@st.composite
def situations(draw):
    agents = draw(st.integers(1, 4))
    cells = draw(st.permutations(range(5)))[:agents]
    return (
        cells,
        draw(st.lists(st.integers(0, 4), min_size=agents, max_size=agents)),
        draw(st.lists(st.booleans(), min_size=agents, max_size=agents)),
        draw(st.none() | st.permutations(range(agents))),
    )


@given(situations())
def test_moving_many_worlds_is_moving_each_token_by_the_rules(situation):
    position, target, present, priority = situation
    cells, charged = move_together(
        np.array([position]),
        np.array([target]),
        np.array([present]),
        None if priority is None else np.array([priority]),
    )
    assert (cells[0].tolist(), charged[0].tolist()) == reference(*situation)


@given(situations())
def test_no_two_tokens_end_in_one_cell_and_who_stands_still_is_never_charged(situation):
    position, target, present, priority = map(np.array, situation)
    if situation[3] is None:
        priority = np.arange(len(position))
    cells, charged = move_together(position[None], target[None], present[None], priority[None])
    assert len(set(cells[0, present])) == present.sum()
    assert not charged[0, (target == position) | ~present].any()
