"""The parallel face: PettingZoo's contract, whole-episode determinism, costs, keys and pictures."""

import copy
import pickle

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.factory import resolve
from marl_tools.core.wrappers import infer_episode_cap
from marl_tools.core.wrappers.base import env_title
from marl_tools.envs import find_task, task_names
from tests.envs.games import MAKERS, SMALL
from tests.envs_for_tests import check_api, play, same

OWN = [name for name in task_names() if find_task(name).id.startswith("marl_tools/")]
every_game = pytest.mark.parametrize("name", SMALL)


def make(name, **more):
    task = find_task(name)
    return resolve(task.make_env)(**task.kwargs, **more)


@pytest.mark.parametrize("name", OWN)
def test_it_keeps_pettingzoos_contract(name):
    check_api(make(name, max_cycles=20), cycles=100)


@pytest.mark.parametrize("name", OWN)
def test_its_name_modes_and_cap_are_where_tools_look_for_them(name):
    env = make(name, max_cycles=33)
    assert env_title(env) == f"{name}_v0"
    assert env.metadata["render_modes"] == ["rgb_array"]
    assert env.metadata["render_fps"] > 0
    assert infer_episode_cap(env) == 33


@pytest.mark.parametrize("name", OWN)
def test_a_seed_is_one_episode_on_a_fresh_and_on_a_used_instance(name):
    env = make(name, max_cycles=40)
    first = play(env, seed=3, actions=7)
    play(env, seed=4, actions=8)
    assert same(first, play(env, seed=3, actions=7))
    assert same(first, play(make(name, max_cycles=40), seed=3, actions=7))


@pytest.mark.parametrize("name", ["crossing", "corridor", "slipping robots", "stag hunt"])
def test_different_seeds_are_different_episodes(name):
    env = MAKERS[name]()
    traces = [play(env, seed=seed, actions=0) for seed in range(8)]
    assert any(not same(traces[0], trace) for trace in traces[1:])


def test_without_a_seed_the_chance_goes_on_from_the_episodes_before():
    def keys(env):
        seen = []
        for seed in (5, None, None):
            env.reset(seed=seed)
            seen.append(env.state_key())
            while env.agents:
                env.step(dict.fromkeys(env.agents, 1))
                seen.append(env.state_key())
        return seen

    assert keys(MAKERS["crossing of three"]()) == keys(MAKERS["crossing of three"]())
    env = MAKERS["crossing of three"]()
    starts = set()
    for _ in range(30):
        env.reset()
        starts.add(env.state_key())
    assert len(starts) > 1


@every_game
def test_a_copy_goes_on_as_the_original_does(name):
    env = MAKERS[name]()
    env.reset(seed=1)
    env.step(dict.fromkeys(env.agents, 1))
    traces = []
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env)), env):
        traces.append([])
        for _ in range(2):
            while twin.agents:
                traces[-1].append(twin.step(dict.fromkeys(twin.agents, 1)))
            traces[-1].append(twin.reset())
    assert same(traces[0], traces[2])
    assert same(traces[1], traces[2])


@every_game
def test_costs_are_one_in_a_step_of_violation_and_zero_otherwise_for_all_who_acted(name):
    env, costs = MAKERS[name](), set()
    for seed in range(40):
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        while acting := env.agents:
            infos = env.step({agent: int(rng.integers(env.action_space(agent).n)) for agent in acting})[4]
            assert list(infos) == acting
            costs |= {info["cost"] for info in infos.values()}
    assert costs == {0.0, 1.0}


@pytest.mark.parametrize("name", [name for name in SMALL if name != "stag hunt"])
def test_the_episode_is_cut_at_the_cap_and_the_clock_is_neither_in_the_key_nor_seen(name):
    env = MAKERS[name](max_cycles=3)
    first, _ = env.reset(seed=0)
    start = env.state_key()
    for steps in (1, 2, 3):
        observations, _, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, 0))
        assert set(terminations.values()) == {False}
        assert set(truncations.values()) == {steps == 3}
        # The first action is to wait or to stay, and nothing else moves here.
        assert env.state_key() == start
        assert same(observations, first)
        assert env.agents == (list(first) if steps < 3 else [])


def test_an_end_of_its_own_in_the_step_of_the_cap_is_a_termination():
    env = MAKERS["corridor"](max_cycles=1, slip=0.0)
    env.reset(seed=0)
    _, _, terminations, truncations, _ = env.step({"walker_0": 3, "walker_1": 0})
    assert terminations == {"walker_0": True, "walker_1": False}
    assert truncations == {"walker_0": False, "walker_1": True}


def test_stepping_on_after_the_end_does_nothing():
    env = MAKERS["crossing"](max_cycles=1)
    env.reset(seed=0)
    env.step({"car_0": 0, "car_1": 0})
    key = env.state_key()
    assert env.step({}) == ({}, {}, {}, {}, {})
    assert env.state_key() == key


@pytest.mark.parametrize("actions", [{"car_0": 1}, {"car_0": 1, "car_1": 2}, {"car_0": -1, "car_1": 0}])
def test_a_missing_or_impossible_action_is_named(actions):
    env = MAKERS["crossing"]()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="car_"):
        env.step(actions)


def test_before_the_first_reset_there_is_neither_key_nor_step():
    env = MAKERS["crossing"]()
    for call in (env.state_key, lambda: env.step({}), MAKERS["crossing"](render_mode="rgb_array").render):
        with pytest.raises(EnvError, match="call reset"):
            call()


@pytest.mark.parametrize("choices", [(2, 0), (0, -1), (0, 3)])
def test_a_choice_that_an_agent_does_not_have_at_a_key_is_refused(choices):
    env = MAKERS["crossing"]()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="cannot choose"):
        env.joint_law(env.state_key(), choices)


def test_an_agent_that_has_ended_can_only_choose_nothing():
    env = MAKERS["crossing"]()
    (key,) = env.game.keys(np.array([[0, 7]]))
    assert env.ended_agents(key) == (False, True)
    assert sum(outcome.probability for outcome in env.joint_law(key, (1, 2))) == pytest.approx(1.0)
    with pytest.raises(ConfigError, match="only 2, none"):
        env.joint_law(key, (1, 1))


def test_an_unknown_render_mode_and_a_picture_without_one_are_refused():
    with pytest.raises(ConfigError, match="'human'"):
        MAKERS["crossing"](render_mode="human")
    env = MAKERS["crossing"]()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="render_mode='rgb_array'"):
        env.render()
