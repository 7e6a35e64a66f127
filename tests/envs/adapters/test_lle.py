"""LLE as a parallel env: the contract, LLE's own steps, the key and the law."""

import pickle
import random
import sys
from itertools import product

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError, EnvError, MissingExtraError
from marl_tools.core.wrappers import infer_episode_cap
from tests.envs_for_tests import check_api

lle = pytest.importorskip("lle")

from marl_tools.envs.adapters.lle import parallel_env  # noqa: E402

NORTH, SOUTH, EAST, WEST, STAY = range(5)
SMALL = """
S0 S1 .
L0E . .
G  X  X
"""
"""Two rows apart by a beam that only the first agent blocks."""


def small(**more):
    return parallel_env(map_text=SMALL, **{"max_cycles": 12, **more})


def play(env, seed, rng):
    """Every step of an episode of random legal play: key, actions, and what came of them."""
    _, infos = env.reset(seed=seed)
    while env.agents:
        before = env.state_key()
        actions = {a: int(rng.choice(np.flatnonzero(infos[a]["action_mask"]))) for a in env.agents}
        result = env.step(actions)
        infos = result[4]
        yield before, actions, result


@pytest.mark.parametrize("level", [3, 4, 6])
def test_a_level_keeps_the_contract_of_parallel_envs(level):
    env = parallel_env(level=level)
    assert infer_episode_cap(env) == 78
    check_api(env, cycles=100)


def test_steps_rewards_deaths_and_masks_are_those_of_lle():
    rng = np.random.default_rng(0)
    env, raw = parallel_env(level=3), lle.level(3).build()
    for episode in range(15):
        raw.reset(seed=episode)
        for _, actions, (_, rewards, terminations, truncations, infos) in play(env, episode, rng):
            step = raw.step(list(actions.values()))
            assert set(rewards.values()) == {float(step.reward[0])}
            dead = [not step.info[f"is-alive-{i}"] for i in range(2)]
            assert [infos[agent]["cost"] for agent in actions] == dead
            assert set(terminations.values()) == {step.done}
            assert not (any(truncations.values()) and step.done)
            if not step.done:
                masks = np.array([infos[agent]["action_mask"] for agent in actions])
                assert np.array_equal(masks, raw.available_actions())


def test_a_death_and_the_last_arrival_terminate_everybody():
    env = small()
    env.reset(seed=0)
    _, rewards, terminations, truncations, infos = env.step({"agent_0": STAY, "agent_1": SOUTH})
    assert (terminations, truncations) == (dict.fromkeys(rewards, True), dict.fromkeys(rewards, False))
    assert [infos[agent]["cost"] for agent in rewards] == [0.0, 1.0]
    assert env.agents == []
    env = parallel_env(map_text="S0 X\nS1 X")
    env.reset(seed=0)
    _, rewards, terminations, _, infos = env.step({"agent_0": EAST, "agent_1": EAST})
    assert (rewards["agent_0"], terminations["agent_1"], infos["agent_1"]["cost"]) == (3.0, True, 0.0)


def test_a_cap_truncates_and_who_has_arrived_waits_for_the_others():
    env = parallel_env(map_text="S0 X\nS1 X", max_cycles=2)
    env.reset(seed=0)
    _, _, terminations, truncations, infos = env.step({"agent_0": EAST, "agent_1": STAY})
    assert not any([*terminations.values(), *truncations.values()])
    assert np.flatnonzero(infos["agent_0"]["action_mask"]).tolist() == [STAY]
    _, _, terminations, truncations, _ = env.step({"agent_0": STAY, "agent_1": STAY})
    assert (set(terminations.values()), set(truncations.values())) == ({False}, {True})


def test_a_last_step_that_ends_the_game_is_no_truncation():
    env = parallel_env(map_text="S0 X", max_cycles=1)
    env.reset(seed=0)
    _, _, terminations, truncations, _ = env.step({"agent_0": EAST})
    assert (terminations["agent_0"], truncations["agent_0"]) == (True, False)


def test_an_action_that_the_world_does_not_allow_is_a_wait():
    env = small()
    env.reset(seed=0)
    key = env.state_key()
    env.step({"agent_0": NORTH, "agent_1": WEST})
    assert env.state_key() == key


def test_equal_keys_and_actions_lead_to_equal_keys_rewards_and_costs():
    rng, seen, repeated = np.random.default_rng(1), {}, 0
    env = small()
    for episode in range(300):
        for before, actions, (_, rewards, terminations, _, infos) in play(env, episode, rng):
            led = (env.state_key(), tuple(rewards.values()), tuple(terminations.values()))
            led += (tuple(infos[agent]["cost"] for agent in actions),)
            repeated += (row := (before, tuple(actions.values()))) in seen
            assert seen.setdefault(row, led) == led
    assert repeated > 100


def test_the_law_is_what_steps_do_from_every_key_and_joint_action():
    env, law = small(max_cycles=100), small()
    table = law.law_table()
    actions = list(product(range(5), repeat=2))
    # Every key is reached by stepping: a breadth-first walk with the env's own world.
    env.reset(seed=0)
    paths, frontier = {env.state_key(): ()}, [env.state_key()]
    assert law.initial_law() == [(1.0, env.state_key())]
    while frontier:
        key = frontier.pop(0)
        for joint in actions:
            env.reset(seed=0)
            for before in paths[key]:
                env.step(dict(zip(env.agents, before, strict=True)))
            if not env.agents:
                assert law.ended_agents(key) == (True, True)
                break
            _, _, terminations, _, infos = env.step(dict(zip(env.agents, joint, strict=True)))
            (outcome,) = law.joint_law(key, joint)
            assert outcome.key == env.state_key()
            assert outcome.violated == tuple(info["cost"] > 0 for info in infos.values())
            assert outcome.ended == tuple(terminations.values())
            if outcome.key not in paths:
                paths[outcome.key] = (*paths[key], joint)
                frontier.append(outcome.key)
    assert set(table.keys) == set(paths)


def test_what_is_seen_and_allowed_at_a_key_is_what_the_env_showed_there():
    env, rng = parallel_env(level=4), np.random.default_rng(2)
    keys, shown = [], []
    for episode in range(10):
        for _, _, (observations, _, terminations, _, infos) in play(env, episode, rng):
            if not any(terminations.values()):
                keys.append(env.state_key())
                shown.append((observations, infos))
    view = env.observe_keys(keys)
    for agent in env.possible_agents:
        assert np.array_equal(view.observations[agent], [obs[agent] for obs, _ in shown])
        assert np.array_equal(view.masks[agent], [infos[agent]["action_mask"] for _, infos in shown])


def test_asking_for_the_law_leaves_the_episode_alone():
    env = small()
    env.reset(seed=0)
    key = env.state_key()
    env.law_table()
    assert env.state_key() == key
    env.step({"agent_0": STAY, "agent_1": EAST})
    assert env.step({"agent_0": STAY, "agent_1": STAY})[4]["agent_1"]["cost"] == 0.0


def test_a_reset_leaves_pythons_global_generator_alone():
    env = small()
    random.seed(5)
    expected = random.random()
    random.seed(5)
    env.reset(seed=0)
    assert random.random() == expected


def test_an_episode_does_not_depend_on_those_before():
    rng = np.random.default_rng(3)
    used, script = parallel_env(level=3), [rng.integers(5, size=2) for _ in range(60)]
    for _ in play(used, 1, rng):
        pass
    runs = []
    for env in (used, parallel_env(level=3)):
        env.reset(seed=7)
        runs.append([env.state_key()])
        for joint in script:
            if env.agents:
                env.step(dict(zip(env.agents, joint.tolist(), strict=True)))
                runs[-1].append(env.state_key())
    assert runs[0] == runs[1]


def test_a_pickled_env_goes_on_where_it_was():
    env = small(render_mode="rgb_array")
    env.reset(seed=0)
    env.step({"agent_0": STAY, "agent_1": EAST})
    twin = pickle.loads(pickle.dumps(env))
    joint = {"agent_0": EAST, "agent_1": STAY}
    env.step(joint)
    twin.step(joint)
    assert env.state_key() == twin.state_key()
    assert np.array_equal(env.render(), twin.render())


def test_overridden_agents_carry_a_ring():
    env = small(render_mode="rgb_array")
    env.reset(seed=0)
    plain = env.render()
    env.mark_overrides(["agent_1"])
    ringed = env.render()
    changed = np.argwhere((plain != ringed).any(axis=2))
    assert len(changed)
    assert changed[:, 1].min() >= 32 - 2, "the first agent's cell stays as it is"


@pytest.mark.parametrize(
    ("kwargs", "remedy"),
    [
        ({"level": 7}, "levels 1, 2"),
        ({"map_text": "S0 ?"}, "map_text"),
        ({"max_cycles": 0}, "max_cycles"),
        ({"render_mode": "human"}, "rgb_array"),
    ],
)
def test_what_cannot_work_is_refused(kwargs, remedy):
    with pytest.raises(ConfigError, match=remedy):
        parallel_env(**kwargs)


def test_missing_and_unknown_actions_are_named():
    env = small()
    with pytest.raises(EnvError, match="reset"):
        env.state_key()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="'agent_1'"):
        env.step({"agent_0": STAY})
    with pytest.raises(EnvError, match="no action 5"):
        env.step({"agent_0": 5, "agent_1": STAY})


def test_a_level_too_large_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="more than 200 keys"):
        parallel_env(level=3).law_table(200)


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "lle", None)
    with pytest.raises(MissingExtraError, match=r'Run: pip install "marl-tools\[lle\]"'):
        parallel_env()
