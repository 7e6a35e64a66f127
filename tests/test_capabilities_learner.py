"""What is known of each learning agent, its spaces and distributions, and figures of merit: one short test a capability."""

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

import marl_tools as mt
from marl_tools.bench.statistics import Session
from marl_tools.experiment.run import resume
from marl_tools.models.distributions import action_distribution, get_action_pd_cls, get_action_type
from marl_tools.training.best import BestCheckpoint
from marl_tools.training.checkpoint_folder import CheckpointFolder
from tests.envs_for_tests import Team, play
from tests.experiment.test_resume import settings

SLM_COLUMNS = "epi t wall_t opt_step frame fps total_reward total_reward_ma loss lr explore_var entropy_coef entropy grad_norm"


def logs(count, split="train"):
    env = mt.EpisodeRecorder(Team(n=2, max_cycles=3), split=split)
    for number in range(count):
        play(env, seed=number)
        yield env.last_episode


def test_an_agents_record_has_a_row_an_episode_and_splits_apart():
    record = mt.AgentRecord("agent_1", window=2)
    record.set(loss=0.5, lr=1e-3, explore_var=0.1, entropy_coef=0.01, mean_entropy=0.7, mean_grad_norm=0.2)
    for split, count in (("train", 3), ("eval", 1)):
        for log in logs(count, split):
            record.add(log)
    train, evaluated = record.frame("train"), record.frame("eval")
    assert set(SLM_COLUMNS.split()) <= set(train.columns)
    assert set(train.columns) - set(SLM_COLUMNS.split()) == {"agent", "split", "env_name"}
    assert (len(train), len(evaluated)) == (3, 1)
    assert train["total_reward"].tolist() == [6.0] * 3
    assert (record.total_reward_ma, record.eval_reward_ma) == (6.0, 6.0)
    assert (record.loss, record.mean_entropy, record.mean_grad_norm) == (0.5, 0.7, 0.2)


def test_moving_averages_are_over_episodes_of_one_agent_or_of_the_team():
    history = mt.History()
    history.extend(logs(5))
    assert history.ma(3, "agent_0", "train") == history.ma(100) == 6.0
    assert math.isnan(history.ma(split="eval"))


def test_the_best_average_so_far_and_whether_the_task_is_solved():
    best = BestCheckpoint(window=2, solved_at=5.0)
    assert [best.offer(value, episodes=2, update=i) for i, value in enumerate((3.0, 2.0, 6.0))] == [
        True,
        False,
        True,
    ]
    assert best.solved


def test_a_resumed_run_goes_on_in_train_mode_with_clock_and_best(tmp_path):
    mt.train(settings(tmp_path / "a", final_policy_eval_episodes=0))
    before = CheckpointFolder(tmp_path / "a").load()[1]
    resume(tmp_path / "a", timesteps=448)
    _, state = CheckpointFolder(tmp_path / "a").load()
    assert (before["frames"], state["frames"], state["updates"]) == (384, 448, 7)
    assert state["best"]["update"] >= before["best"]["update"]
    record = mt.AgentRecord.from_run(tmp_path / "a", "car_0")
    assert record.frame("train")["frame"].is_monotonic_increasing


def test_evaluation_plays_on_envs_of_its_own():
    factory = mt.EnvFactory(make_env="tests.envs_for_tests:Team", kwargs={"max_cycles": 3})

    class Still:
        def seed(self, seed):
            pass

        def __call__(self, observations, infos=None):
            return dict.fromkeys(observations, 0)

    evaluation = mt.evaluate(factory, Still(), episodes=2, seed=5)
    assert [log.split for log in evaluation.episodes] == ["eval"] * 2
    assert [log.seed for log in evaluation.episodes] == [5, 6]


@pytest.mark.parametrize(
    ("space", "kind", "dim", "default"),
    [
        (Discrete(4), "discrete", 4, "Categorical"),
        (Box(-1, 1, (3,)), "continuous", 3, "Normal"),
        (MultiDiscrete([2, 3]), "multi_discrete", 5, "MultiCategorical"),
        (MultiBinary(3), "multi_binary", 3, "Bernoulli"),
    ],
)
def test_spaces_say_what_they_are_and_which_distribution_fits(space, kind, dim, default):
    spaces = mt.AgentSpaces(Box(-1, 1, (7,)), space)
    assert spaces.observable_dim == {"state": 7}
    assert (spaces.state_dim, spaces.action_dim) == (7, dim)
    assert spaces.is_discrete is (kind != "continuous")
    assert get_action_type(space) == spaces.action_type == kind
    assert get_action_pd_cls("default", kind) is get_action_pd_cls(None, kind)
    assert get_action_pd_cls(None, kind).__name__ == type(action_distribution(spaces)).__name__ == default


def test_joint_log_probabilities_and_entropies_are_sums():
    spaces = mt.AgentSpaces(Box(-1, 1, (2,)), MultiDiscrete([2, 3]))
    pd = action_distribution(spaces)
    params = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    actions = pd.sample(params, torch.Generator().manual_seed(1))
    parts = [torch.distributions.Categorical(logits=logits) for logits in params.split([2, 3], -1)]
    expected = sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))
    assert torch.allclose(pd.log_prob(params, actions), expected, atol=1e-6)
    assert torch.allclose(pd.entropy(params), sum(part.entropy() for part in parts), atol=1e-6)


def test_an_unknown_distribution_lists_the_choices():
    with pytest.raises(mt.ConfigError, match="Categorical"):
        get_action_pd_cls("Categorial", "discrete")


def test_figures_of_merit_follow_their_formulas():
    returns, frames, steps = (
        np.array([1.0, 3.0, 2.0]),
        np.array([10.0, 20.0, 30.0]),
        np.array([1.0, 2.0, 3.0]),
    )
    sessions = [Session(returns + shift, frames, steps, random_return=0.5) for shift in (0.0, 1.0)]
    s = returns - 0.5
    figures = sessions[0].metrics()
    assert (figures.strength, figures.max_strength, figures.final_strength) == (s.mean(), 2.5, 1.5)
    assert figures.sample_efficiency == pytest.approx((s / frames).sum() / s.sum())
    assert figures.training_efficiency == pytest.approx((s / steps).sum() / s.sum())
    assert figures.stability == pytest.approx(1 - 1.0 / np.abs(s[:-1]).sum())
    trial = mt.trial_metrics(sessions)
    assert trial.strength == pytest.approx(s.mean() + 0.5)
    assert trial.consistency == pytest.approx(1 - 2 * (3 * 0.5) / np.abs(s + 0.5).sum())
