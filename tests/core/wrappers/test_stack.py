"""All wrappers, alone and together, on real envs: the API, seeds, pickling, order."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from pettingzoo.utils.conversions import parallel_to_aec, turn_based_aec_to_parallel

import marl_tools.core.wrappers as wrappers
from marl_tools.core.wrappers import AddCost, AgentTruncation, EpisodeCap, EpisodeRecorder
from tests.envs_for_tests import Team, check_api, play, real_env, same


def no_cost(step: Any) -> dict[str, float]:
    return dict.fromkeys(step.terminations, 0.0)


def rest(agent: str, space: Any) -> Any:
    return 0 if isinstance(space, Discrete) else np.zeros(space.shape, space.dtype)


def cap(env: Any) -> EpisodeCap:
    return EpisodeCap(env, 12)


def retire(env: Any) -> AgentTruncation:
    return AgentTruncation(env, steps={env.possible_agents[0]: 5}, stand_in=rest)


def cost(env: Any) -> AddCost:
    return AddCost(env, no_cost, replace=True)


def stack(env: Any) -> EpisodeRecorder:
    return EpisodeRecorder(retire(cap(cost(env))))


WRAPPED = {
    "cap": cap,
    "retire": retire,
    "cost": cost,
    "record": EpisodeRecorder,
    "stack": stack,
    "stack twice": lambda env: stack(stack(env)),
}
ENVS = {
    "simple_spread": {},
    "knights_archers_zombies": {"max_zombies": 30, "spawn_delay": 1},
    "multiwalker": {},
    "pistonball": {},
}


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize("name", ENVS)
def test_each_wrapper_keeps_to_the_parallel_api(name, wrap):
    env = WRAPPED[wrap](real_env(name, **ENVS[name]))
    check_api(env, 8 if name == "pistonball" else 40)
    env.close()


@pytest.mark.parametrize("name", ENVS)
def test_seed_0_gives_the_same_whole_episode_on_a_fresh_and_on_a_used_instance(name):
    def env():
        return stack(real_env(name, **ENVS[name], max_cycles=15))

    used = env()
    first = play(used, seed=0, actions=0)
    assert same(play(used, seed=0, actions=0), first)
    assert same(play(env(), seed=0, actions=0), first)
    assert used.last_episode.seed == 0
    assert not same(play(used, seed=1, actions=0), first)


def test_agents_dying_at_different_times_are_closed_once_through_the_whole_stack():
    logs = []
    env = real_env("knights_archers_zombies", max_zombies=60, spawn_delay=1)
    env = EpisodeRecorder(EpisodeCap(AddCost(env, no_cost), 150), on_episode=logs.append)
    for seed in range(2):
        play(env, seed=seed, actions=seed)
    for log in logs:
        assert log.lengths.keys() == log.ends.keys() == {"archer_0", "archer_1", "knight_0", "knight_1"}
        assert all(log.lengths[agent] <= log.length for agent in log.lengths)
        assert all((log.lengths[agent] == 150) == (end == "capped") for agent, end in log.ends.items())
    assert any(len(set(log.lengths.values())) > 1 for log in logs)


@pytest.mark.parametrize("faults", [(), ("one_list",), ("reuse",), ("keep_agents",), ("one_list", "reuse")])
def test_the_stack_is_right_on_envs_with_faults(faults):
    team = Team(4, max_cycles=9, deaths={"agent_0": 2}, births={"agent_3": 4}, faults=faults)
    env = EpisodeRecorder(AgentTruncation(cap(cost(team)), steps={"agent_1": 6}, stand_in=1))
    for _ in range(2):
        play(env, seed=0)
        log = env.last_episode
        assert log.lengths == {"agent_0": 2, "agent_1": 6, "agent_2": 9, "agent_3": 6}
        assert log.ends == {"agent_0": "terminated"} | dict.fromkeys(
            ["agent_1", "agent_2", "agent_3"], "truncated"
        )
        assert log.returns == {
            "agent_0": 3.0,
            "agent_1": 21.0,
            "agent_2": 45.0,
            "agent_3": 5.0 + 6 + 7 + 8 + 9,
        }


def test_turn_based_envs_can_be_wrapped_once_converted():
    env = stack(turn_based_aec_to_parallel(parallel_to_aec(Team(max_cycles=4))))
    assert len(play(env)) > 1
    assert env.last_episode.ends.keys() == {"agent_0", "agent_1", "agent_2"}


def test_the_stack_goes_through_pickle_and_plays_on():
    env = stack(Team(max_cycles=20))
    play(env, seed=0)
    env.reset(seed=5)
    env.step(dict.fromkeys(env.agents, 0))
    twin = pickle.loads(pickle.dumps(env))
    while env.agents:
        assert same(env.step(dict.fromkeys(env.agents, 0)), twin.step(dict.fromkeys(twin.agents, 0)))
    ours, theirs = env.last_episode.to_json(), twin.last_episode.to_json()
    assert {**ours, "wall_time": 0} == {**theirs, "wall_time": 0}


def test_attributes_read_through_the_stack_and_repr_names_every_layer():
    env = stack(real_env("simple_spread"))
    assert repr(env) == "EpisodeRecorder(AgentTruncation(EpisodeCap(AddCost(simple_spread_v3))))"
    assert env.possible_agents == ["agent_0", "agent_1", "agent_2"]
    assert env.unwrapped.metadata["name"] == "simple_spread_v3"
    assert (env.max_num_agents, env.cap) == (3, 12)
    with pytest.raises(AttributeError):
        env.no_such_thing


def test_the_package_offers_its_names_and_brings_no_video_until_asked():
    assert set(wrappers.__all__) >= {
        "AddCost",
        "AgentTruncation",
        "EpisodeCap",
        "EpisodeRecorder",
        "RecordVideo",
    }
    with pytest.raises(AttributeError, match="has no attribute 'RecordVideos'"):
        wrappers.RecordVideos
    heavy = ["torch", "wandb", "moviepy", "pandas", "matplotlib", "ray", "supersuit"]
    code = f"import sys, marl_tools.core.wrappers; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
