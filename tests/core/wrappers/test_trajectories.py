"""Trajectories as they are saved: every transition once, whatever the env, its agents and its end."""

from __future__ import annotations

import math
import pickle
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple, flatten

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.segment_files import segment_files
from marl_tools.core.segments import read_segment
from marl_tools.core.wrappers import AddCost, AgentTruncation, EpisodeCap, EpisodeRecorder, TrajectoryRecorder
from marl_tools.core.wrappers.base import ParallelWrapper
from tests.envs_for_tests import Team, check_api, play, real_env, same

FAULTS = [(), ("one_list",), ("reuse",), ("keep_agents",), ("terminate",), ("one_list", "reuse")]


def no_cost(step):
    return {agent: float(step.rewards[agent] > 2) for agent in step.terminations}


def segments(folder):
    return [read_segment(path) for path in segment_files(folder)]


def recorded(env, folder, segment=(2, 4), **settings):
    """The env with recorder and trajectories, and the list that its logs go to."""
    logs = []
    recorder = EpisodeRecorder(env, on_episode=logs.append)
    return TrajectoryRecorder(recorder, folder, segment, rng=np.random.default_rng(0), **settings), logs


def check_conservation(folder, logs):
    """Files and logs tell the same: steps, rewards, costs and ends of every agent; segments join without a gap."""
    parts = defaultdict(list)
    for segment in segments(folder):
        for name, agent in segment.agents.items():
            parts[segment.episode, name].append((segment, agent))
    assert parts.keys() == {
        (log.episode, name) for log in logs for name, steps in log.lengths.items() if steps
    }
    for log in logs:
        for name, length in log.lengths.items():
            if not length:
                continue
            rows = sorted(parts[log.episode, name], key=lambda row: row[0].segment)
            arrivals = sum(agent.arrival is not None for _, agent in rows)
            assert sum(len(agent) for _, agent in rows) == length - arrivals
            assert math.isclose(
                math.fsum(agent.total_reward for _, agent in rows), log.returns[name], abs_tol=1e-9
            )
            assert math.isclose(
                math.fsum(agent.total_cost for _, agent in rows), log.costs[name], abs_tol=1e-9
            )
            assert [agent.end for _, agent in rows] == [None] * (len(rows) - 1) + [log.ends[name]]
            assert all(segment.seed == log.seed and segment.env == log.env_name for segment, _ in rows)
            t = np.concatenate([agent.t for _, agent in rows])
            assert np.array_equal(t, np.arange(t[0], t[0] + len(t)) if len(t) else t)
            for (_, before), (_, after) in pairwise(rows):
                assert np.array_equal(before.obs[-1], after.obs[0])


@pytest.mark.parametrize("faults", FAULTS)
def test_agents_that_come_late_and_go_early_are_saved_step_for_step(tmp_path, faults):
    team = Team(4, max_cycles=9, deaths={"agent_0": 2}, births={"agent_3": 4}, faults=faults)
    env = EpisodeCap(AddCost(team, no_cost), 8)
    env = AgentTruncation(env, steps={"agent_1": 6}, stand_in=1)
    env, logs = recorded(env, tmp_path)
    traces = [play(env, seed=seed) for seed in range(3)]
    env.reset(seed=3)
    env.step(dict.fromkeys(env.agents, 2))
    env.close()
    assert len(logs) == 4
    check_conservation(tmp_path, logs)
    saved = segments(tmp_path)
    assert [segment.final for segment in saved].count(True) == 4
    assert {len(agent) for segment in saved for agent in segment.agents.values()} <= set(range(5))
    # The arrays are those that the env gave, also where it writes into the same ones again.
    if "reuse" not in faults:
        for episode, trace in enumerate(traces):
            for segment in saved:
                if segment.episode == episode:
                    for name, agent in segment.agents.items():
                        for row, t in enumerate(agent.t):
                            assert np.array_equal(agent.obs[row], trace[t][0][name])
                            assert np.array_equal(agent.obs[row + 1], trace[t + 1][0][name])


def test_what_the_env_changes_afterwards_is_saved_as_it_was(tmp_path):
    class Careless(Team):
        def __init__(self):
            super().__init__(2, max_cycles=4, faults=("reuse",))
            self._action_spaces = dict.fromkeys(self.possible_agents, Box(-1, 1, (2,), np.float32))

        def step(self, actions):
            for action in actions.values():
                action *= 0
            return super().step(actions)

    env, _ = recorded(Careless(), tmp_path, (10, 10))
    observations, _ = env.reset(seed=0)
    seen = [observations["agent_0"].copy()]
    while env.agents:
        observations, *_ = env.step({agent: np.full(2, 0.5, np.float32) for agent in env.agents})
        seen.append(observations["agent_0"].copy())
    env.close()
    (segment,) = segments(tmp_path)
    assert np.array_equal(segment.agents["agent_0"].obs, seen)
    assert (segment.agents["agent_0"].act == 0.5).all()


def test_a_cap_that_fires_with_one_agent_already_dead_is_right_in_every_file(tmp_path):
    env, logs = recorded(EpisodeCap(Team(3, deaths={"agent_0": 3, "agent_2": 6}), 6), tmp_path, (4, 4))
    play(env, seed=0)
    env.close()
    check_conservation(tmp_path, logs)
    first, second = segments(tmp_path)
    assert (first.t_start, first.final, second.t_start, second.final) == (0, False, 4, True)
    dead, cut = first.agents["agent_0"], first.agents["agent_1"]
    assert (dead.end, list(dead.term), dead.trunc.any()) == ("terminated", [False, False, True], False)
    assert (cut.end, cut.term.any(), cut.trunc.any(), len(cut)) == (None, False, False, 4)
    assert list(second.agents) == ["agent_1", "agent_2"]
    capped, fell = second.agents["agent_1"], second.agents["agent_2"]
    assert (capped.end, list(capped.trunc), capped.term.any()) == ("capped", [False, True], False)
    # It died in the very step of the cap: a death.
    assert (fell.end, list(fell.term), fell.trunc.any()) == ("terminated", [False, True], False)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("simple_spread", {"max_cycles": 12}),
        ("simple_speaker_listener", {"max_cycles": 12}),
        ("knights_archers_zombies", {"max_zombies": 60, "spawn_delay": 1, "max_cycles": 60}),
        ("multiwalker", {"max_cycles": 30}),
        ("rps", {"max_cycles": 12}),
    ],
)
@pytest.mark.parametrize("format", ["npz", "npz-compressed"])
def test_real_envs_are_conserved(tmp_path, name, settings, format):
    env, logs = recorded(AddCost(real_env(name, **settings), no_cost), tmp_path, (5, 9), format=format)
    for seed in range(2):
        play(env, seed=seed, actions=seed)
    env.close()
    check_conservation(tmp_path, logs)
    assert env.segments_saved == len(segment_files(tmp_path))


@pytest.mark.parametrize("name", ["simple_spread", "knights_archers_zombies", "multiwalker", "rps"])
def test_the_wrapper_keeps_to_the_parallel_api(tmp_path, name):
    env = TrajectoryRecorder(real_env(name), tmp_path, (3, 7))
    check_api(env, 30)
    env.close()
    assert segment_files(tmp_path)


def test_what_passes_through_is_what_the_env_gave(tmp_path):
    bare = play(EpisodeRecorder(real_env("simple_spread")), seed=0, actions=0)
    env = TrajectoryRecorder(real_env("simple_spread"), tmp_path)
    assert same(play(env, seed=0, actions=0), bare)
    assert same(play(env, seed=0, actions=0), bare)
    env.close()


class Shuffled(ParallelWrapper):
    """Hands out its dicts in another order at every step."""

    def step(self, actions):
        result = self.env.step(dict(reversed(actions.items())))
        return tuple(dict(reversed(part.items())) if self.env.t % 2 else part for part in result)


def test_the_order_of_agents_in_dicts_changes_nothing(tmp_path):
    for folder, wrap in (("a", lambda env: env), ("b", Shuffled)):
        env, _ = recorded(wrap(Team(4, max_cycles=9, births={"agent_3": 2})), tmp_path / folder, writer="w")
        play(env, seed=0)
        env.close()
    for one, other in zip(segment_files(tmp_path / "a"), segment_files(tmp_path / "b"), strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()


def test_lengths_are_drawn_between_both_ends_and_both_are_reached(tmp_path):
    env = TrajectoryRecorder(Team(1, max_cycles=200), tmp_path, (3, 5), rng=np.random.default_rng(0))
    play(env, seed=0)
    env.close()
    lengths = [segment.transitions for segment in segments(tmp_path)[:-1]]
    assert set(lengths) == {3, 4, 5}
    other = TrajectoryRecorder(
        Team(1, max_cycles=200), tmp_path / "again", (3, 5), rng=np.random.default_rng(0)
    )
    play(other, seed=0)
    other.close()
    assert [segment.transitions for segment in segments(tmp_path / "again")[:-1]] == lengths


def test_an_episode_that_ends_where_a_segment_does_leaves_no_empty_one(tmp_path):
    env, logs = recorded(Team(2, max_cycles=6), tmp_path, (3, 3))
    play(env, seed=0)
    env.close()
    check_conservation(tmp_path, logs)
    assert [(segment.transitions, segment.final) for segment in segments(tmp_path)] == [(6, False), (6, True)]


def test_an_env_may_name_each_episode_and_no_name_leads_out_of_the_folder(tmp_path):
    names = iter(["../../up", "protected", "plain"])
    recorder = EpisodeRecorder(Team(1, max_cycles=2), lambda: next(names))
    env = TrajectoryRecorder(recorder, tmp_path / "out" / "inner", (9, 9))
    for seed in (0, None, 5):
        play(env, seed=seed)
    env.close()
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    saved = sorted(segments(tmp_path / "out" / "inner"), key=lambda segment: segment.episode)
    assert [segment.env for segment in saved] == ["../../up", "protected", "plain"]
    assert [segment.seed for segment in saved] == [0, None, 5]
    assert [segment.frame for segment in saved] == [0, 2, 4]


def test_an_agent_whose_name_is_a_path_is_only_in_the_meta(tmp_path):
    class Odd(Team):
        def __init__(self):
            super().__init__(1, max_cycles=2)
            self.possible_agents = ["../../a\n"]
            self._spaces = {"../../a\n": self._spaces["agent_0"]}
            self._action_spaces = {"../../a\n": Discrete(3)}

    env = TrajectoryRecorder(Odd(), tmp_path)
    play(env, seed=0)
    env.close()
    (path,) = segment_files(tmp_path)
    assert list(read_segment(path).agents) == ["../../a\n"]
    with np.load(path) as file:
        assert set(file.files) == {"meta"} | {
            f"a0.{n}" for n in ("obs", "act", "rew", "cost", "term", "trunc", "t")
        }


SPACES = {
    "Discrete": (Discrete(4), Discrete(3, start=5)),
    "images": (Box(0, 255, (4, 3, 3), np.uint8), Discrete(3)),
    "double": (Box(-1, 1, (2,), np.float64), Box(-1, 1, (2, 2), np.float64)),
    "MultiDiscrete": (MultiDiscrete([2, 3]), MultiDiscrete([4, 2])),
    "nested": (
        Dict({"x": Box(-1, 1, (2,), np.float32), "y": Tuple((Discrete(3), Discrete(2)))}),
        Tuple((Discrete(2), Box(-1, 1, (1,), np.float32))),
    ),
    "masked": (
        Dict({"observation": Box(-1, 1, (3,), np.float32), "action_mask": Box(0, 1, (3,), np.int8)}),
        Discrete(3),
    ),
}


class Spaced(Team):
    """A team that observes whatever its space holds."""

    def __init__(self, observation_space, action_space):
        super().__init__(2, max_cycles=5)
        self._spaces = dict.fromkeys(self.possible_agents, observation_space)
        self._action_spaces = dict.fromkeys(self.possible_agents, action_space)

    def _observe(self, agents):
        return {agent: self._spaces[agent].sample() for agent in agents}


@pytest.mark.parametrize("kind", SPACES)
def test_observations_and_actions_of_every_space_are_kept_to_the_bit(tmp_path, kind):
    space, action_space = SPACES[kind]
    env, _ = recorded(Spaced(space, action_space), tmp_path)
    observations, _ = env.reset(seed=0)
    seen, played = [observations], []
    while env.agents:
        played.append({agent: action_space.sample() for agent in env.agents})
        seen.append(env.step(played[-1])[0])
    env.close()
    plain = isinstance(space, Dict) and space.spaces.get("observation")
    for segment in segments(tmp_path):
        for name, agent in segment.agents.items():
            assert agent.spaces().observation_space == space
            assert agent.spaces().action_space == action_space
            for row, t in enumerate([*agent.t, agent.t[-1] + 1]):
                expected = seen[t][name]
                if plain:
                    assert np.array_equal(agent.mask[row], expected["action_mask"])
                    expected = expected["observation"]
                elif isinstance(space, Dict):
                    expected = flatten(space, expected)
                assert np.array_equal(agent.obs[row], expected)
            for row, t in enumerate(agent.t):
                action = played[t][name]
                assert np.array_equal(
                    agent.act[row], flatten(action_space, action) if kind == "nested" else action
                )


def test_masks_in_infos_are_saved_and_before_the_first_everything_was_allowed(tmp_path):
    class Masking(ParallelWrapper):
        def step(self, actions):
            *rest, infos = self.env.step(actions)
            mask = np.array([True, False, self.env.t % 2])
            return *rest, {agent: {"action_mask": mask} for agent in infos}

    env, _ = recorded(Masking(Team(1, max_cycles=5)), tmp_path, (3, 3))
    play(env, seed=0)
    env.close()
    first, second = (segment.agents["agent_0"].mask.tolist() for segment in segments(tmp_path))
    odd, even = [True, False, True], [True, False, False]
    assert first == [[True] * 3, odd, even, odd]
    assert second == [odd, even, odd]


ODD = {
    "double": lambda result: ({name: obs.astype(np.float64) for name, obs in result[0].items()}, *result[1:]),
    "strided": lambda result: (
        {name: np.repeat(obs, 2)[::2] for name, obs in result[0].items()},
        *result[1:],
    ),
    "list": lambda result: ({name: obs.tolist() for name, obs in result[0].items()}, *result[1:]),
    "costs": lambda result: (*result[:4], {"agent_1": {"cost": 2.5}}),
    "mask": lambda result: (*result[:4], {"agent_0": {"action_mask": np.array([True, False, True])}}),
    "scalar arrays": lambda result: (
        result[0],
        {name: np.array(reward) for name, reward in result[1].items()},
        *result[2:],
    ),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("at", [1, 4, 9])
def test_a_step_that_is_unlike_the_others_changes_nothing_but_itself(tmp_path, kind, at):
    class Once(ParallelWrapper):
        def step(self, actions):
            result = self.env.step(actions)
            return ODD[kind](result) if self.env.t == at else result

    env, logs = recorded(Once(Team(2, max_cycles=9)), tmp_path, (4, 4))
    observations, _ = env.reset(seed=0)
    seen, gained = [observations], []
    while env.agents:
        observations, rewards, *_ = env.step(
            {name: np.array(env.unwrapped.t % 3) if env.unwrapped.t == at else 1 for name in env.agents}
        )
        seen.append(observations)
        gained.append(rewards)
    env.close()
    check_conservation(tmp_path, logs)
    saved = segments(tmp_path)
    assert [segment.transitions for segment in saved] == [8, 8, 2]
    for segment in saved:
        for name, agent in segment.agents.items():
            assert agent.obs.dtype == np.float32
            assert np.array_equal(agent.obs, [seen[t][name] for t in (*agent.t, agent.t[-1] + 1)])
            assert list(agent.rew) == [gained[t][name] for t in agent.t]
            assert list(agent.act) == [t % 3 if t == at else 1 for t in agent.t]
            costs = {t: cost for t, cost in zip(agent.t, agent.cost, strict=True) if not np.isnan(cost)}
            assert costs == (
                {at - 1: 2.5} if (kind, name) == ("costs", "agent_1") and at - 1 in agent.t else {}
            )
            masked = kind == "mask" and name == "agent_0" and at in (*agent.t, agent.t[-1] + 1)
            assert (agent.mask is not None) == (
                masked or (kind == "mask" and name == "agent_0" and agent.t[0] > at)
            )


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), np.zeros((2, 1), np.float32), np.float32(1)])
def test_an_observation_of_another_shape_than_its_space_is_refused_at_its_step(tmp_path, wrong):
    class Wrong(ParallelWrapper):
        def step(self, actions):
            observations, *rest = self.env.step(actions)
            return {**observations, "agent_1": wrong} if self.env.t == 3 else observations, *rest

    env, _ = recorded(Wrong(Team(2, max_cycles=9)), tmp_path)
    env.reset(seed=0)
    for _ in range(2):
        env.step({"agent_0": 1, "agent_1": 1})
    with pytest.raises(EnvError, match="agent 'agent_1' observes"):
        env.step({"agent_0": 1, "agent_1": 1})
    # The steps before are saved.
    assert sum(len(segment.agents["agent_1"]) for segment in segments(tmp_path)) == 2


def test_a_space_that_has_no_array_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="Text"):
        TrajectoryRecorder(Spaced(Text(5), Discrete(2)), tmp_path)


def test_current_says_where_everyone_is(tmp_path):
    env = TrajectoryRecorder(Team(3, max_cycles=4, deaths={"agent_0": 2}, births={"agent_2": 2}), tmp_path)
    assert env.current() == {}
    observations, _ = env.reset(seed=0)
    now = env.current()
    assert now.keys() == {"agent_0", "agent_1"}
    assert (now["agent_0"].prev_action, now["agent_0"].reward, now["agent_0"].t) == (None, 0.0, 0)
    assert np.array_equal(now["agent_0"].obs, observations["agent_0"])
    env.step({"agent_0": 1, "agent_1": 2})
    env.step({"agent_0": 2, "agent_1": 0})
    now = env.current()
    assert now.keys() == {"agent_0", "agent_1", "agent_2"}
    assert (now["agent_0"].prev_action, now["agent_0"].reward, now["agent_0"].terminated) == (2, 2.0, True)
    assert (now["agent_1"].prev_action, now["agent_1"].t, now["agent_1"].terminated) == (0, 2, False)
    assert now["agent_2"].prev_action is None
    env.step({"agent_1": 0, "agent_2": 0})
    env.step({"agent_1": 0, "agent_2": 0})
    assert all(step.truncated and step.t == 4 for step in env.current().values())
    env.close()


def test_two_recorders_around_one_env_save_the_same(tmp_path):
    inner = TrajectoryRecorder(Team(2, max_cycles=5), tmp_path, (2, 3), writer="inner")
    env = TrajectoryRecorder(inner, tmp_path, (2, 3), writer="outer")
    play(env, seed=0)
    env.close()
    saved = {writer: [] for writer in ("inner", "outer")}
    for path in segment_files(tmp_path):
        saved[path.name[:5]].append(read_segment(path).agents["agent_0"].rew)
    assert np.array_equal(np.concatenate(saved["inner"]), np.concatenate(saved["outer"]))
    assert repr(env) == "TrajectoryRecorder(TrajectoryRecorder(EpisodeRecorder(team_v0)))"


def test_a_pickled_copy_goes_on_from_where_it_is_and_saves_only_what_it_did_itself(tmp_path):
    env, logs = recorded(Team(2, max_cycles=8), tmp_path, (20, 20))
    env.reset(seed=0)
    env.on_episode = None
    for _ in range(3):
        env.step(dict.fromkeys(env.agents, 1))
    twin = pickle.loads(pickle.dumps(env))
    for one in (env, twin):
        while one.agents:
            one.step(dict.fromkeys(one.agents, 2))
        one.close()
    ours, theirs = sorted(segments(tmp_path), key=lambda segment: segment.t_start)
    assert (ours.transitions, theirs.transitions) == (16, 10)
    assert (theirs.t_start, list(theirs.agents["agent_1"].t)) == (3, [3, 4, 5, 6, 7])
    assert np.array_equal(theirs.agents["agent_0"].obs, ours.agents["agent_0"].obs[3:])
    assert logs == []


@pytest.mark.parametrize("setting", [(0, 5), (5, 4), (1,), 3, (True, 2), (1.5, 2), "ab"])
def test_segments_that_cannot_be_are_refused(tmp_path, setting):
    with pytest.raises(ConfigError, match="segment"):
        TrajectoryRecorder(Team(), tmp_path, setting)


def test_formats_that_are_not_offered_are_refused_and_a_pickle_says_why(tmp_path):
    with pytest.raises(ConfigError, match=r"'traj' is a pickle, which runs the code.*'npz-compressed'"):
        TrajectoryRecorder(Team(), tmp_path, format="traj")
    with pytest.raises(ConfigError, match="'npz', 'npz-compressed'"):
        TrajectoryRecorder(Team(), tmp_path, format="pkl")
    with pytest.raises(ConfigError, match=r"take up to [\d.]+ GiB; at most \d+ fit into a file"):
        TrajectoryRecorder(Spaced(Box(0, 255, (512, 512, 3), np.uint8), Discrete(2)), tmp_path, (1, 5000))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda *parts: ({}, *parts[1:]), "'agent_0' no observation"),
        (lambda *parts: (parts[0], {}, *parts[2:]), "'agent_0' no reward"),
        (
            lambda *parts: ({agent: np.zeros(1, np.float32) for agent in parts[0]}, *parts[1:]),
            r"shape \(1,\), but the space",
        ),
        (
            lambda *parts: (*parts[:4], {agent: {"action_mask": [1]} for agent in parts[0]}),
            "has the action mask",
        ),
    ],
)
def test_an_env_that_breaks_the_contract_is_told_by_agent(tmp_path, change, message):
    class Broken(ParallelWrapper):
        def step(self, actions):
            result = self.env.step(actions)
            return change(*result) if self.env.t == 3 else result

    env = TrajectoryRecorder(Broken(Team(1)), tmp_path)
    env.reset(seed=0)
    for _ in range(2):
        env.step({"agent_0": 0})
    with pytest.raises(EnvError, match=message):
        env.step({"agent_0": 0})
    assert segments(tmp_path)[0].transitions == 2
    env.close()


def test_an_action_that_does_not_fit_and_one_that_is_missing_are_told(tmp_path):
    class Patient(Team):
        def step(self, actions):
            return super().step({**dict.fromkeys(self.agents, 0), **actions})

    env = TrajectoryRecorder(Patient(2), tmp_path)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"'agent_0' plays .*shape \(2,\), but the space is Discrete"):
        env.step({"agent_0": np.zeros(2), "agent_1": 0})
    with pytest.raises(EnvError, match="'agent_1' played nothing: pass an action for each"):
        env.step({"agent_0": np.array([1])})
    env.close()
