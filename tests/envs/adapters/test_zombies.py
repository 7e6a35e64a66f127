"""knights_archers_zombies: an episode owes nothing to the one before, and dying is what costs."""

import pytest

from marl_tools.core.wrappers import AddCost
from marl_tools.envs.adapters.zombies import parallel_env
from marl_tools.envs.costs import zombies
from tests.envs_for_tests import play


def arrivals(env, steps):
    """How many zombies there are after each step of an episode in which nobody does anything."""
    env.reset(seed=0)
    counts = []
    for _ in range(steps):
        env.step(dict.fromkeys(env.agents, 5))
        counts.append(len(env.unwrapped.zombie_list))
    return counts


@pytest.mark.parametrize("before", [1, 7, 19, 20, 33])
def test_the_first_zombie_comes_as_late_as_ever_after_an_episode_of_any_length(before):
    env = parallel_env(spawn_delay=20)
    expected = arrivals(env, 45)
    assert (expected[18], expected[19], expected[39]) == (0, 1, 2)
    arrivals(env, before)
    assert arrivals(env, 45) == expected


def test_who_dies_is_charged_in_that_step_and_who_survives_a_lost_game_is_not():
    env = AddCost(parallel_env(spawn_delay=3, max_zombies=30), zombies)
    died, survived = 0, 0
    for seed in range(3):
        (_, *steps) = play(env, seed=seed, actions=seed)
        for _, rewards, terminations, truncations, infos in steps:
            players = env.unwrapped.agent_map
            for agent in rewards:
                assert infos[agent]["cost"] in (0.0, 1.0)
                if infos[agent]["cost"]:
                    assert terminations[agent]
                    assert not players[agent].is_alive
                    died += 1
                elif terminations[agent] and not truncations[agent]:
                    survived += 1
    assert died > 0
    assert survived > 0


def test_arguments_reach_the_env():
    env = parallel_env(num_knights=1, num_archers=1, render_mode="rgb_array")
    env.reset(seed=0)
    assert env.agents == ["archer_0", "knight_0"]
    assert env.render().shape == (720, 1280, 3)
    env.close()
