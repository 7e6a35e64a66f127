"""The native vector face plays the episodes of single envs, to the bit."""

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.envs.native import GameVectorEnv
from marl_tools.envs.parallel import GameEnv
from marl_tools.vector import SerialVectorEnv
from tests.envs.games import MAKERS
from tests.envs.vector_steps import assert_same, plain

WORLDS = 5


class Remembering(GameEnv):
    """Keeps the key that a reset is about to lose."""

    last_key = None

    def reset(self, seed=None, options=None):
        self.last_key = None if self._state is None else self.state_key()
        return super().reset(seed=seed, options=options)


def both(name, num_envs=WORLDS, **more):
    """The same game, stepped env by env and in arrays."""

    def make_env(env_index):
        return EpisodeRecorder(Remembering(MAKERS[name](**more).game), env_index=env_index)

    return SerialVectorEnv(make_env, num_envs), GameVectorEnv(MAKERS[name](**more).game, num_envs)


def random_actions(vector, rng):
    (group,) = vector.groups
    return {group.name: rng.integers(group.spaces.action_dim, size=(vector.num_envs, len(group.agents)))}


@pytest.mark.parametrize("name", MAKERS)
def test_it_plays_exactly_the_episodes_of_single_envs(name):
    serial, native = both(name)
    assert serial.groups == native.groups
    assert serial.env_name == native.env_name
    assert_same(serial.reset(11), native.reset(11))
    rng, episodes = np.random.default_rng(0), 0
    for _ in range(60):
        actions = random_actions(native, rng)
        expected, step = serial.step(actions), native.step(actions)
        assert_same(expected, step)
        assert serial.frames == native.frames
        assert serial.episodes_started == native.episodes_started
        assert [env.state_key() for env in serial.envs] == native.state_keys()
        over = {log.env_index: serial.envs[log.env_index].unwrapped.last_key for log in step.episodes}
        assert native.final_keys == [over.get(world) for world in range(WORLDS)]
        episodes += len(over)
    assert episodes > WORLDS
    assert plain(serial.close()) == plain(native.close())


def test_notes_reach_the_logs_in_the_same_way():
    serial, native = both("crossing")
    serial.reset(0), native.reset(0)
    rng, logs = np.random.default_rng(1), []
    for t in range(30):
        actions = random_actions(native, rng)
        notes = [
            {"overrides": {"car_0": world % 2}, "bound": {"car_1": t / 100}, "slack": {"car_1": None}}
            for world in range(WORLDS)
        ]
        assert_same(serial.step(actions, notes), step := native.step(actions, notes))
        logs += step.episodes
    assert any(log.overrides["car_0"] > 1 for log in logs)
    assert all(log.bound["car_1"] > 0 for log in logs[1:])


def test_a_reset_in_the_middle_logs_what_it_interrupts_and_counts_on():
    serial, native = both("stag hunt")
    rng = np.random.default_rng(2)
    for seed in (3, 3, 4):
        expected, step = serial.reset(seed), native.reset(seed)
        assert_same(expected, step)
        assert native.final_keys == [None] * WORLDS
        for _ in range(4):
            actions = random_actions(native, rng)
            assert_same(serial.step(actions), native.step(actions))
    assert any(log.interrupted for log in native.reset(5).episodes)


def test_a_resumed_run_counts_on_where_the_earlier_one_was():
    serial, native = both("corridor")
    for vector in (serial, native):
        vector.resume(frames=1000, episodes_started=70)
    assert_same(serial.reset(3), native.reset(3))
    rng = np.random.default_rng(3)
    for _ in range(20):
        actions = random_actions(native, rng)
        assert_same(serial.step(actions), native.step(actions))
    assert (native.frames, native.episodes_started) == (serial.frames, serial.episodes_started)


def test_a_world_does_not_depend_on_how_many_there_are():
    """Its episode is that of its seed alone."""
    _, few = both("slipping robots", num_envs=1)
    _, many = both("slipping robots", num_envs=9)
    few.reset(8), many.reset(8)
    for _ in range(6):
        few.step({"robot": np.ones((1, 2), int)})
        many.step({"robot": np.ones((9, 2), int)})
        assert few.state_keys() == many.state_keys()[:1]


def test_the_numbers_of_states_are_those_of_their_keys():
    _, native = both("crossing of three")
    native.reset(0)
    game = native.game
    for _ in range(10):
        native.step({"car": np.ones((WORLDS, 3), int)})
        assert (native.state_ids == game.ids(game.states(native.state_keys()))).all()


def test_what_it_is_told_of_agents_that_have_ended_changes_nothing():
    _, quiet = both("corridor", slip=0.0)
    _, loud = both("corridor", slip=0.0)
    quiet.reset(0), loud.reset(0)
    walk_off = np.tile([3, 0], (WORLDS, 1))
    quiet.step({"walker": walk_off}), loud.step({"walker": walk_off})
    first = quiet.step({"walker": np.tile([0, 2], (WORLDS, 1))})
    second = loud.step({"walker": np.tile([99, 2], (WORLDS, 1))})
    assert_same(first, second)


def test_an_impossible_action_is_named_with_agent_and_copy():
    _, native = both("crossing")
    native.reset(0)
    actions = np.zeros((WORLDS, 2), int)
    actions[3, 1] = 2
    with pytest.raises(EnvError, match="'car_1' in copy 3 has no action 2"):
        native.step({"car": actions})


def test_it_runs_only_between_reset_and_close_and_closes_twice():
    _, native = both("crossing")
    with pytest.raises(EnvError, match="call reset"):
        native.step({"car": np.zeros((WORLDS, 2), int)})
    native.reset(0)
    native.step({"car": np.zeros((WORLDS, 2), int)})
    assert [log.interrupted for log in native.close()] == [True] * WORLDS
    assert native.close() == []
    with pytest.raises(EnvError, match="closed"):
        native.reset(0)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5])
def test_it_needs_at_least_one_world(num_envs):
    with pytest.raises(ConfigError, match="num_envs"):
        GameVectorEnv(MAKERS["crossing"]().game, num_envs)
