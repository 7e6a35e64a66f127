"""multiwalker: its cap truncates, a fall terminates, and both are told apart even in the same step."""

import numpy as np
import pytest

from marl_tools.core.wrappers import AddCost
from marl_tools.envs.adapters.multiwalker import parallel_env
from marl_tools.envs.costs import multiwalker
from tests.envs_for_tests import play


def last(**kwargs):
    """Number of steps of an episode of chance, and what its last one returned."""
    env = AddCost(parallel_env(**kwargs), multiwalker)
    (_, *steps) = play(env, seed=3, actions=3)
    env.close()
    return len(steps), steps[-1]


def test_the_cap_truncates_all_who_stand():
    steps, (_, _, terminations, truncations, infos) = last(max_cycles=6)
    assert steps == 6
    assert not any(terminations.values())
    assert all(truncations.values())
    assert not any(info["cost"] for info in infos.values())


def test_a_fall_terminates_also_in_the_step_of_the_cap_and_one_step_earlier_it_is_a_cut():
    fell, (_, _, terminations, _, _) = last()
    assert all(terminations.values())
    assert fell < 500
    for cap, terminated in ((fell, True), (fell - 1, False)):
        steps, (_, _, terminations, truncations, infos) = last(max_cycles=cap)
        assert steps == cap
        assert set(terminations.values()) == {terminated}
        assert set(truncations.values()) == {not terminated}
        assert any(info["cost"] for info in infos.values()) is terminated


def test_a_fallen_walker_alone_is_charged_and_all_are_when_the_package_falls():
    env = AddCost(parallel_env(terminate_on_fall=False), multiwalker)
    env.reset(seed=0)
    idle = dict.fromkeys(env.agents, np.zeros(4, np.float32))
    for fallen, dropped, charged in (([1], False, [1]), ([], True, [0, 1, 2])):
        env.reset(seed=0)
        base = env.unwrapped.env
        base.fallen_walkers[fallen] = True
        base.game_over = dropped
        *_, infos = env.step(idle)
        assert [i for i in range(3) if infos[f"walker_{i}"]["cost"]] == charged
    env.close()


@pytest.mark.parametrize("walkers", [2, 4])
def test_arguments_reach_the_env(walkers):
    env = parallel_env(n_walkers=walkers)
    env.reset(seed=0)
    assert len(env.agents) == walkers
    env.close()
