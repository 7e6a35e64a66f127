"""CrazyRL surround: one reward, a crash that is a crash even in the last step, and a picture."""

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.wrappers import AddCost
from marl_tools.envs.costs import surround as cost

pytest.importorskip("momaland")

from marl_tools.envs.adapters.surround import parallel_env

HOVER, DOWN, UP = np.zeros(3, np.float32), np.array([0, 0, -1], np.float32), np.array([0, 0, 1], np.float32)


def fly(env, actions):
    """What the last of some steps returned, in which each of the four drones has an action."""
    env.reset(seed=0)
    result = None
    for step in actions:
        assert env.agents
        result = env.step(dict(zip(env.possible_agents, step, strict=True)))
    return result


@pytest.mark.parametrize("waiting", [0, 50, 195])
def test_who_reaches_the_ground_is_charged_and_all_terminate_also_in_the_last_step(waiting):
    env = AddCost(parallel_env(), cost)
    steps = [[HOVER] * 4] * waiting + [[HOVER, HOVER, DOWN, HOVER]] * 5
    _, _, terminations, truncations, infos = fly(env, steps)
    assert all(terminations.values())
    assert not any(truncations.values())
    assert {agent for agent in infos if infos[agent]["cost"]} == {"agent_2"}
    assert env.agents == []


def test_200_steps_without_a_crash_truncate():
    env = AddCost(parallel_env(), cost)
    _, _, terminations, truncations, infos = fly(env, [[HOVER] * 4] * 200)
    assert all(truncations.values())
    assert not any(terminations.values())
    assert not any(info["cost"] for info in infos.values())


def test_drones_that_meet_are_both_charged_and_one_at_the_target_alone():
    env = AddCost(parallel_env(), cost)
    *_, infos = fly(env, [[np.array([0, 1, 0], np.float32), HOVER, HOVER, HOVER]] * 5)
    assert {agent for agent in infos if infos[agent]["cost"]} == {"agent_0", "agent_2"}
    env = AddCost(parallel_env(), cost)
    *_, infos = fly(env, [[HOVER, 0.9 * UP, HOVER, HOVER]] * 8)
    assert {agent for agent in infos if infos[agent]["cost"]} == {"agent_1"}


def test_a_reward_is_the_weighted_sum_of_both():
    step = [[UP, UP, HOVER, HOVER]]
    (_, near, *_), (_, apart, *_), (_, both, *_) = (
        fly(parallel_env(weights=weights), step) for weights in ((1, 0), (0, 1), (0.25, 2))
    )
    for agent in both:
        assert both[agent] == pytest.approx(0.25 * near[agent] + 2 * apart[agent])
    assert near["agent_1"] > near["agent_3"] == 0


def test_names_are_plain_text_and_the_picture_moves():
    env = parallel_env(render_mode="rgb_array")
    observations, _ = env.reset(seed=0)
    before = env.render()
    assert {type(agent) for agent in observations} == {str}
    assert (before.dtype, before.shape) == (np.uint8, (540, 360, 3))
    env.step(dict.fromkeys(env.agents, UP))
    assert (env.render() != before).any()
    assert parallel_env().render() is None


@pytest.mark.parametrize("weights", [(1,), (1, 2, 3), (np.nan, 1), "(1, 2)", None])
def test_weights_that_are_not_two_numbers_are_refused(weights):
    with pytest.raises(ConfigError, match="give two numbers"):
        parallel_env(weights=weights)


def test_a_window_is_refused():
    with pytest.raises(ConfigError, match="render_mode='human': surround draws 'rgb_array'"):
        parallel_env(render_mode="human")
