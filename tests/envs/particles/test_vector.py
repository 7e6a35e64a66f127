"""The native twins of mpe2's envs play the episodes of mpe2 itself, to the bit."""

import numpy as np
import pytest
from mpe2 import simple_spread_v3, simple_v3
from pettingzoo.utils.wrappers import BaseParallelWrapper

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.wrappers.direct import VERIFIED, step_directly
from marl_tools.envs.particles import ParticleVectorEnv, Spread, scenario_of
from marl_tools.envs.tasks import find_task
from marl_tools.vector import SerialVectorEnv
from tests.envs.vector_steps import assert_same, plain

SETTINGS = [
    ("simple_spread", {}),
    ("simple_spread", {"continuous_actions": True}),
    ("simple_spread", {"N": 5, "local_ratio": 0.3, "max_cycles": 7}),
    ("simple_spread", {"N": 2, "local_ratio": 1.0}),
    ("simple_spread", {"N": 1, "terminate_on_success": True}),
    ("simple_tag", {}),
    ("simple_tag", {"continuous_actions": True, "num_obstacles": 0}),
    ("simple_tag", {"num_good": 2, "num_adversaries": 4, "num_obstacles": 3, "max_cycles": 20}),
    ("simple_tag", {"terminate_on_success": True, "max_cycles": 15}),
    ("simple_adversary", {}),
    ("simple_adversary", {"N": 4, "continuous_actions": True}),
    ("simple_adversary", {"N": 1, "max_cycles": 3}),
    ("simple_push", {}),
    ("simple_push", {"continuous_actions": True, "max_cycles": 10}),
    ("simple_reference", {}),
    ("simple_reference", {"continuous_actions": True, "local_ratio": 0.1, "max_cycles": 10}),
    ("simple_speaker_listener", {}),
    ("simple_speaker_listener", {"continuous_actions": True, "max_cycles": 10}),
]
LABELS = [f"{name} {kwargs}" for name, kwargs in SETTINGS]
WORLDS = 9


def both(name, kwargs, num_envs=WORLDS):
    """mpe2 stepped env by env, and its twin."""
    factory = EnvFactory(make_env=find_task(name).make_env, kwargs=kwargs, env_name=name)
    scenario = scenario_of(factory().env)
    return SerialVectorEnv(factory, num_envs), ParticleVectorEnv(scenario, num_envs)


def random_actions(vector, rng):
    """What makes the bodies meet often enough: each prefers one action for a while."""
    actions = {}
    for group in vector.groups:
        shape = (vector.num_envs, len(group.agents))
        if group.spaces.is_discrete:
            actions[group.name] = rng.integers(group.spaces.action_dim, size=shape)
        else:
            actions[group.name] = rng.normal(size=(*shape, group.spaces.action_dim)).astype(np.float32)
    return actions


@pytest.mark.parametrize(("name", "kwargs"), SETTINGS, ids=LABELS)
def test_a_twin_plays_exactly_the_episodes_of_mpe2(name, kwargs):
    serial, twin = both(name, kwargs)
    assert serial.groups == twin.groups
    assert serial.env_name == twin.env_name
    assert_same(serial.reset(11), twin.reset(11))
    rng, episodes = np.random.default_rng(0), 0
    for _ in range(52):
        actions = random_actions(twin, rng)
        expected, step = serial.step(actions), twin.step(actions)
        assert_same(expected, step)
        assert (serial.frames, serial.episodes_started) == (twin.frames, twin.episodes_started)
        episodes += len(step.episodes)
    assert episodes >= 2 * WORLDS
    assert plain(serial.close()) == plain(twin.close())


def run(places, inwards):
    """Moves (agents, E) that bring each agent along its longer axis to the origin, or away from it."""
    x, y = places if inwards else -places
    return np.where(np.abs(y) > np.abs(x), np.where(y > 0, 3, 4), np.where(x > 0, 1, 2))


@pytest.mark.parametrize(
    ("name", "kwargs", "num_envs"),
    [
        ("simple_spread", {"N": 5}, 4),
        ("simple_spread", {"N": 12}, 1),
        ("simple_tag", {"num_good": 2}, 4),
        ("simple_push", {}, 4),
    ],
)
def test_a_crowd_and_a_flight_are_those_of_mpe2(name, kwargs, num_envs):
    """All contacts at once, where the order of float sums shows, then far out, where prey pays for it."""
    serial, twin = both(name, {**kwargs, "max_cycles": 60}, num_envs)
    serial.reset(0), twin.reset(0)
    agents, touched, rewards = len(twin.scenario.agents), 0, []
    rows = {agent.name: row for row, agent in enumerate(twin.scenario.agents)}
    for t in range(59):
        moves = run(twin.worlds.state.pos[:, :agents], inwards=t < 30)
        actions = {
            group.name: moves[[rows[agent] for agent in group.agents]].T.copy() for group in twin.groups
        }
        assert_same(serial.step(actions), step := twin.step(actions))
        touched += int((twin.worlds.gap < twin.worlds.touching).sum())
        rewards += [group.rewards.min() for group in step.groups.values()]
    assert touched > 3
    assert np.abs(twin.worlds.state.pos).max() > 1.5
    if name == "simple_tag":
        assert min(rewards) < -15


@pytest.mark.parametrize(("name", "target"), [("simple_spread", 1), ("simple_tag", 3)])
def test_success_ends_an_episode_as_in_mpe2_and_the_others_go_on(name, target):
    """Everyone runs to one body: the landmark, or the prey."""
    kwargs = {"N": 1} if name == "simple_spread" else {}
    serial, twin = both(name, {**kwargs, "terminate_on_success": True, "max_cycles": 40})
    serial.reset(0), twin.reset(0)
    logs, agents = [], len(twin.scenario.agents)
    for _ in range(50):
        places = twin.worlds.state.pos
        moves = run(places[:, :agents] - places[:, target, None], inwards=True)
        rows = np.split(moves.T, np.cumsum([len(group.agents) for group in twin.groups])[:-1], axis=1)
        actions = {group.name: part.copy() for group, part in zip(twin.groups, rows, strict=True)}
        assert_same(serial.step(actions), step := twin.step(actions))
        logs += step.episodes
    ends = [end for log in logs for end in log.ends.values()]
    assert {"terminated", "truncated"} >= set(ends)
    assert ends.count("terminated") > WORLDS
    assert len({log.length for log in logs}) > 3


@pytest.mark.parametrize("num_envs", [1, 30])
def test_a_world_does_not_depend_on_how_many_there_are(num_envs):
    serial, twin = both("simple_spread", {"max_cycles": 3}, num_envs)
    assert_same(serial.reset(8), twin.reset(8))
    rng = np.random.default_rng(1)
    for _ in range(7):
        actions = random_actions(twin, rng)
        assert_same(serial.step(actions), twin.step(actions))


def test_a_reset_in_the_middle_logs_what_it_interrupts_and_counts_on():
    serial, twin = both("simple_spread", {"max_cycles": 5})
    for vector in (serial, twin):
        vector.resume(frames=1000, episodes_started=70)
    rng = np.random.default_rng(2)
    for seed in (3, 3, 4):
        assert_same(serial.reset(seed), twin.reset(seed))
        for _ in range(7):
            actions = random_actions(twin, rng)
            notes = [{"overrides": {"agent_0": 1}, "bound": {"agent_1": 0.5}} for _ in range(WORLDS)]
            assert_same(serial.step(actions, notes), twin.step(actions, notes))
    assert all(log.interrupted for log in twin.reset(5).episodes)
    assert (twin.frames, twin.episodes_started) == (serial.frames, serial.episodes_started + WORLDS)


def test_an_impossible_action_is_named_with_agent_and_copy():
    _, twin = both("simple_spread", {})
    twin.reset(0)
    actions = np.zeros((WORLDS, 3), int)
    actions[3, 1] = 5
    with pytest.raises(EnvError, match="'agent_1' in copy 3 has no action 5, only 0 to 4"):
        twin.step({"agent": actions})


def test_an_action_that_is_no_number_is_refused_by_a_twin_as_by_mpe2():
    pairs = both("simple_spread", {"continuous_actions": True})
    actions = np.zeros((WORLDS, 3, 5), np.float32)
    actions[3, 1, 2] = np.nan
    for envs, kind, message in zip(
        pairs, (AssertionError, EnvError), ("nan", "'agent_1' in copy 3 is NaN"), strict=True
    ):
        envs.reset(0)
        with pytest.raises(kind, match=message):
            envs.step({"agent": actions})


def test_it_runs_only_between_reset_and_close_and_closes_twice():
    _, twin = both("simple_spread", {})
    with pytest.raises(EnvError, match="call reset"):
        twin.step({"agent": np.zeros((WORLDS, 3), int)})
    twin.reset(0)
    twin.step({"agent": np.zeros((WORLDS, 3), int)})
    assert [log.interrupted for log in twin.close()] == [True] * WORLDS
    assert twin.close() == []
    with pytest.raises(EnvError, match="closed"):
        twin.reset(0)


def test_only_mpe2_as_it_makes_its_envs_has_a_twin():
    env = simple_spread_v3.parallel_env()
    assert isinstance(scenario_of(env), Spread)
    assert isinstance(scenario_of(step_directly(env)), Spread)
    assert scenario_of(BaseParallelWrapper(env)) is None
    assert scenario_of(simple_v3.parallel_env()) is None
    assert scenario_of(simple_spread_v3.env()) is None


def test_a_release_of_mpe2_that_was_not_compared_has_no_twin(monkeypatch):
    monkeypatch.setitem(VERIFIED, "mpe2", ("0.9", "1.0"))
    with pytest.raises(
        ConfigError, match=r"that of mpe2 0\.9 or 1\.0, and mpe2 \S+ is installed; leave the flag"
    ):
        scenario_of(simple_spread_v3.parallel_env())


@pytest.mark.parametrize("setting", ["benchmark_data", "curriculum", "num_agent_neighbors"])
def test_what_a_twin_lacks_is_refused_by_name(setting):
    with pytest.raises(
        ConfigError, match=f"simple_spread_v3 has no {setting}; leave {setting} or the flag out"
    ):
        scenario_of(simple_spread_v3.parallel_env(**{setting: True}))


@pytest.mark.parametrize(
    "wrong", [{"N": 0}, {"local_ratio": 2}, {"max_cycles": 0}], ids=["no agents", "ratio", "no steps"]
)
def test_settings_that_make_no_world_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Spread(**wrong)
    with pytest.raises(ConfigError, match="num_envs"):
        ParticleVectorEnv(Spread(), 0)
