"""Episodes as the recorder closes them."""

from __future__ import annotations

import pickle
import re

import pytest

from marl_tools.core.history import Clock
from marl_tools.core.wrappers import AgentTruncation, EpisodeCap, EpisodeRecorder
from marl_tools.core.wrappers.base import ParallelWrapper
from tests.envs_for_tests import Team, play, real_env, same


class Told(ParallelWrapper):
    """Puts the given infos on one agent, one after the other."""

    def __init__(self, env, *infos):
        super().__init__(env)
        self.infos = list(infos)

    def step(self, actions):
        *rest, infos = self.env.step(actions)
        return *rest, {**infos, "agent_0": self.infos.pop(0)}


def test_agents_that_die_at_different_times_close_at_their_own_end():
    env = EpisodeRecorder(Team(max_cycles=5, deaths={"agent_0": 1, "agent_1": 3}))
    trace = play(env, seed=0)
    log = env.last_episode
    assert log.lengths == {"agent_0": 1, "agent_1": 3, "agent_2": 5}
    assert log.ends == {"agent_0": "terminated", "agent_1": "terminated", "agent_2": "truncated"}
    assert log.returns == {"agent_0": 1.0, "agent_1": 6.0, "agent_2": 15.0}
    assert (log.length, log.seed, log.t_start, log.t_end, log.capped) == (5, 0, 0, 5, False)
    assert (log.env_name, log.episode, log.split, log.env_index) == ("team_v0", 0, "train", 0)
    assert len(trace) == 1 + 5


def test_a_late_joiner_starts_at_its_first_observation():
    env = EpisodeRecorder(Team(max_cycles=5, births={"agent_2": 2}))
    play(env)
    assert env.last_episode.lengths == {"agent_0": 5, "agent_1": 5, "agent_2": 5 - 2 + 1}
    assert env.last_episode.returns["agent_2"] == 3 + 4 + 5


def test_a_birth_in_the_step_in_which_all_others_die_keeps_the_episode_open():
    env = EpisodeRecorder(Team(n=2, max_cycles=4, deaths={"agent_0": 2}, births={"agent_1": 2}))
    play(env)
    assert env.last_episode.ends == {"agent_0": "terminated", "agent_1": "truncated"}
    assert env.last_episode.length == 4


def test_a_reset_or_a_close_midway_is_logged_as_interrupted():
    logs = []
    env = EpisodeRecorder(Team(deaths={"agent_0": 1}), on_episode=logs.append)
    env.reset()
    env.reset()
    for _ in range(2):
        env.step(dict.fromkeys(env.agents, 0))
    env.reset()
    env.step(dict.fromkeys(env.agents, 0))
    env.close()
    env.close()
    assert [log.interrupted for log in logs] == [True, True]
    assert [log.episode for log in logs] == [0, 1]
    assert [(log.t_start, log.t_end) for log in logs] == [(0, 2), (2, 3)]
    assert logs[0].ends == {"agent_0": "terminated", "agent_1": "interrupted", "agent_2": "interrupted"}


def test_stepping_past_the_end_logs_nothing_twice_and_counts_no_step():
    logs = []
    env = EpisodeRecorder(Team(max_cycles=2), on_episode=logs.append)
    play(env)
    env.step({})
    env.step({})
    assert (len(logs), env.step_count) == (1, 2)
    play(env)
    assert [log.t_end for log in logs] == [2, 4]


@pytest.mark.parametrize("faults", [("one_list",), ("keep_agents",), ("reuse",), ("one_list", "reuse")])
def test_faults_of_an_env_change_nothing_in_the_log(faults):
    def log(*faults):
        env = EpisodeRecorder(Team(max_cycles=4, deaths={"agent_1": 2}, faults=faults))
        play(env)
        return {**env.last_episode.to_json(), "wall_time": 0}

    assert log(*faults) == log()


def test_an_agent_that_vanishes_without_a_flag_is_truncated():
    class Vanishing(Team):
        def step(self, actions):
            result = super().step(actions)
            if self.t == 2:
                self.agents = []
            return result

    env = EpisodeRecorder(Vanishing())
    play(env)
    assert set(env.last_episode.ends.values()) == {"truncated"}


def test_ends_say_who_cut_the_episode_off():
    env = AgentTruncation(Team(deaths={"agent_0": 1}), steps={"agent_1": 2}, stand_in=0)
    env = EpisodeRecorder(EpisodeCap(env, 3))
    play(env)
    assert env.last_episode.ends == {"agent_0": "terminated", "agent_1": "truncated", "agent_2": "capped"}
    assert env.last_episode.capped


def test_info_keys_with_the_prefix_become_metrics_reduced_by_their_suffix():
    env = EpisodeRecorder(
        Told(
            Team(n=2, max_cycles=3),
            {"MARL_LOG_METRIC speed": 1.0, "MARL_LOG_METRIC hits:sum": 1, "AMAGO_LOG_METRIC rank:last": 5},
            {"MARL_LOG_METRIC speed": 2.0, "MARL_LOG_METRIC hits:sum": 2, "AMAGO_LOG_METRIC rank:last": 3},
            {
                "MARL_LOG_METRIC speed": 6.0,
                "MARL_LOG_METRIC top:max": 9,
                "other": 1,
                "MARL_LOG_METRIC a:b": 4,
            },
        )
    )
    play(env)
    expected = {"speed": 3.0, "hits": 3.0, "rank": 3.0, "top": 9.0, "a:b": 4.0}
    assert env.last_episode.metrics == expected
    assert env.last_episode.agent_metrics == {"agent_0": expected}


def test_a_name_that_is_read_at_each_reset_is_frozen_for_the_episode():
    names = iter(["easy", "hard"])
    logs = []
    env = EpisodeRecorder(Team(max_cycles=2), lambda: next(names), on_episode=logs.append)
    play(env)
    play(env)
    assert [log.env_name for log in logs] == ["easy", "hard"]
    assert env.clock.frames_by_env == {"easy": 2, "hard": 2}
    assert EpisodeRecorder(Team(max_cycles=2), "mine").env_name == "mine"


def test_a_clock_with_a_stride_counts_the_steps_of_all_copies():
    logs = []
    env = EpisodeRecorder(
        Team(max_cycles=3),
        clock=Clock(frames=100, stride=4),
        env_index=2,
        split="eval",
        on_episode=logs.append,
    )
    play(env)
    assert (logs[0].t_start, logs[0].t_end, logs[0].env_index, logs[0].split) == (100, 112, 2, "eval")


def test_notes_of_a_shield_reach_the_log():
    env = EpisodeRecorder(Team(n=2, max_cycles=2))
    env.reset()
    env.builder.note("overrides", "agent_0", 1)
    env.builder.note("overrides", "agent_0", 1)
    env.builder.note("bound", "agent_1", 0.02)
    env.builder.note("bound", "agent_1", 0.01)
    for _ in range(2):
        env.step({"agent_0": 0, "agent_1": 0})
    assert env.last_episode.overrides == {"agent_0": 2}
    assert env.last_episode.bound == {"agent_1": 0.01}


def test_the_recorder_changes_nothing_that_it_passes_on():
    def spread():
        return real_env("simple_spread", max_cycles=5)

    assert same(play(EpisodeRecorder(spread()), seed=0, actions=0), play(spread(), seed=0, actions=0))


def test_a_snapshot_is_the_episode_as_if_left_now_and_leaves_it_open():
    env = EpisodeRecorder(Team(max_cycles=3))
    env.reset()
    env.step(dict.fromkeys(env.agents, 0))
    snapshot = env.builder.snapshot(env.clock.frames)
    assert (snapshot.length, snapshot.interrupted, env.last_episode) == (1, True, None)
    while env.agents:
        env.step(dict.fromkeys(env.agents, 0))
    assert (env.last_episode.length, env.last_episode.interrupted) == (3, False)


def test_an_open_episode_survives_pickling():
    env = EpisodeRecorder(EpisodeCap(Team(), 3))
    env.reset(seed=0)
    env.step(dict.fromkeys(env.agents, 0))
    env = pickle.loads(pickle.dumps(env))
    while env.agents:
        env.step(dict.fromkeys(env.agents, 0))
    assert (env.last_episode.length, env.last_episode.capped) == (3, True)


def test_repr_shows_the_stack_with_the_envs_name_inside():
    env = EpisodeRecorder(EpisodeCap(real_env("simple_spread"), 3))
    assert repr(env) == str(env) == "EpisodeRecorder(EpisodeCap(simple_spread_v3))"


def test_look_ups_on_a_wrapper_without_an_env_end():
    bare = EpisodeRecorder.__new__(EpisodeRecorder)
    with pytest.raises(AttributeError, match=re.escape("'EpisodeRecorder' object has no attribute 'env'")):
        bare.agents
