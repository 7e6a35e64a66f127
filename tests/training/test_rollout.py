"""What a rollout holds: who counts, what ended how, and what lies beyond the end, on envs with known values."""

import math
from typing import Any, ClassVar

import numpy as np
import pytest

from marl_tools.core.errors import NonFiniteError
from marl_tools.core.factory import EnvFactory
from marl_tools.training.ops import gae
from marl_tools.training.rollout import Collector
from marl_tools.vector import SerialVectorEnv
from tests.envs_for_tests import Team, real_env
from tests.probe_envs import PHASES, Broken, Kinds, Probe, vector

VALUES = np.arange(1, PHASES + 1, dtype=np.float32) * 10
"""Value of phase p: 10 (p + 1)."""


class Known:
    """An actor and critic whose value of an observation is a known function of it, plus 1000 for each agent before it.

    So a value tells both which observation and which agent it was asked for.
    """

    def __init__(self, group, value=lambda obs: obs @ VALUES):
        self.spaces, self.agents, self.value, self.rng = group.spaces, len(group.agents), value, None

    def noise(self, steps, envs):
        return None

    def act(self, obs, mask, noise):
        shape = obs.shape[:2]
        actions = np.zeros((*shape, *self.spaces.action_shape), self.spaces.action_dtype)
        if mask is not None:
            actions = mask.argmax(-1)
        return actions, np.zeros(shape, np.float32)

    def values(self, obs):
        return self.values_of(obs, np.arange(self.agents))

    def values_of(self, obs, agents):
        return (self.value(obs) + 1000 * agents).astype(np.float32)


class Random(Known):
    """Uniform actions, the first allowed one where there is a mask; values are 0."""

    def __init__(self, group):
        super().__init__(
            group, value=lambda obs: np.zeros(obs.shape[: obs.ndim - len(group.spaces.obs_shape)])
        )
        self.rng = np.random.default_rng(0)

    def act(self, obs, mask, noise):
        actions, log_probs = super().act(obs, mask, noise)
        if mask is not None:
            return actions, log_probs
        if self.spaces.action_type == "continuous":
            return self.rng.uniform(-1, 1, actions.shape).astype(np.float32), log_probs
        return self.rng.integers(self.spaces.action_dim, size=actions.shape), log_probs


def collector(envs, steps, actor=Random):
    return Collector(envs, steps, seed=0), {group.name: actor(group) for group in envs.groups}


def evaluated(source, actors):
    """The next rollout, with the values that its actors see as critics."""
    rollout = source.collect(actors)
    for name, group in rollout.groups.items():
        group.values, group.next_values = group.evaluate(actors[name])
    return rollout


def collect(steps, num_envs=1, **probe):
    """One rollout of a `Probe` with known values, as (steps, agents) arrays of the first copy."""
    envs = vector(Probe, num_envs, **probe)
    source, actors = collector(envs, steps, Known)
    return evaluated(source, actors).groups["agent"]


def of_copy(group, name):
    return getattr(group, name)[:, 0]


CLOCK = {"agent_0": range(9), "agent_1": range(9)}


class TestConst:
    """Ends only by truncation, after 8 steps."""

    def test_nothing_is_terminated_and_every_8th_step_ends(self):
        group = collect(20, 2, phases=CLOCK)
        ends = np.zeros((20, 2, 2), bool)
        ends[[7, 15]] = True
        np.testing.assert_array_equal(group.ended, ends)
        assert not group.terminated.any()
        assert group.valid.all()

    def test_the_value_after_a_cut_is_that_of_the_final_observation_not_of_the_next_first_one(self):
        group = collect(20, phases=CLOCK)
        values = [10.0 * (t % 8 + 1) for t in range(20)]
        np.testing.assert_array_equal(of_copy(group, "values")[:, 0], values)
        # Phase 8 is seen at the cut alone; the first observation of the next episode is worth 10.
        after = [10.0 * (t % 8 + 2) for t in range(20)]
        np.testing.assert_array_equal(of_copy(group, "next_values")[:, 0], after)
        np.testing.assert_array_equal(of_copy(group, "next_values")[:, 1], [v + 1000 for v in after])

    def test_advantages_are_the_ones_worked_out_by_hand(self):
        group = collect(9, phases={"agent_0": (0,), "agent_1": (1,)})
        advantages = gae(
            group.rewards,
            group.values,
            group.next_values,
            group.terminated,
            group.ended,
            gamma=0.99,
            lam=0.95,
        )[:, 0]
        # Agent 0 is always in phase 0, worth 10: each error is 0.05 + 9.9 - 10 = -0.05.
        expected = [-0.05 * (1 - 0.9405 ** (8 - t)) / (1 - 0.9405) for t in range(8)]
        np.testing.assert_allclose(advantages[:8, 0], expected, rtol=1e-5)
        assert advantages[8, 0] == pytest.approx(-0.05, rel=1e-4)
        # Agent 1 in phase 1: worth 20 + 1000.
        assert advantages[7, 1] == pytest.approx(0.05 - 0.01 * 1020, rel=1e-5)

    def test_copies_that_run_out_of_step_keep_their_own_ends(self):
        envs = vector(Probe, 2, phases=CLOCK)
        envs.envs[1].unwrapped._cap = 3
        source, actors = collector(envs, 8, Known)
        group = evaluated(source, actors).groups["agent"]
        assert np.flatnonzero(group.ended[:, 0, 0]).tolist() == [7]
        assert np.flatnonzero(group.ended[:, 1, 0]).tolist() == [2, 5]
        # Cut at t = 3, where phase 3 is worth 40.
        assert group.next_values[[2, 5], 1, 0].tolist() == [40.0, 40.0]


class TestFirst:
    """Reward 1 at t = 0, nothing after."""

    def test_what_the_first_step_earned_does_not_reach_later_steps_or_the_episode_before(self):
        rewards = (1.0, *[0.0] * 7)
        group = collect(16, rewards=rewards, phases={"agent_0": (0, 1), "agent_1": (0, 1)})
        assert of_copy(group, "rewards")[:, 0].tolist() == [*rewards, *rewards]
        zero = np.zeros_like(group.values)
        advantages = gae(group.rewards, zero, zero, group.terminated, group.ended, gamma=0.99, lam=0.95)[
            :, 0, 0
        ]
        assert advantages[[0, 8]].tolist() == [1.0, 1.0]
        assert not advantages[[*range(1, 8), *range(9, 16)]].any()


class TestDeath:
    """Agent 1 is terminated after 3 of 8 steps; agent 0 goes on."""

    ARGS: ClassVar[dict[str, Any]] = {"rewards": (1.0,) * 8, "deaths": {"agent_1": 3}, "phases": CLOCK}

    def test_no_row_of_the_dead_counts_and_it_is_born_again_with_the_next_episode(self):
        group = collect(18, **self.ARGS)
        alive = [t % 8 < 3 for t in range(18)]
        np.testing.assert_array_equal(of_copy(group, "valid")[:, 1], alive)
        assert of_copy(group, "valid")[:, 0].all()
        assert np.flatnonzero(of_copy(group, "terminated")[:, 1]).tolist() == [2, 10]
        assert of_copy(group, "rewards")[:, 1].tolist() == [float(a) for a in alive]
        assert np.flatnonzero(of_copy(group, "ended")[:, 0]).tolist() == [7, 15]

    def test_the_advantage_of_the_dead_sees_nothing_beyond_its_end(self):
        group = collect(18, **self.ARGS)
        advantages = gae(
            group.rewards, group.values, group.next_values, group.terminated, group.ended, gamma=0.9, lam=1.0
        )[:, 0]
        values = of_copy(group, "values")
        returns = advantages + values
        np.testing.assert_allclose(returns[:3, 1], [1 + 0.9 + 0.81, 1 + 0.9, 1.0], rtol=1e-4)
        np.testing.assert_allclose(returns[8:11, 1], [2.71, 1.9, 1.0], rtol=1e-4)
        # Agent 0 is cut at phase 8, worth 90.
        expected = sum(0.9**k for k in range(8)) + 0.9**8 * 90
        assert returns[0, 0] == pytest.approx(expected, rel=1e-5)


class TestDeathMix:
    """After 4 steps agent 1 is terminated and agent 2 truncated; after 8 agent 3 is terminated, agent 0 truncated."""

    ARGS: ClassVar[dict[str, Any]] = {
        "n": 4,
        "rewards": (1.0,) * 8,
        "deaths": {"agent_1": 4, "agent_3": 8},
        "cuts": {"agent_2": 4},
        "phases": {f"agent_{i}": range(9) for i in range(4)},
    }

    def test_each_agent_has_its_own_kind_of_end_in_the_same_step(self):
        group = collect(10, 2, **self.ARGS)
        for copy in range(2):
            terminated, ended = group.terminated[:, copy], group.ended[:, copy]
            assert terminated[3].tolist() == [False, True, False, False]
            assert ended[3].tolist() == [False, True, True, False]
            assert terminated[7].tolist() == [False, False, False, True]
            assert (ended & group.valid[:, copy])[7].tolist() == [True, False, False, True]
            assert group.valid[:, copy].sum(0).tolist() == [10, 6, 6, 10]

    def test_the_truncated_bootstrap_from_their_own_last_observation_and_the_terminated_from_nothing(self):
        group = collect(10, **self.ARGS)
        # Agent 2 was cut at phase 4 (worth 50), agent 0 at phase 8 (90); each agent adds 1000 times its number.
        assert group.next_values[3, 0, 2] == 2050.0
        assert group.next_values[7, 0, 0] == 90.0
        zero = np.zeros_like(group.values)
        targets = gae(
            group.rewards, zero, group.next_values, group.terminated, group.ended, gamma=0.5, lam=0.5
        )[:, 0]
        assert targets[3].tolist() == [
            1 + 25 + 0.25 * targets[4, 0],
            1.0,
            1026.0,
            1525 + 1 + 0.25 * targets[4, 3],
        ]
        assert targets[7, [0, 3]].tolist() == [46.0, 1.0]


def test_an_agent_born_late_counts_from_its_birth_and_shares_no_trace_with_the_time_before():
    envs = vector(Team, 1, n=2, max_cycles=6, births={"agent_1": 2})
    source, actors = collector(envs, 6, lambda group: Known(group, value=lambda obs: obs[..., 0]))
    group = evaluated(source, actors).groups["agent"]
    assert group.valid[:, 0, 1].tolist() == [False, False, True, True, True, True]
    assert group.ended[:2, 0, 1].all()
    assert group.obs[2, 0, 1, 0] == 2.0


def test_an_agent_that_leaves_without_a_flag_is_cut_off_and_bootstraps():
    class Deserter(Probe):
        def step(self, actions):
            obs, rewards, terminations, truncations, infos = super().step(actions)
            if self.t == 3:
                self.agents = ["agent_0"]
            return obs, rewards, terminations, truncations, infos

    source, actors = collector(vector(Deserter, 1, phases=CLOCK), 8, Known)
    group = evaluated(source, actors).groups["agent"]
    assert (group.ended[2, 0, 1], group.terminated[2, 0, 1]) == (True, False)
    assert group.next_values[2, 0, 1] == 1040.0
    assert not group.valid[3:, 0, 1].any()


def test_two_collects_in_a_row_are_one_long_one():
    whole, halves = (
        collector(vector(Team, 2, n=3, max_cycles=7, deaths={"agent_1": 4}), n, Random) for n in (22, 11)
    )
    long = whole[0].collect(whole[1]).groups["agent"]
    parts = {name: [] for name in ("obs", "valid", "rewards", "terminated", "ended", "actions")}
    for _ in range(2):
        group = halves[0].collect(halves[1]).groups["agent"]
        for name, values in parts.items():
            values.append(getattr(group, name).copy())
    for name, values in parts.items():
        np.testing.assert_array_equal(np.concatenate(values), getattr(long, name), err_msg=name)


def test_a_rollout_that_stops_midway_looks_one_step_ahead():
    group = collect(5, phases=CLOCK)
    assert group.next_values[4, 0].tolist() == [60.0, 1060.0]


def test_every_episode_is_handed_over_once_and_in_the_rollout_in_which_it_ended():
    envs = vector(Team, 3, n=2, max_cycles=4)
    source, actors = collector(envs, 6)
    seen = [[(log.env_index, log.episode) for log in source.collect(actors).episodes] for _ in range(4)]
    # 24 steps of 3 copies: each copy ends an episode every 4 steps, one or two in a rollout of 6.
    assert [len(keys) for keys in seen] == [3, 6, 3, 6]
    flat = [key for keys in seen for key in keys]
    assert len(set(flat)) == len(flat) == 18


@pytest.mark.parametrize("name", ["simple_tag", "knights_archers_zombies"])
def test_no_reward_is_lost_between_rollouts_and_episode_logs(name):
    envs = SerialVectorEnv(EnvFactory(make_env=real_env, kwargs={"name": name}), 2)
    source, actors = collector(envs, 70, Random)
    rewards: dict[str, float] = {}
    logs = []
    for _ in range(2):
        rollout = source.collect(actors)
        logs += rollout.episodes
        for group in rollout.groups.values():
            assert not group.rewards[~group.valid].any()
            for row, agent in enumerate(group.group.agents):
                own = group.rewards[:, :, row][group.valid[:, :, row]]
                rewards[agent] = rewards.get(agent, 0.0) + math.fsum(own)
    logs += envs.close()
    for agent, total in rewards.items():
        assert math.fsum(log.returns[agent] for log in logs) == pytest.approx(total, abs=1e-6), agent
    assert sum(log.length for log in logs) == 2 * 140
    if name == "knights_archers_zombies":
        assert any(len(set(log.lengths.values())) > 1 for log in logs), "nobody died: this proves nothing"


def test_masks_are_kept_with_the_step_they_belong_to():
    source, actors = collector(vector(Kinds, 1, kind="discrete", mask="info"), 7)
    group = evaluated(source, actors).groups["agent"]
    allowed = [np.flatnonzero(row).tolist() for row in group.action_mask[:, 0, 0]]
    assert allowed == [[0, 1], [1, 2], [2, 3], [0, 3], [0, 1], [0, 1], [1, 2]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("what", ["observation", "reward", "final observation"])
def test_a_number_that_is_none_stops_the_run_and_is_located(what, value):
    source, actors = collector(vector(Broken, 2, what=what, value=value), 6)
    with pytest.raises(NonFiniteError) as caught:
        source.collect(actors)
    message = str(caught.value)
    assert "broken_v0" in message
    assert f": {what} of agent 'agent_1' in copy 0 is NaN or infinite at env step 6" in message


def test_a_bad_first_observation_is_found_before_anyone_acts_on_it():
    with pytest.raises(NonFiniteError, match=r"observation of agent 'agent_0' in copy 0 .* env step 0"):
        collector(vector(Broken, 1, step=0, agent="agent_0"), 4)


def test_the_copy_with_the_bad_number_is_the_one_that_is_named():
    envs = vector(Broken, 3, first_episode=10**9)
    envs.envs[2].unwrapped._first_episode = 0
    source, actors = collector(envs, 6)
    with pytest.raises(NonFiniteError, match=r"agent 'agent_1' in copy 2 .* env step 9"):
        source.collect(actors)
