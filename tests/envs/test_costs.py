"""Costs of mpe2's envs, against the rules spelled out over observations and places."""

import numpy as np
import pytest

from marl_tools.core.factory import EnvFactory
from marl_tools.envs.particles import ParticleVectorEnv, scenario_of
from marl_tools.vector import SerialVectorEnv
from tests.envs.vector_steps import plain
from tests.envs_for_tests import play

SPREAD, TAG = "marl_tools.envs.costs:spread", "marl_tools.envs.costs:tag"


def factory(module, cost, **kwargs):
    make_env = f"mpe2.{module}:parallel_env"
    return EnvFactory(make_env=make_env, kwargs=kwargs, cost=cost, env_name=module.removesuffix("_v3"))


def crowded(env, steps, rng):
    """Costs and results of episodes in which agents set out from places close to each other."""
    for seed in range(steps):
        env.reset(seed=seed)
        for agent in env.unwrapped.world.agents:
            agent.state.p_pos[:] = rng.uniform(-0.4, 0.4, 2) + rng.choice([0, 0.8], 2)
        yield env.step({agent: int(rng.integers(5)) for agent in env.agents})


@pytest.mark.parametrize("direct", [True, False])
def test_spread_charges_whoever_sees_another_nearer_than_30_hundredths(direct):
    env = EnvFactory(make_env="mpe2.simple_spread_v3:parallel_env", cost=SPREAD, direct=direct)()
    charged = []
    for observations, _, _, _, infos in crowded(env, 150, np.random.default_rng(0)):
        for agent, obs in observations.items():
            nearest = np.linalg.norm(obs[10:14].reshape(2, 2), axis=1).min()
            assert infos[agent]["cost"] == float(nearest < 0.30)
            charged.append(infos[agent]["cost"])
    assert 50 < sum(charged) < len(charged) - 50


def test_spread_of_one_agent_costs_nothing():
    steps = play(factory("simple_spread_v3", SPREAD, N=1)(), seed=0, actions=0)[1:]
    assert {info["cost"] for *_, infos in steps for info in infos.values()} == {0.0}


def tag_by_the_rules(agents):
    """Who is charged, from the agents of mpe2's world."""
    charged = {}
    for one in agents:
        place = one.state.p_pos
        gaps = {other.name: np.linalg.norm(other.state.p_pos - place) for other in agents if other is not one}
        hunters = {other.name for other in agents if other.adversary}
        if one.adversary:
            charged[one.name] = any(gap < 0.15 for name, gap in gaps.items() if name in hunters)
        else:
            caught = any(gap < 0.125 for name, gap in gaps.items() if name in hunters)
            charged[one.name] = caught or bool((np.abs(place) > 1).any())
    return charged


@pytest.mark.parametrize("kwargs", [{}, {"num_good": 3, "num_adversaries": 4}, {"num_adversaries": 1}])
def test_tag_charges_prey_for_being_caught_or_leaving_and_predators_for_touching_each_other(kwargs):
    env = factory("simple_tag_v3", TAG, **kwargs)()
    counts = {"adversary": 0, "agent": 0}
    for *_, infos in crowded(env, 250, np.random.default_rng(1)):
        expected = tag_by_the_rules(env.unwrapped.world.agents)
        assert {agent: bool(info["cost"]) for agent, info in infos.items()} == expected
        for agent, charged in expected.items():
            counts[agent.rsplit("_", 1)[0]] += charged
    assert counts["agent"] > 10
    assert (counts["adversary"] > 10) is (kwargs.get("num_adversaries") != 1)


@pytest.mark.parametrize(
    ("module", "cost", "kwargs"),
    [
        ("simple_spread_v3", SPREAD, {"max_cycles": 9}),
        ("simple_spread_v3", SPREAD, {"N": 6, "continuous_actions": True}),
        ("simple_spread_v3", SPREAD, {"N": 1}),
        ("simple_tag_v3", TAG, {}),
        ("simple_tag_v3", TAG, {"num_good": 2, "num_adversaries": 5, "max_cycles": 40}),
        ("simple_tag_v3", TAG, {"num_adversaries": 1}),
    ],
)
def test_a_twins_costs_are_those_of_the_env_to_the_bit(module, cost, kwargs):
    single = SerialVectorEnv(factory(module, cost, **kwargs), 6)
    scenario = scenario_of(factory(module, None, **kwargs)().env)
    assert scenario.cost == cost
    scenario.charged = True
    twin = ParticleVectorEnv(scenario, 6)
    rng, total = np.random.default_rng(0), 0.0
    single.reset(4), twin.reset(4)
    for _ in range(60):
        actions = {}
        for group in twin.groups:
            shape = (6, len(group.agents))
            discrete = rng.integers(5, size=shape), rng.normal(size=(*shape, 5)).astype(np.float32)
            actions[group.name] = discrete[0] if group.spaces.is_discrete else discrete[1]
        expected, step = single.step(actions), twin.step(actions)
        for name, group in expected.groups.items():
            np.testing.assert_array_equal(group.costs, step.groups[name].costs)
            np.testing.assert_array_equal(group.rewards, step.groups[name].rewards)
            total += group.costs.sum()
        assert plain(expected.episodes) == plain(step.episodes)
    assert total > 5 or kwargs.get("N") == 1
