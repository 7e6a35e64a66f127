"""Single agents that end early, and what the env underneath is fed for them."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from marl_tools.core.errors import ConfigError
from marl_tools.core.wrappers import AgentTruncation, EpisodeRecorder
from tests.envs_for_tests import Team, play, real_env


def test_each_agent_ends_at_its_own_limit_and_the_others_go_on():
    team = Team(max_cycles=6)
    env = EpisodeRecorder(AgentTruncation(team, steps={"agent_0": 2, "agent_1": 4}, stand_in=2))
    trace = play(env)
    log = env.last_episode
    assert log.lengths == {"agent_0": 2, "agent_1": 4, "agent_2": 6}
    assert set(log.ends.values()) == {"truncated"}
    assert log.returns == {"agent_0": 1 + 2, "agent_1": 1 + 2 + 3 + 4, "agent_2": 21}
    for t, result in enumerate(trace[1:], start=1):
        expected = {agent for agent, last in log.lengths.items() if t <= last}
        assert all(part.keys() == expected for part in result)


def test_a_retired_agent_acts_with_the_stand_in_whatever_is_still_passed_for_it():
    team = Team()
    env = AgentTruncation(team, steps={"agent_0": 1}, stand_in=2)
    env.reset()
    env.step(dict.fromkeys(team.possible_agents, 1))
    env.step(dict.fromkeys(team.possible_agents, 1))
    assert env.agents == ["agent_1", "agent_2"]
    assert team.received[1] == {"agent_0": 2, "agent_1": 1, "agent_2": 1}


def test_one_limit_for_all_empties_agents_and_stepping_on_returns_nothing():
    team = Team()
    env = AgentTruncation(team, steps=np.int64(3), stand_in=0)
    assert len(play(env)) == 1 + 3
    assert env.step({"agent_0": 0}) == ({}, {}, {}, {}, {})
    assert team.t == 3
    assert len(play(env)) == 1 + 3


def test_the_predicate_sees_each_live_agents_observation_and_info():
    asked = []

    def when(agent, observation, info):
        asked.append((agent, int(observation[0]), dict(info)))
        return agent == "agent_1" and observation[0] >= 2

    env = EpisodeRecorder(AgentTruncation(Team(max_cycles=4, deaths={"agent_2": 1}), when=when, stand_in=0))
    play(env)
    assert env.last_episode.ends == {"agent_0": "truncated", "agent_1": "truncated", "agent_2": "terminated"}
    assert env.last_episode.lengths == {"agent_0": 4, "agent_1": 2, "agent_2": 1}
    # Nobody is asked about after its end, nor in the step that ends it.
    assert [(agent, t) for agent, t, _ in asked] == [
        ("agent_0", 1),
        ("agent_1", 1),
        ("agent_0", 2),
        ("agent_1", 2),
        ("agent_0", 3),
    ]


def test_a_death_in_the_step_of_the_limit_stays_a_death():
    env = EpisodeRecorder(AgentTruncation(Team(deaths={"agent_0": 2}), steps=2, stand_in=0))
    *_, terminations, truncations, _ = play(env)[-1]
    assert (terminations["agent_0"], truncations["agent_0"]) == (True, False)
    assert env.last_episode.ends == {"agent_0": "terminated", "agent_1": "truncated", "agent_2": "truncated"}


def test_a_late_joiner_gets_its_full_time():
    env = EpisodeRecorder(AgentTruncation(Team(births={"agent_2": 3}), steps=4, stand_in=0))
    play(env)
    assert env.last_episode.length == 3 + 4
    assert env.last_episode.ends == dict.fromkeys(["agent_0", "agent_1", "agent_2"], "truncated")


def test_a_retired_agent_that_dies_underneath_needs_no_action_and_is_not_heard_of_again():
    team = Team(deaths={"agent_0": 3}, max_cycles=5)
    env = AgentTruncation(team, steps={"agent_0": 1}, stand_in=1)
    trace = play(env)
    assert [sorted(actions) for actions in team.received] == [["agent_0", "agent_1", "agent_2"]] * 3 + [
        ["agent_1", "agent_2"]
    ] * 2
    assert all("agent_0" not in result[2] for result in trace[2:])


def test_the_episode_ends_when_only_retired_agents_are_left_underneath():
    team = Team(n=2, deaths={"agent_1": 3})
    env = AgentTruncation(team, steps={"agent_0": 1}, stand_in=0)
    assert len(play(env)) == 1 + 3
    assert team.agents == ["agent_0"]
    assert env.agents == []


def test_an_env_that_keeps_ended_agents_in_its_list_still_ends():
    env = AgentTruncation(Team(max_cycles=3, faults=("keep_agents",)), steps=9, stand_in=0)
    assert len(play(env)) == 1 + 3


def test_a_stand_in_may_differ_by_agent_or_be_asked_for_at_each_step():
    team = Team(n=2)
    env = AgentTruncation(team, steps={"agent_0": 1}, stand_in={"agent_0": 2})
    play(env, max_steps=3)
    assert [actions["agent_0"] for actions in team.received] == [0, 2, 2]

    rng, team = np.random.default_rng(0), Team(n=2)
    env = AgentTruncation(
        team, steps={"agent_0": 1}, stand_in=lambda agent, space: int(rng.integers(space.n))
    )
    play(env, max_steps=6)
    expected = np.random.default_rng(0)
    assert [actions["agent_0"] for actions in team.received] == [
        0,
        *(int(expected.integers(3)) for _ in range(5)),
    ]


@pytest.mark.parametrize(
    "stand_in", [7, {"agent_0": 7}, lambda agent, space: space.n], ids=["one", "mapping", "callable"]
)
def test_a_stand_in_outside_the_action_space_is_an_error_that_names_agent_and_action(stand_in):
    env = AgentTruncation(Team(), steps={"agent_0": 1}, stand_in=stand_in)
    env.reset()
    env.step(dict.fromkeys(env.agents, 0))
    with pytest.raises(ConfigError, match=r"stand_in (7|.*3.*) of 'agent_0' .* Discrete\(3\)"):
        env.step(dict.fromkeys(env.agents, 0))


def test_a_retired_agent_without_a_stand_in_is_an_error_that_names_it():
    env = AgentTruncation(Team(), steps={"agent_1": 1}, stand_in={"agent_0": 0})
    env.reset()
    env.step(dict.fromkeys(env.agents, 0))
    with pytest.raises(ConfigError, match=r"no action for 'agent_1'.*Discrete\(3\)"):
        env.step(dict.fromkeys(env.agents, 0))


@pytest.mark.parametrize("where", ["steps", "stand_in"])
def test_an_unknown_agent_in_a_mapping_gets_a_suggestion(where):
    arguments = {"steps": 5, "stand_in": 0, where: {"agent0": 1}}
    with pytest.raises(
        ConfigError, match=f"{where} names 'agent0', which is no agent of team_v0.*Did you mean"
    ):
        AgentTruncation(Team(), **arguments)


@pytest.mark.parametrize("steps", [0, -3, True, 1.5, {"agent_0": 0}, {"agent_1": "4"}])
def test_a_limit_that_is_no_number_of_steps_is_refused(steps):
    with pytest.raises(ConfigError, match=r"steps.*: must be a whole number of at least 1"):
        AgentTruncation(Team(), steps=steps, stand_in=0)


def test_a_truncation_that_would_end_nobody_is_refused():
    with pytest.raises(ConfigError, match="give steps, when, or both"):
        AgentTruncation(Team(), stand_in=0)


def test_two_truncations_nest_and_the_earlier_limit_wins():
    inner = AgentTruncation(Team(max_cycles=8), steps={"agent_0": 2, "agent_1": 6}, stand_in=0)
    env = EpisodeRecorder(AgentTruncation(inner, steps={"agent_0": 5, "agent_1": 3}, stand_in=0))
    play(env)
    assert env.last_episode.lengths == {"agent_0": 2, "agent_1": 3, "agent_2": 8}


@pytest.mark.parametrize(
    ("name", "agent"),
    [("simple_tag", "agent_0"), ("pistonball", "piston_0"), ("knights_archers_zombies", "knight_0")],
)
def test_real_envs_that_insist_on_an_action_go_on_without_a_retired_agent(name, agent):
    def rest(agent, space):
        return 0 if isinstance(space, Discrete) else np.zeros(space.shape, space.dtype)

    env = EpisodeRecorder(AgentTruncation(real_env(name, max_cycles=8), steps={agent: 3}, stand_in=rest))
    play(env, seed=0, actions=0)
    log = env.last_episode
    assert log.lengths[agent] == 3
    assert log.ends[agent] == "truncated"
    assert log.length == max(log.lengths.values()) > 3
    env.close()
