"""SuperSuit's preprocessing by name, on real envs."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo.utils.env import ParallelEnv

from marl_tools.core.errors import ConfigError
from marl_tools.core.wrappers import infer_episode_cap
from marl_tools.core.wrappers.preprocess import parse_preprocess, preprocess
from tests.envs_for_tests import Team, check_api, play, real_env, same

ATARI_STYLE = ("color_reduction=full", "resize=84x60", "frame_stack=4", "dtype=float32", "normalize_obs=0,1")

PISTONBALL = {
    ("color_reduction=full",): ((457, 120), np.uint8),
    ("color_reduction=R",): ((457, 120), np.uint8),
    ("resize=84x60",): ((60, 84, 3), np.uint8),
    ("frame_stack=4",): ((457, 120, 12), np.uint8),
    ("dtype=float32",): ((457, 120, 3), np.float32),
    ("dtype=float32", "normalize_obs=0,1"): ((457, 120, 3), np.float32),
    ("flatten",): ((457 * 120 * 3,), np.uint8),
    ("pad_observations",): ((457, 120, 3), np.uint8),
    ("pad_action_space",): ((457, 120, 3), np.uint8),
    ("agent_indicator",): ((457, 120, 3 + 5), np.uint8),
    ("clip_actions",): ((457, 120, 3), np.uint8),
    ("clip_reward=-1,1",): ((457, 120, 3), np.uint8),
    ATARI_STYLE: ((60, 84, 4), np.float32),
}


@pytest.mark.parametrize("steps", PISTONBALL, ids="+".join)
def test_each_step_gives_pistonball_the_observations_that_its_space_says(steps):
    shape, dtype = PISTONBALL[steps]
    env = preprocess(real_env("pistonball", max_cycles=3), steps)
    assert isinstance(env, ParallelEnv)
    assert infer_episode_cap(env) == 3
    trace = play(env, seed=0, actions=0)
    assert len(trace) == 1 + 3
    for observations, *_ in trace:
        for agent in env.possible_agents:
            assert observations[agent].shape == shape
            assert observations[agent].dtype == dtype
            assert env.observation_space(agent).contains(observations[agent])
    env.close()


def test_values_are_what_the_steps_say():
    raw = play(real_env("pistonball", max_cycles=2), seed=0, actions=0)
    grey = play(preprocess(real_env("pistonball", max_cycles=2), ("color_reduction=G",)), seed=0, actions=0)
    unit = play(
        preprocess(real_env("pistonball", max_cycles=2), ("dtype=float32", "normalize_obs=-1,1")),
        seed=0,
        actions=0,
    )
    for (plain, *_), (green, *_), (scaled, *_) in zip(raw, grey, unit, strict=True):
        for agent, image in plain.items():
            assert np.array_equal(green[agent], image[:, :, 1])
            np.testing.assert_allclose(scaled[agent], image / 127.5 - 1, atol=1e-6)


def test_a_clipped_reward_stays_in_its_range():
    env = preprocess(Team(max_cycles=4), ("clip_reward=0,2.5",))
    assert [result[1]["agent_0"] for result in play(env)[1:]] == [1.0, 2.0, 2.5, 2.5]


def test_a_frame_stack_starts_empty_in_every_episode_and_never_changes_what_it_gave_out():
    env = preprocess(Team(max_cycles=3), ("frame_stack=2",))
    for _ in range(2):
        trace = play(env)
        steps = [observations["agent_0"][[0, 2]].tolist() for observations, *_ in trace]
        assert steps == [[0, 0], [0, 1], [1, 2], [2, 3]]
        assert trace[0][0]["agent_0"][1] == 0.0


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("simple_tag", ("pad_observations", "pad_action_space", "agent_indicator", "frame_stack=2")),
        ("knights_archers_zombies", ("flatten", "frame_stack=3", "dtype=float32")),
    ],
)
def test_a_preprocessed_env_keeps_to_the_api_and_to_its_seed(name, steps):
    env = preprocess(real_env(name, max_cycles=60), steps)
    check_api(env, 30)
    first = play(env, seed=0, actions=0)
    assert same(first, play(env, seed=0, actions=0))
    assert same(first, play(preprocess(real_env(name, max_cycles=60), steps), seed=0, actions=0))


def test_padding_gives_unlike_agents_one_shape():
    env = preprocess(real_env("simple_tag", max_cycles=2), ("pad_observations",))
    observations, _ = env.reset(seed=0)
    assert {observation.shape for observation in observations.values()} == {(16,)}


def test_agents_that_die_and_join_keep_their_lifetimes():
    trace = play(preprocess(Team(max_cycles=4, deaths={"agent_0": 2}), ("frame_stack=2", "dtype=float64")))
    assert [sorted(result[0]) for result in trace[1:]] == [["agent_0", "agent_1", "agent_2"]] * 2 + [
        ["agent_1", "agent_2"]
    ] * 2


def test_no_step_gives_the_env_itself():
    team = Team()
    assert preprocess(team, ()) is team


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("resise=84x84", r"unknown preprocessing step 'resise'\. Did you mean 'resize'"),
        ("blur", r"unknown preprocessing step 'blur'\. Known: agent_indicator, .*resize\."),
        ("resize=84", "'resize' takes WIDTHxHEIGHT in pixels, got '84'"),
        ("resize=0x84", "'resize' takes WIDTHxHEIGHT in pixels, got '0x84'"),
        ("color_reduction", "'color_reduction' takes full, R, G or B, got ''"),
        ("color_reduction=full ish", "got 'fullish'"),
        ("frame_stack=0", "'frame_stack' takes a whole number of frames above 0, got '0'"),
        ("frame_stack=many", "got 'many'"),
        ("dtype=float31", "'dtype' takes a NumPy number type such as float32, got 'float31'"),
        ("dtype=object", "got 'object'"),
        ("dtype", "got ''"),
        ("normalize_obs=1,0", "'normalize_obs' takes LOW,HIGH with LOW < HIGH, got '1,0'"),
        ("normalize_obs=0,inf", "got '0,inf'"),
        ("flatten=yes", "'flatten' takes no value, got 'yes'"),
    ],
)
def test_a_step_that_cannot_be_read_is_refused_with_what_it_takes(step, message):
    with pytest.raises(ConfigError, match=message):
        parse_preprocess((step,))


def test_a_bare_string_is_refused_and_blanks_are_ignored():
    with pytest.raises(ConfigError, match=r"write \('flatten',\)"):
        parse_preprocess("flatten")
    assert parse_preprocess([" resize = 84x60 "])[0].args == (84, 60)


@pytest.mark.parametrize("step", ["color_reduction=full", "resize=84x84", "normalize_obs=0,1"])
def test_a_step_that_does_not_fit_the_env_is_refused_with_its_spaces(step):
    with pytest.raises(
        ConfigError, match=rf"'{step}' does not fit team_v0: \w.*Box\(-inf, inf, \(2,\), float32\)"
    ):
        preprocess(Team(), (step,))
