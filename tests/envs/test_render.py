"""Pictures: their form, and that what matters changes them."""

import numpy as np
import pytest

from marl_tools.core.factory import EnvFactory, resolve
from marl_tools.envs import find_task
from tests.envs.games import MAKERS
from tests.envs.test_parallel import OWN

RED, YELLOW = (0xD0, 0, 0), (0xFF, 0xE1, 0)


def count(frame, colour):
    return int((frame == colour).all(axis=2).sum())


def started(name="crossing", **more):
    env = MAKERS[name](render_mode="rgb_array", **more)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("name", OWN)
def test_a_picture_is_rgb_with_even_sides_and_changes_when_agents_move(name):
    task = find_task(name)
    env = resolve(task.make_env)(**task.kwargs, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    assert before.dtype == np.uint8
    assert before.shape[2] == 3
    assert {side % 2 for side in before.shape[:2]} == {0}
    assert max(before.shape) <= 700
    assert (env.render() == before).all(), "the same world looks the same"
    for action in (1, 2, 1):
        env.step({agent: min(action, env.action_space(agent).n - 1) for agent in env.agents})
    # Below the map is the caption, which counts the steps.
    assert (env.render()[:-24] != before[:-24]).any()


def test_a_picture_belongs_to_its_receiver():
    env = started()
    first = env.render()
    kept = first.copy()
    env.step(dict.fromkeys(env.agents, 1))
    second = env.render()
    assert (first == kept).all()
    second[:] = 0
    assert env.render().any()


def test_all_agents_in_a_cell_can_be_seen():
    env = started("stag hunt")
    alone = env.render()
    for hunter_0, hunter_1 in [(3, 1), (3, 1), (2, 4)]:
        env.step({"hunter_0": hunter_0, "hunter_1": hunter_1})
    colours = [(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)]
    assert all(count(alone, colour) > 0 for colour in colours)
    assert all(count(env.render(), colour) > 0 for colour in colours)


def test_overridden_agents_are_ringed_until_the_next_call_or_reset():
    env = started()
    assert count(env.render(), YELLOW) == 0
    env.mark_overrides(["car_0"])
    env.step(dict.fromkeys(env.agents, 1))
    one = count(env.render(), YELLOW)
    assert one > 50
    env.mark_overrides(["car_0", "car_1"])
    assert count(env.render(), YELLOW) > 1.5 * one
    env.mark_overrides([])
    assert count(env.render(), YELLOW) == 0
    env.mark_overrides(["car_1"])
    env.reset(seed=0)
    assert count(env.render(), YELLOW) == 0


def test_overrides_are_marked_through_the_wrappers_of_a_run():
    env = EnvFactory(make_env="marl_tools.envs.crossing:parallel_env", cap=5)(render_mode="rgb_array")
    env.reset(seed=0)
    env.mark_overrides(["car_1"])
    assert count(env.render(), YELLOW) > 50


def test_a_violation_is_crossed_out_where_it_happened_in_that_step_only():
    env = started("corridor", slip=0.0)
    env.step({"walker_0": 3, "walker_1": 0})
    frame = env.render()
    assert count(frame, RED) > 20
    grid = env.game.grid
    size = (frame.shape[0] - 22) // grid.shape[0]
    abyss = frame[3 * size : 4 * size, size : 2 * size]
    assert count(abyss, RED) == count(frame, RED)
    env.step({"walker_1": 0})
    assert count(env.render(), RED) == 0
