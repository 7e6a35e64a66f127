"""Recorded, capped, saved and explored episodes of any parallel env: one short test a capability, through public names."""

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

import marl_tools as mt
from marl_tools.core.history import Clock
from marl_tools.core.segment_files import segment_files
from tests.envs_for_tests import Team, play


class Counted(Team):
    """Puts metrics into its infos, under the new prefix and the old one."""

    def _info(self, agents):
        return {
            agent: {"MARL_LOG_METRIC tempo:max": self.t, "AMAGO_LOG_METRIC/luck": 2.0} for agent in agents
        }


def test_a_recorder_names_the_env_by_a_string_or_by_a_callable_read_at_each_reset():
    assert mt.EpisodeRecorder(Team(max_cycles=3), "mine").env_name == "mine"
    names = iter(["easy", "hard"])
    env = mt.EpisodeRecorder(Team(max_cycles=3), lambda: next(names))
    play(env)
    play(env)
    assert (env.last_episode.env_name, env.step_count) == ("hard", 6)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (Box(np.array([0.0, -5.0]), np.array([10.0, 5.0]), dtype=np.float64), np.array([2.5, 0.0])),
        (Discrete(4, start=2), 3),
        (MultiDiscrete([3, 2]), np.array([2, 1])),
        (MultiBinary(3), np.array([1, 0, 1])),
    ],
)
def test_actions_go_to_the_policys_side_and_back(space, action):
    spaces = mt.AgentSpaces(Box(-1, 1, (2,)), space)
    (back,) = spaces.to_env(spaces.to_policy(action)[None])
    assert np.array_equal(back, action)
    assert np.array_equal(spaces.from_one_hot(spaces.one_hot(action)), action)


def test_unbounded_dimensions_pass_through():
    spaces = mt.AgentSpaces(Box(-1, 1, (2,)), Box(-np.inf, np.inf, (1,), np.float64))
    assert spaces.to_env(np.array([[7.5]]))[0].tolist() == [7.5]


def test_a_factory_is_picklable_builds_from_a_reference_and_does_nothing_until_called():
    factory = mt.EnvFactory(make_env="tests.envs_for_tests:Team", kwargs={"max_cycles": 3})
    env = pickle.loads(pickle.dumps(factory))(env_index=2)
    play(env)
    assert env.last_episode.env_index == 2


def test_returns_and_metrics_are_logged_by_env_name():
    history = mt.History()
    for name in ("a", "b"):
        env = mt.EpisodeRecorder(Counted(max_cycles=4), name)
        play(env)
        history.add(env.last_episode)
    (log,) = history.recent(env_name="a")
    assert log.metrics == {"tempo": 4.0, "luck": 2.0}
    assert history.ma(env_name="b") == 10.0
    history.clear()
    assert len(history) == 0


def test_trajectories_are_saved_in_segments_of_random_length_and_read_back(tmp_path):
    env = mt.TrajectoryRecorder(Team(n=2, max_cycles=9), tmp_path, (2, 4), rng=np.random.default_rng(0))
    trace = play(env)
    env.close()
    segments = [mt.read_segment(path) for path in segment_files(tmp_path)]
    assert sum(segment.transitions for segment in segments) == 2 * 9
    rewards = sum(part.total_reward for segment in segments for part in segment.agents.values())
    assert rewards == sum(sum(rewards.values()) for _, rewards, *_ in trace[1:])
    assert all(2 <= len(segment.agents["agent_0"]) <= 4 for segment in segments[:-1])


def test_a_pickle_format_is_refused_with_the_reason(tmp_path):
    with pytest.raises(mt.ConfigError, match="pickle"):
        mt.TrajectoryRecorder(Team(), tmp_path, format="traj")
    assert mt.TrajectoryRecorder(Team(), tmp_path, format="npz-compressed")


def test_the_current_step_is_at_hand_and_a_segment_can_be_cut_and_flushed(tmp_path):
    env = mt.TrajectoryRecorder(Team(n=2, max_cycles=9), tmp_path, (100, 100))
    env.reset(seed=0)
    env.step(dict.fromkeys(env.agents, 1))
    now = env.current()["agent_0"]
    assert (now.prev_action, now.reward, now.t, now.terminated, now.truncated) == (1, 1.0, 1, False, False)
    env.cut()
    env.flush()
    assert len(list(segment_files(tmp_path))) == 1
    env.close()


def test_old_segments_are_pruned_but_no_protected_ones(tmp_path):
    env = mt.TrajectoryRecorder(Team(n=1, max_cycles=6), tmp_path, (1, 1))
    play(env)
    env.close()
    first = min(segment_files(tmp_path))
    (first.parent / "protected").mkdir()
    first.rename(first.parent / "protected" / first.name)
    mt.prune(tmp_path, max_files=2)
    assert len(list(tmp_path.rglob("*.npz"))) == 3
    assert (first.parent / "protected" / first.name).exists()


def test_a_clock_counts_frames_in_total_and_by_env():
    clock = Clock()
    for name, cycles in (("a", 2), ("b", 3)):
        play(mt.EpisodeRecorder(Team(max_cycles=cycles), name, clock=clock))
    assert (clock.frames, clock.frames_by_env) == (5, {"a": 2, "b": 3})


@pytest.mark.parametrize("kind", ["linear", "exponential", "cosine"])
@pytest.mark.parametrize(("start", "end"), [(1.0, 0.1), (0.1, 1.0)])
def test_schedules_go_both_ways_and_reach_their_end(kind, start, end):
    schedule = mt.Schedule(kind, start, end, steps=10)
    assert (schedule(0), schedule(10), schedule(99)) == (start, end, end)
    assert min(start, end) < schedule(5) < max(start, end)


def test_copies_side_by_side_play_the_same_episodes_again():
    def seeds():
        envs = mt.SerialVectorEnv(
            mt.EnvFactory(make_env="tests.envs_for_tests:Team", kwargs={"max_cycles": 2}), 3
        )
        envs.reset(0)
        steps = [envs.step({"agent": np.zeros((3, 3), int)}) for _ in range(4)]
        return [log.seed for step in steps for log in step.episodes]

    assert seeds() == seeds()
    assert len(set(seeds())) == 6
