"""Rollouts collected beside updates: whose they are, that timing has no say in them, and what happens when either side fails."""

import threading
import time

import numpy as np
import pytest
import torch

from marl_tools.core.errors import ConfigError, NonFiniteError
from marl_tools.models.networks import NetworkConfig
from marl_tools.training.batches import from_lanes, to_lanes
from marl_tools.training.ippo import IPPO, IPPOConfig
from tests.envs_for_tests import Team
from tests.probe_envs import Broken, MatchGame, vector

SMALL = IPPOConfig(
    rollouts=12, learning_epochs=2, mini_batches=1, learning_rate=0.01, network=NetworkConfig(hidden=(8,))
)


class Slow(Team):
    """A `Team` in which collecting takes longer than learning."""

    def step(self, actions):
        time.sleep(0.002)
        return super().step(actions)


def trainer(make_env=Team, config=SMALL, *, asynchronous=True, num_envs=2, total_frames=10_000, **kwargs):
    if issubclass(make_env, Team) and make_env not in (Broken, MatchGame):
        kwargs = {"n": 2, "max_cycles": 5, **kwargs}
    return IPPO(
        vector(make_env, num_envs, **kwargs),
        config,
        seed=3,
        total_frames=total_frames,
        asynchronous=asynchronous,
    )


def weights(run):
    return {name: value.clone() for name, value in run.learners["agent"].network.state_dict().items()}


def played(make_env, updates=4):
    """Actions and rewards of some updates' rollouts, the figures of the updates, the episodes, the weights at the end."""
    run, arrays, figures, episodes = trainer(make_env), [], [], []
    for _ in range(updates):
        rollout = run.collect()
        group = rollout.groups["agent"]
        arrays += [group.obs.copy(), group.actions.copy(), group.log_probs.copy(), group.rewards.copy()]
        episodes += [(log.env_index, log.episode, log.t_end, log.update) for log in rollout.episodes]
        figures.append(run.update(rollout))
    return arrays, figures, episodes, weights(run)


def test_what_is_played_does_not_depend_on_which_side_is_the_slower():
    slow, quick = played(Slow), played(Team)
    np.testing.assert_equal(slow[0], quick[0])
    assert slow[1:3] == quick[1:3]
    assert all(torch.equal(slow[3][name], value) for name, value in quick[3].items())
    assert [update for *_, update in quick[2]] == sorted(update for *_, update in quick[2])
    assert {update for *_, update in quick[2]} == {0, 1, 2, 3}


@pytest.mark.parametrize("share", ["group", "none"])
def test_a_rollout_is_played_by_the_policies_before_the_last_update(share):
    config = IPPOConfig(
        rollouts=12,
        learning_epochs=2,
        mini_batches=1,
        learning_rate=0.01,
        share=share,
        network=NetworkConfig(hidden=(8,)),
    )
    run, judge = trainer(config=config), trainer(config=config)
    other = judge.learners["agent"]

    @torch.no_grad()
    def log_probs(rollout, state):
        """Of what was played, by a network with these weights."""
        network = other.network
        network.load_state_dict(state)
        group = rollout.groups["agent"]
        obs, actions = (rows.reshape(-1, *rows.shape[2:]) for rows in (group.obs, group.actions))
        params = network.policy(to_lanes(obs, network.lanes))
        scores = network.distribution.log_prob(params, to_lanes(actions, network.lanes))
        return from_lanes(scores, obs.shape[1]).reshape(group.valid.shape)

    before = []
    for update in range(4):
        rollout = run.collect()
        before.append(weights(run))
        assert rollout.lag == min(update, 1)
        stored = rollout.groups["agent"].log_probs.copy()
        np.testing.assert_allclose(stored, log_probs(rollout, before[max(0, update - 1)]), atol=1e-5)
        ratios = np.exp(log_probs(rollout, before[-1]) - stored)
        figures = run.update(rollout)["agent"]
        if rollout.lag:
            assert np.abs(ratios - 1).max() > 1e-3, "the policy has moved on"
            assert figures["ratio_mean"] == pytest.approx(ratios.mean(), abs=1e-4)
            assert figures["ratio_max"] == pytest.approx(ratios.max(), abs=1e-4)
        else:
            assert "ratio_mean" not in figures


def test_the_first_update_is_that_of_a_synchronous_trainer_and_nothing_is_played_beyond_the_last():
    runs = [trainer(asynchronous=asynchronous, total_frames=48) for asynchronous in (True, False)]
    first = [run.update(run.collect()) for run in runs]
    assert first[0] == first[1]
    assert [(run.frames, run.envs.frames) for run in runs] == [(24, 48), (24, 24)]
    second = [run.update(run.collect()) for run in runs]
    assert [(run.frames, run.envs.frames) for run in runs] == [(48, 48), (48, 48)]
    assert "ratio_max" in second[0]["agent"]
    assert "ratio_max" not in second[1]["agent"]


def test_a_fault_of_an_env_is_raised_where_its_rollout_is_asked_for():
    run = trainer(Broken, first_episode=3)
    seen = []
    figures = run.update(run.collect(seen.append))
    assert figures["agent"]["rows"] == 48
    with pytest.raises(NonFiniteError, match="observation of agent 'agent_1' in copy 0 is NaN"):
        run.collect()
    assert run.updates == 1
    assert {log.update for log in seen} == {0, 1}


class Stopping:
    """A constraint under which the first update comes to grief, as soon as the next rollout is under way."""

    def __init__(self, error, envs):
        self.error, self.envs = error, envs

    def update(self, episodes):
        while self.envs.frames == 300:
            time.sleep(0.001)
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("of the update")])
def test_an_update_that_is_stopped_stops_what_is_played_beside_it(error):
    run = trainer(Slow, IPPOConfig(rollouts=150))
    run.constraint = Stopping(error, run.envs)
    rollout = run.collect()
    with pytest.raises(type(error)):
        run.update(rollout)
    # 150 steps of 2 copies take far longer than to be stopped.
    assert 300 < run.envs.frames < 600
    assert run.frames == 300
    assert "collector" not in {thread.name for thread in threading.enumerate() if thread.is_alive()}
    run.envs.close()


def test_a_shield_is_refused():
    with pytest.raises(ConfigError, match="a shield learns with every update what the policies do"):
        IPPO(
            vector(Team, n=2, max_cycles=5), SMALL, seed=0, total_frames=9, shield=object(), asynchronous=True
        )


@pytest.mark.slow
def test_a_team_learns_to_answer_its_contexts_from_what_its_last_policies_played():
    config = IPPOConfig(
        rollouts=32, learning_rate=0.01, entropy_coef=0.0, network=NetworkConfig(hidden=(16,))
    )
    run, returns, furthest = trainer(MatchGame, config, num_envs=4), [], 0.0
    for _ in range(40):
        rollout = run.collect()
        returns.append(np.mean([log.mean_return for log in rollout.episodes]))
        furthest = max(furthest, run.update(rollout)["agent"].get("ratio_max", 0.0))
    # Random play earns 1/3 + 0.5/9 a head, the best play 1.5.
    assert returns[0] == pytest.approx(0.39, abs=0.2)
    assert np.mean(returns[-3:]) > 1.4
    assert furthest > 1.2, "policies that learn move on beyond the clip range"
