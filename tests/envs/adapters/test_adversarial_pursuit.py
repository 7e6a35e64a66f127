"""adversarial_pursuit: from the first step on everyone does what they chose, and being tagged is what costs."""

import pytest

from marl_tools.core.wrappers import AddCost
from marl_tools.envs.costs import adversarial_pursuit as cost
from tests.envs_for_tests import play, same

pytest.importorskip("magent2")

from marl_tools.envs.adapters.adversarial_pursuit import parallel_env


def seen_after(**chosen):
    """What everyone sees after a first step in which all do nothing but the chosen ones."""
    env = parallel_env(map_size=19)
    env.reset(seed=1)
    return env.step({**dict.fromkeys(env.agents, 4), **chosen})[0]


@pytest.mark.parametrize("prey", ["prey_0", "prey_3", "prey_8"])
def test_what_a_prey_does_first_is_its_own_choice(prey):
    assert len({seen_after(**{prey: action})[prey].tobytes() for action in range(9)}) > 2


def test_tagged_prey_and_only_they_are_charged():
    env = AddCost(parallel_env(map_size=19, max_cycles=60), cost)
    tagged = 0
    for seed in range(8):
        for _, rewards, _, _, infos in play(env, seed=seed, actions=seed)[1:]:
            for agent, reward in rewards.items():
                assert infos[agent]["cost"] == float(agent.startswith("prey") and reward in (-1, -2, -3))
                tagged += infos[agent]["cost"]
    assert tagged > 3


def test_two_copies_do_not_disturb_each_other():
    alone = play(parallel_env(map_size=15, max_cycles=20), seed=1, actions=1)
    env, other = parallel_env(map_size=15, max_cycles=20), parallel_env(map_size=15, max_cycles=20)
    other.reset(seed=5)
    step = env.step

    def both(actions):
        other.step(dict.fromkeys(other.agents, 1))
        return step(actions)

    env.step = both
    assert same(play(env, seed=1, actions=1), alone)
