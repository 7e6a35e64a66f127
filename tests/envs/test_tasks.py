"""Every named task, on the real environment."""

from importlib.util import find_spec

import numpy as np
import pettingzoo
import pytest
from hypothesis import given, strategies as st
from mpe2.all_modules import mpe_environments

from marl_tools.core.errors import ConfigError, MissingExtraError
from marl_tools.core.factory import resolve
from marl_tools.core.wrappers.preprocess import preprocess
from marl_tools.envs import find_task, require, task_names

SETTABLE = [name for name in task_names() if find_task(name).n_agents_kwarg]
STEPS = 10


def make(name, n_agents=None, **more):
    task = find_task(name)
    require(task)
    return resolve(task.make_env)(**task.kwargs_for(n_agents) | more)


def random_actions(env, seed=0):
    """For each step a mapping of every possible agent's action."""
    for index, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(seed + index)
    return [{agent: env.action_space(agent).sample() for agent in env.possible_agents} for _ in range(STEPS)]


def play(env, actions, seed):
    """Everything that one short episode shows, flat."""
    observations, _ = env.reset(seed=seed)
    seen = [{agent: np.array(obs) for agent, obs in observations.items()}]
    for step in actions:
        observations, rewards, terminations, truncations, _ = env.step({a: step[a] for a in env.agents})
        seen += [{agent: np.array(obs) for agent, obs in observations.items()}]
        seen += [dict(rewards), dict(terminations), dict(truncations)]
        if not env.agents:
            break
    env.close()
    return seen


@pytest.mark.parametrize("name", task_names())
def test_a_task_has_the_agents_it_declares_and_observations_within_their_spaces(name):
    env = make(name)
    observations, _ = env.reset(seed=0)
    assert len(env.possible_agents) == find_task(name).agents
    for step in random_actions(env):
        for agent, obs in observations.items():
            # rps_v2 observes a plain int, which gymnasium's Discrete takes as well
            assert env.observation_space(agent).contains(obs), agent
        if not env.agents:
            break
        observations, rewards, *_ = env.step({agent: step[agent] for agent in env.agents})
        assert rewards.keys() == observations.keys()
    env.close()


@pytest.mark.parametrize("name", task_names())
def test_a_task_plays_the_same_episode_again_for_the_same_seed(name):
    env = make(name)
    actions = random_actions(env)
    np.testing.assert_equal(play(env, actions, seed=0), play(make(name), actions, seed=0))


@pytest.mark.parametrize("name", task_names())
def test_an_env_made_for_filming_shows_the_agents_what_they_were_trained_on(name):
    env = make(name)
    actions = random_actions(env)
    filmed = make(name, render_mode="rgb_array")
    np.testing.assert_equal(play(env, actions, seed=0), play(filmed, actions, seed=0))


@pytest.mark.parametrize("name", SETTABLE)
def test_the_team_size_reaches_the_environment(name):
    size = find_task(name).agents + 1
    env = make(name, n_agents=size)
    env.reset(seed=0)
    assert len(env.agents) == size
    env.close()


@pytest.mark.parametrize(("name", "shape"), [("pistonball", (84, 36, 4)), ("cooperative_pong", (42, 72, 4))])
def test_screens_are_preprocessed_into_small_stacks_that_a_network_can_take(name, shape):
    env = preprocess(make(name), find_task(name).preprocess)
    observations, _ = env.reset(seed=0)
    assert {obs.shape for obs in observations.values()} == {shape}
    assert all(np.ptp(obs[..., -1]) > 0 for obs in observations.values()), "a blank screen"
    env.close()


def test_every_installed_mpe2_and_parallel_pettingzoo_environment_is_a_task():
    installed = [name.replace("mpe/", "mpe2/").replace("_v", "-v") for name in mpe_environments]
    # Atari needs game ROMs that no package may ship.
    installed += [name for name in pettingzoo.parallel_registry if not name.startswith("atari/")]
    ids = [find_task(name).id for name in task_names()]
    assert sorted(installed) == sorted(id for id in ids if not id.startswith("marl_tools/"))


@given(st.sampled_from(task_names()), st.data())
def test_the_packages_own_names_lead_to_the_same_task(name, data):
    task = find_task(name)
    family, versioned = task.id.split("/")
    version = versioned.rsplit("-v", 1)[1]
    prefix = data.draw(st.sampled_from(["", f"{family}.", f"{family}/", f"pettingzoo.{family}."]))
    suffix = data.draw(st.sampled_from(["", f"_v{version}", f"-v{version}"]))
    assert find_task(f"{prefix}{name}{suffix}") is task


@pytest.mark.parametrize(
    ("short", "name"), [("kaz", "knights_archers_zombies"), ("pettingzoo.mpe.simple_tag_v3", "simple_tag")]
)
def test_nicknames_and_the_old_mpe_family_are_understood(short, name):
    assert find_task(short) is find_task(name)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("simple_spred", "Did you mean 'simple_spread'?"),
        ("pistonbal-v6", "Did you mean 'pistonball'?"),
        ("simple_spread_v2", "Did you mean 'simple_spread'?"),
        ("sisl/pistonball", "Did you mean 'pistonball'?"),
        ("qwertzuiop", "Known: collect_treasure, cooperative_pong,"),
        ("", "Known: "),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one_or_all(wrong, hint):
    with pytest.raises(ConfigError) as error:
        find_task(wrong)
    assert repr(wrong) in str(error.value)
    assert hint in str(error.value)
    assert "package.module:function" in str(error.value)


def test_a_reference_passes_through_without_being_imported():
    task = find_task("no_such_package.envs:make_arena")
    assert (task.name, task.make_env) == ("no_such_package.envs:make_arena",) * 2
    assert task.kwargs_for() == {}
    require(task)


@pytest.mark.parametrize("text", ["envs:", ":make", "my envs:make", "a:b:c", "1st.envs:make"])
def test_a_malformed_reference_is_refused_with_the_form_it_should_have(text):
    with pytest.raises(ConfigError, match="package\\.module:function"):
        find_task(text)


@pytest.mark.parametrize(
    ("name", "n_agents", "words"),
    [
        ("simple_spread", 0, "at least one agent"),
        ("pistonball", -3, "at least one agent"),
        ("simple_tag", 5, "'simple_tag' has 4 agents"),
        ("pkg.envs:make", 2, "has a size of its own"),
    ],
)
def test_a_team_size_that_the_environment_cannot_have_is_refused(name, n_agents, words):
    with pytest.raises(ConfigError, match=words) as error:
        find_task(name).kwargs_for(n_agents)
    assert str(n_agents) in str(error.value)


def test_asking_for_the_size_that_a_fixed_team_has_is_fine():
    assert find_task("simple_tag").kwargs_for(4) == find_task("simple_tag").kwargs_for()


def test_changing_the_returned_arguments_leaves_the_task_as_it_was():
    find_task("pistonball").kwargs_for()["id"] = "other"
    assert find_task("pistonball").kwargs_for()["id"] == "butterfly/pistonball-v6"


@pytest.mark.parametrize(
    ("name", "package", "command"),
    [
        ("pistonball", "pymunk", 'pip install "marl-tools[butterfly]"'),
        ("multiwalker", "Box2D", 'pip install "marl-tools[sisl]"'),
        ("simple_tag", "mpe2", "pip install marl-tools"),
        ("rps", "pygame", "pip install marl-tools"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, name, package, command):
    monkeypatch.setattr(
        "marl_tools.envs.tasks.task.find_spec",
        lambda module: None if module == package else find_spec(module),
    )
    with pytest.raises(MissingExtraError) as error:
        require(find_task(name))
    assert f"needs {package}," in str(error.value)
    assert str(error.value).endswith(f"Run: {command}")
