"""The trainer: its repeatability, its lanes, its masks, its schedules, what it refuses, and that it learns."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from marl_tools.core.errors import ConfigError, NonFiniteError
from marl_tools.models.networks import NetworkConfig
from marl_tools.training.batches import lane_rows, pad
from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint
from marl_tools.training.ippo import IPPO, IPPOConfig
from tests.envs_for_tests import Team
from tests.probe_envs import ACTION_SPACES, Broken, Kinds, MatchGame, Probe, vector

SMALL = IPPOConfig(rollouts=12, learning_epochs=2, mini_batches=2, network=NetworkConfig(hidden=(8,)))
both_shares = pytest.mark.parametrize("share", ["group", "none"])


def small(**changes):
    return dataclasses.replace(SMALL, **changes)


def trainer(make_env=Team, config=SMALL, *, seed=0, total_frames=10_000, num_envs=2, **kwargs):
    if make_env is Team:
        kwargs = {"n": 2, "max_cycles": 5, **kwargs}
    return IPPO(vector(make_env, num_envs, **kwargs), config, seed=seed, total_frames=total_frames)


def step(trainer, updates=1):
    """The figures of the last of some updates."""
    figures = {}
    for _ in range(updates):
        figures = trainer.update(trainer.collect())
    return figures


def weights(trainer):
    return {
        f"{name}/{key}": value.clone()
        for name, learner in trainer.learners.items()
        for key, value in learner.network.state_dict().items()
    }


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def lane(trainer, index, name="agent"):
    """The parameters of one agent's own network."""
    return [p.detach()[index].clone() for p in trainer.learners[name].network.parameters()]


# --- repeatability ------------------------------------------------------------------------------------------------


@both_shares
def test_the_same_seed_gives_the_same_weights_to_the_bit_and_another_seed_others(share):
    runs = [trainer(config=small(share=share), seed=seed) for seed in (0, 0, 1)]
    for run in runs:
        step(run, 3)
    first, again, other = map(weights, runs)
    assert equal(first, again)
    assert not equal(first, other)


@pytest.mark.parametrize("kind", ["discrete", "box"])
@both_shares
def test_a_trainer_that_was_saved_and_loaded_is_the_one_that_was_saved(tmp_path, kind, share):
    config = small(share=share)
    old = trainer(Kinds, config, kind=kind)
    step(old, 2)
    save_checkpoint(tmp_path / "a.safetensors", *old.state())
    new = trainer(Kinds, config, kind=kind)
    new.load(*load_checkpoint(tmp_path / "a.safetensors"))
    assert (new.updates, new.envs.frames, new.envs.episodes_started) == (2, 48, old.envs.episodes_started)
    assert equal(weights(old), weights(new))
    # Envs, optimisers, normalisers and random states too: both play the same and learn the same.
    for _ in range(2):
        played = old.collect(), new.collect()
        for name, ours in played[0].groups.items():
            assert np.array_equal(ours.obs, played[1].groups[name].obs)
            assert np.array_equal(ours.actions, played[1].groups[name].actions)
        assert [log.seed for log in played[0].episodes] == [log.seed for log in played[1].episodes]
        assert old.update(played[0]) == new.update(played[1])
    assert equal(weights(old), weights(new))


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"make_env": Team, "n": 3}, "groups"),
        ({"make_env": Kinds, "kind": "box"}, "groups"),
        ({"config": small(share="none")}, "lanes"),
        ({"config": small(network=NetworkConfig(hidden=(8, 8)))}, "network"),
        ({"config": small(normalise_observations=False)}, "normalise_observations"),
    ],
)
def test_a_checkpoint_of_another_team_is_refused_with_what_differs(other, field):
    tensors, state = trainer().state()
    new = trainer(**other)
    before = weights(new)
    with pytest.raises(ConfigError, match=f"the checkpoint's {field} differ from this run's"):
        new.load(tensors, state)
    assert equal(weights(new), before)


# --- who learns from what -----------------------------------------------------------------------------------------


def test_with_networks_of_their_own_one_agents_rewards_do_not_touch_anothers_weights():
    """The same experience, but for what agent 1 earned: agent 0 learns the same to the bit."""
    runs = [trainer(config=small(share="none"), n=3) for _ in range(2)]
    for index, run in enumerate(runs):
        rollout = run.collect()
        rollout.groups["agent"].rewards[:, :, 1] *= 1 + 50 * index
        run.update(rollout)
    left, right = runs
    for agent in (0, 2):
        assert all(map(torch.equal, lane(left, agent), lane(right, agent)))
    assert not all(map(torch.equal, lane(left, 1), lane(right, 1)))


@both_shares
def test_the_value_of_a_single_observation_is_that_of_its_own_agents_network(share):
    learner = trainer(n=3, config=small(share=share)).learners["agent"]
    obs = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    critic = learner.critics["reward"]
    whole = critic.values(obs)
    envs, agents = np.array([3, 0, 2, 2]), np.array([2, 0, 1, 0])
    np.testing.assert_allclose(critic.values_of(obs[envs, agents], agents), whole[envs, agents], rtol=1e-5)
    actions, log_probs = learner.act(obs, None)
    assert actions.shape == log_probs.shape == whole.shape == (4, 3)


@both_shares
def test_copies_act_the_same_whoever_acts_in_the_same_call(share):
    learner = trainer(n=3, config=small(share=share)).learners["agent"]
    obs, noise = np.random.default_rng(0).normal(size=(6, 3, 2)).astype(np.float32), learner.noise(4, 6)
    for now in noise:
        whole, log_probs = learner.act(obs, None, now)
        for part in (slice(0, 2), slice(2, 6)):
            actions, own = learner.act(obs[part], None, now[part])
            np.testing.assert_array_equal(actions, whole[part])
            np.testing.assert_allclose(own, log_probs[part], rtol=1e-5)
    assert len({learner.act(obs, None, now)[0].tobytes() for now in noise}) > 1


@both_shares
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_a_minibatch_is_learnt_from_as_a_whole_however_it_is_cut(share, kind, monkeypatch):
    whole, cut = (trainer(Kinds, small(share=share), kind=kind) for _ in range(2))
    expected = step(whole)["agent"]
    monkeypatch.setattr("marl_tools.training.learner._CHUNK", 6)
    figures = step(cut)["agent"]
    assert figures == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for name, value in weights(cut).items():
        torch.testing.assert_close(value, weights(whole)[name], rtol=1e-3, atol=1e-5)


def test_with_a_shared_network_every_agents_rewards_count():
    runs = [trainer(n=3) for _ in range(2)]
    for index, run in enumerate(runs):
        rollout = run.collect()
        rollout.groups["agent"].rewards[:, :, 1] *= 1 + 50 * index
        run.update(rollout)
    assert not equal(*map(weights, runs))


def test_an_agent_with_a_network_of_its_own_learns_as_if_it_were_alone():
    """One pass over one minibatch of one agent's rows, computed a second time from the lanes' own formulas."""
    config = small(
        share="none", learning_epochs=1, mini_batches=1, normalise_returns=False, learning_rate=0.01
    )
    together, alone = trainer(config=config), trainer(config=config)
    rollout = together.collect()
    copy = alone.collect()
    # Agent 1's rows are taken out of the second rollout: agent 0 is all that is left in it.
    copy.groups["agent"].valid[:, :, 1] = False
    together.update(rollout)
    alone.update(copy)
    for with_other, without in zip(lane(together, 0), lane(alone, 0), strict=True):
        torch.testing.assert_close(with_other, without, rtol=1e-5, atol=1e-7)


@both_shares
def test_nothing_is_learnt_from_what_a_dead_agent_would_have_seen(share):
    """Whatever stands in the rows of the dead, the weights come out the same."""
    runs = [trainer(config=small(share=share), max_cycles=6, deaths={"agent_1": 2}) for _ in range(2)]
    for index, run in enumerate(runs):
        rollout = run.collect()
        group = rollout.groups["agent"]
        assert not group.valid.all()
        if index:
            dead = ~group.valid
            group.obs[dead], group.rewards[dead], group.log_probs[dead] = 1e6, -1e6, -50.0
            group.actions[dead] = 2
        run.update(rollout)
    assert equal(*map(weights, runs))


def test_rows_that_fill_up_a_lane_cannot_spoil_its_loss():
    """Filling is row 0, agent 0's: under another agent's narrow policy its ratio overflows."""
    run = trainer(Kinds, small(share="none", mini_batches=1), kind="unbounded")
    group = run.collect().groups["agent"]
    group.valid[3:, :, 1] = False
    group.log_probs[0, 0, 0] = -1e4
    group.valid[0, 0, 0] = False
    run.update(run._collector.rollout)
    assert all(torch.isfinite(value).all() for value in weights(run).values())


def test_an_agent_that_was_away_for_a_whole_rollout_keeps_its_own_weights_to_the_bit():
    learning = trainer(config=small(share="none", rollouts=8), max_cycles=1000, deaths={"agent_1": 4})
    (learner,) = learning.learners.values()

    def own(lane):
        return torch.cat([p.detach().reshape(learner.lanes, -1)[lane] for p in learner.network.parameters()])

    step(learning)
    before = [own(lane).clone() for lane in (0, 1)]
    step(learning)
    assert not torch.equal(own(0), before[0])
    assert torch.equal(own(1), before[1])


def test_a_group_of_which_nobody_lived_is_left_alone():
    run = trainer()
    rollout = run.collect()
    rollout.groups["agent"].valid[:] = False
    before = weights(run)
    assert run.update(rollout) == {"agent": {"rows": 0}}
    assert equal(weights(run), before)
    assert step(run)["agent"]["rows"] == 48


def test_more_minibatches_than_rows_make_as_many_steps_as_there_are_rows():
    run = trainer(config=small(rollouts=1, mini_batches=50, learning_epochs=1), num_envs=1)
    figures = step(run)["agent"]
    assert figures["rows"] == 2
    assert run.learners["agent"].optimiser.state_dict()["state"][0]["step"].item() == 2


def test_lanes_take_their_own_rows_and_filling_has_no_weight():
    valid = np.array([[[True, False]], [[True, True]], [[True, False]]])
    assert [rows.tolist() for rows in lane_rows(valid, 1)] == [[0, 2, 3, 4]]
    lanes = lane_rows(valid, 2)
    assert [rows.tolist() for rows in lanes] == [[0, 2, 4], [3]]
    index, weight = pad(lanes)
    assert weight.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert index[0].tolist() == [0, 2, 4]
    assert index[1, 0].item() == 3


# --- the update itself --------------------------------------------------------------------------------------------


@both_shares
@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_before_the_first_step_the_new_policy_is_the_old_one(kind, share):
    """Ratio 1 everywhere: what was recorded while acting is what the update computes again."""
    run = trainer(Kinds, small(share=share, learning_epochs=1, mini_batches=1), kind=kind)
    figures = step(run)["agent"]
    assert figures["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert figures["clip_fraction"] == 0.0
    assert figures["policy_loss"] == pytest.approx(0.0, abs=1e-5), "normalised advantages have mean 0"


@both_shares
@pytest.mark.parametrize("mask", [None, "observation", "info"])
@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_every_kind_of_action_space_trains_and_what_is_forbidden_is_never_played(kind, mask, share):
    if mask and kind not in ("discrete", "multi_discrete"):
        return
    # `Kinds` itself refuses an action outside its space or its mask.
    run = trainer(Kinds, small(share=share, learning_rate=0.05), kind=kind, mask=mask)
    before = weights(run)
    figures = step(run, 2)["agent"]
    assert all(math.isfinite(figures[name]) for name in ("loss", "entropy", "approx_kl", "grad_norm"))
    assert not equal(weights(run), before)


@pytest.mark.parametrize("mask", ["observation", "info"])
def test_log_probs_and_entropy_are_those_of_the_allowed_choices_alone(mask):
    run = trainer(Kinds, SMALL, kind="discrete", mask=mask)
    group = run.collect().groups["agent"]
    # At the start the policy is all but uniform over the two allowed choices of four.
    np.testing.assert_allclose(np.exp(group.log_probs), 0.5, atol=0.05)
    figures = run.update(run._collector.rollout)["agent"]
    assert figures["entropy"] == pytest.approx(math.log(2), abs=0.02)


def test_the_kl_stop_ends_an_update_after_the_epoch_that_went_too_far():
    wild = {"learning_epochs": 6, "learning_rate": 0.1}
    free, stopped = (trainer(config=small(**wild, target_kl=kl)) for kl in (None, 1e-3))
    assert step(free)["agent"]["epochs"] == 6
    epochs = step(stopped)["agent"]["epochs"]
    assert 1 <= epochs < 6
    assert step(trainer(config=small(**wild, target_kl=1e6)))["agent"]["epochs"] == 6


def test_learning_rate_and_entropy_bonus_follow_their_schedules():
    config = small(
        learning_rate=0.1,
        learning_rate_schedule="linear",
        entropy_coef=0.4,
        entropy_coef_end=0.2,
        entropy_schedule="cosine",
    )
    run = trainer(config=config, total_frames=4 * 24)
    rates, bonuses = [], []
    for _ in range(4):
        figures = step(run)["agent"]
        rates.append(figures["learning_rate"])
        bonuses.append(figures["entropy_coef"])
        assert run.learners["agent"].optimiser.param_groups[0]["lr"] == rates[-1]
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert bonuses == pytest.approx([0.2 + 0.1 * (1 + math.cos(math.pi * i / 4)) for i in range(4)])


def test_a_learning_rate_that_has_run_out_changes_nothing_more():
    run = trainer(config=small(learning_rate_schedule="cosine", normalise_returns=False), total_frames=24)
    step(run)
    before = [p.detach().clone() for p in run.learners["agent"].network.parameters()]
    assert step(run)["agent"]["learning_rate"] == 0.0
    assert all(map(torch.equal, before, run.learners["agent"].network.parameters()))


def test_a_higher_entropy_bonus_keeps_the_policy_closer_to_uniform():
    entropies = []
    for bonus in (0.0, 5.0):
        run = trainer(MatchGame, small(rollouts=64, learning_rate=0.02, entropy_coef=bonus))
        entropies.append(step(run, 8)["agent"]["entropy"])
    assert entropies[0] < 0.8 < 1.0 < entropies[1] <= math.log(3) + 1e-6


def test_figures_tell_how_well_the_values_explained_the_returns():
    run = trainer(Probe, small(normalise_returns=False))
    figures = step(run)["agent"]
    assert figures["explained_variance"] <= 1
    # Constant rewards and observations, all values alike: nothing explained, nothing claimed.
    assert figures["explained_variance"] == pytest.approx(0.0, abs=1e-3)


# --- what is no number --------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_names_agent_and_copy_and_leaves_the_weights_sound():
    run = trainer(config=small(normalise_returns=False))
    rollout = run.collect()
    rollout.groups["agent"].rewards[7, 1, 1] = 1e30
    rollout.groups["agent"].ended[6] = True
    with pytest.raises(
        NonFiniteError, match=r"agent 'agent_1' .* rollout step 7 of env copy 1.* learning rate"
    ):
        run.update(rollout)
    assert all(torch.isfinite(value).all() for value in weights(run).values())


@both_shares
def test_a_gradient_that_is_no_number_stops_before_it_reaches_the_weights(share):
    # Each row's loss is a number, but the slopes overflow.
    run = trainer(config=small(share=share, value_coef=3e38))
    learner = run.learners["agent"]
    rollout = run.collect()
    before = [p.detach().clone() for p in learner.network.parameters()]
    who = "agent" if share == "group" else "agent_0"
    with pytest.raises(NonFiniteError, match=f"gradient of '{who}' is NaN or infinite"):
        run.update(rollout)
    # The critic's output layer is rescaled to the returns beforehand; its trunk and the policy have not moved.
    after = [p.detach() for p in learner.network.parameters()]
    assert all(torch.isfinite(value).all() for value in after)
    moved = [not torch.equal(old, new) for old, new in zip(before, after, strict=True)]
    assert sum(moved) <= 2


def test_a_bad_observation_reaches_the_caller_with_its_place():
    with pytest.raises(NonFiniteError, match="agent 'agent_1' in copy 0"):
        step(trainer(Broken))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rollouts", 0),
        ("learning_epochs", 0),
        ("mini_batches", -1),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("clip", -0.1),
        ("max_grad_norm", math.inf),
        ("gamma", 1.01),
        ("gae_lambda", -0.01),
        ("entropy_coef", -1.0),
        ("entropy_coef_end", math.nan),
        ("value_coef", math.inf),
        ("target_kl", 0.0),
        ("target_kl", math.nan),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_its_name_and_value(setting, value):
    with pytest.raises(ConfigError, match=f"^{setting}={value}"):
        IPPOConfig(**{setting: value})


# --- learning -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both_shares
def test_a_team_learns_to_answer_its_contexts(share):
    config = IPPOConfig(
        rollouts=32, learning_rate=0.01, share=share, entropy_coef=0.0, network=NetworkConfig(hidden=(16,))
    )
    run = trainer(MatchGame, config, num_envs=4)
    returns = []
    for _ in range(30):
        rollout = run.collect()
        returns.append(np.mean([log.mean_return for log in rollout.episodes]))
        run.update(rollout)
    # Random play earns 1/3 + 0.5/9 a head, the best play 1.5.
    assert returns[0] == pytest.approx(0.39, abs=0.2)
    assert np.mean(returns[-3:]) > 1.4
