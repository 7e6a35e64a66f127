"""Every named task on the real environment: what the catalogue says of it, and whole episodes."""

import warnings
from importlib import import_module

import numpy as np
import pettingzoo
import pytest
from gymnasium.spaces import Discrete
from mpe2.all_modules import mpe_environments

from marl_tools.core.factory import resolve
from marl_tools.core.wrappers import infer_episode_cap
from marl_tools.core.wrappers.preprocess import preprocess
from marl_tools.envs import find_task, task_names
from tests.envs.tasks.played import SHORT, episode, made
from tests.envs_for_tests import check_api, play

SETTABLE = [name for name in task_names() if find_task(name).n_agents_kwarg]


def in_words(spaces):
    """Spaces as the catalogue writes them: sizes by kind, each once, in the agents' order."""
    sizes = {}
    for space in spaces:
        if isinstance(space, Discrete):
            kind, size = "choices", str(space.n)
        else:
            kind, size = "image" if space.dtype == np.uint8 else "numbers", "x".join(map(str, space.shape))
        sizes.setdefault(kind, {})[size] = None
    text = ", ".join(f"{' / '.join(each)} {kind}" for kind, each in sizes.items())
    return text.replace("1 numbers", "1 number") if text == "1 numbers" else text


@pytest.mark.parametrize("name", task_names())
def test_agents_spaces_and_cap_are_those_that_the_catalogue_declares(name):
    task, env = find_task(name), made(name)
    assert len(env.possible_agents) == task.agents
    assert in_words(map(env.observation_space, env.possible_agents)) == task.observations
    assert in_words(map(env.action_space, env.possible_agents)) == task.actions
    assert infer_episode_cap(env) == task.cap
    env.close()


@pytest.mark.parametrize("name", task_names())
def test_observations_lie_in_their_spaces_and_every_agent_is_rewarded(name):
    env, (first, *steps) = episode(name)
    assert all(observations.keys() == rewards.keys() for observations, rewards, *_ in steps)
    for observations, *_ in [first, *steps[:10]]:
        for agent, obs in observations.items():
            # rps_v2 observes a plain int, which gymnasium's Discrete takes as well
            assert env.observation_space(agent).contains(obs), agent


@pytest.mark.parametrize("name", task_names())
def test_an_episode_follows_from_its_seed_on_a_fresh_env_and_on_one_that_has_played(name):
    env, shown = episode(name)
    play(env, seed=2, actions=2)
    fresh = made(name, **SHORT.get(name, {}))
    np.testing.assert_equal(play(env, seed=1, actions=1), shown)
    np.testing.assert_equal(play(fresh, seed=1, actions=1), shown)
    fresh.close()


@pytest.mark.parametrize("name", task_names())
def test_everyone_ends_once_by_a_death_or_by_a_cut_and_costs_are_0_or_1(name):
    env, (_, *steps) = episode(name)
    allowed, ended = {0.0, 1.0} if find_task(name).violation else {None}, []
    for _, rewards, terminations, truncations, infos in steps:
        assert rewards.keys() == terminations.keys() == truncations.keys()
        assert not any(terminations[agent] and truncations[agent] for agent in rewards)
        ended += [agent for agent in rewards if terminations[agent] or truncations[agent]]
        assert {infos[agent].get("cost") for agent in rewards} <= allowed
    assert sorted(ended) == sorted(env.possible_agents)
    assert len(steps) == env.last_episode.length


@pytest.mark.parametrize("name", task_names())
def test_an_env_made_for_filming_shows_the_agents_what_they_were_trained_on(name):
    _, shown = episode(name)
    filmed = made(name, render_mode="rgb_array", **SHORT.get(name, {}))
    assert filmed.render_mode == "rgb_array"
    np.testing.assert_equal(play(filmed, seed=1, actions=1), shown)
    filmed.close()


@pytest.mark.parametrize("name", task_names())
def test_pettingzoo_finds_nothing_wrong(name):
    env = made(name, **SHORT.get(name, {}))
    with warnings.catch_warnings():
        # It has opinions on spaces and on the names of agents, too.
        warnings.simplefilter("ignore", UserWarning)
        check_api(env.env, cycles=4)
    env.close()


@pytest.mark.parametrize("name", SETTABLE)
def test_the_team_size_reaches_the_environment(name):
    task = find_task(name)
    env = made(name, **{task.n_agents_kwarg: task.agents + 1})
    env.reset(seed=0)
    assert len(env.agents) == task.agents + 1
    env.close()


@pytest.mark.parametrize(("name", "shape"), [("pistonball", (84, 36, 4)), ("cooperative_pong", (42, 72, 4))])
def test_screens_are_preprocessed_into_small_stacks_that_a_network_can_take(name, shape):
    env = preprocess(made(name).env, find_task(name).preprocess)
    observations, _ = env.reset(seed=0)
    assert {obs.shape for obs in observations.values()} == {shape}
    assert all(np.ptp(obs[..., -1]) > 0 for obs in observations.values()), "a blank screen"
    env.close()


def test_every_installed_mpe2_and_parallel_pettingzoo_environment_is_a_task():
    installed = [name.replace("mpe/", "mpe2/").replace("_v", "-v") for name in mpe_environments]
    # Atari needs game ROMs that no package may ship.
    installed += [name for name in pettingzoo.parallel_registry if not name.startswith("atari/")]
    ids = {find_task(name).id for name in task_names()}
    assert set(installed) <= ids


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("crazyrl_surround", "surround"),
        ("half_cheetah_2x3", "mamujoco"),
        ("adversarial_pursuit", "adversarial_pursuit"),
        ("lle_level_3", "laser_game"),
        ("masa_stag_hunt", "masa"),
    ],
)
def test_task_and_adapter_name_the_same_command(name, adapter):
    module = import_module(f"marl_tools.envs.adapters.{adapter}")
    assert find_task(name).install == module.INSTALL


@pytest.mark.parametrize("name", ["half_cheetah_2x3", "half_cheetah_6x1", "swimmer_2x1", "ant_4x2"])
def test_the_speed_that_a_task_names_is_the_one_that_costs(name):
    task = find_task(name)
    assert task.violation == f"the body is faster than {resolve(task.cost).limit}"


def test_names_and_ids_are_given_once():
    tasks = [find_task(name) for name in task_names()]
    assert len({task.id for task in tasks}) == len(tasks)
