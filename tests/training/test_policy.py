"""A trained team in anyone's code: the very policy that was trained, for any part of the team, with no env at hand."""

import json
import shutil

import numpy as np
import pytest
import torch
from scipy import stats

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.training.batches import to_lanes
from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint
from marl_tools.training.ippo import IPPO
from marl_tools.training.policy import RandomPolicy, TeamPolicy, load_policy
from tests.core.film import run_script
from tests.envs_for_tests import Team
from tests.probe_envs import ACTION_SPACES, Kinds, vector
from tests.training.test_ippo import both_shares, small


def team(make_env=Team, share="group", updates=2, **kwargs):
    """A trainer whose policy is far from uniform."""
    if make_env is Team:
        kwargs = {"n": 3, "max_cycles": 5, **kwargs}
    trainer = IPPO(
        vector(make_env, **kwargs), small(share=share, learning_rate=0.05), seed=3, total_frames=10_000
    )
    for _ in range(updates):
        trainer.update(trainer.collect())
    return trainer


def saved(trainer, folder):
    save_checkpoint(folder / "checkpoints" / "latest.safetensors", *trainer.state())
    return folder


def observations(trainer, seed=0):
    agents = trainer.envs.envs[0].possible_agents
    rows = np.random.default_rng(seed).normal(size=(len(agents), 2)).astype(np.float32)
    return dict(zip(agents, rows, strict=True))


@both_shares
def test_a_loaded_team_has_the_trainers_own_distribution(tmp_path, share):
    trainer = team(share=share)
    policy = load_policy(saved(trainer, tmp_path))
    learner = trainer.learners["agent"]
    obs = observations(trainer)
    stacked = to_lanes(np.stack(list(obs.values()))[None], learner.lanes)
    with torch.inference_mode():
        expected = learner.network.policy(stacked).double().softmax(-1).reshape(3, -1).numpy()
    draws = [policy(obs) for _ in range(3000)]
    for row, agent in enumerate(obs):
        counts = np.bincount([draw[agent] for draw in draws], minlength=3)
        assert stats.chisquare(counts, expected[row] * len(draws)).pvalue > 1e-4, agent


@both_shares
def test_deterministic_play_takes_the_most_likely_action_each_time(tmp_path, share):
    trainer = team(share=share)
    policy = load_policy(saved(trainer, tmp_path), deterministic=True)
    learner = trainer.learners["agent"]
    for seed in range(5):
        obs = observations(trainer, seed)
        with torch.inference_mode():
            logits = learner.network.policy(to_lanes(np.stack(list(obs.values()))[None], learner.lanes))
        best = dict(zip(obs, logits.argmax(-1).flatten().tolist(), strict=True))
        assert policy(obs) == policy(obs) == best


@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_are_in_the_envs_own_space(tmp_path, kind, deterministic):
    trainer = team(Kinds, kind=kind)
    policy = load_policy(saved(trainer, tmp_path), deterministic=deterministic)
    for seed in range(20):
        for action in policy(observations(trainer, seed)).values():
            assert ACTION_SPACES[kind].contains(action)


def test_sampling_is_repeatable_and_another_seed_plays_otherwise(tmp_path):
    run = saved(team(updates=0), tmp_path)
    obs = observations(team(updates=0))

    def play(policy):
        return [policy(obs) for _ in range(20)]

    first, again, other = (load_policy(run, seed=seed) for seed in (5, 5, 6))
    trace = play(first)
    assert play(again) == trace != play(other)
    again.seed(5)
    assert play(again) == trace


@both_shares
def test_a_part_of_the_team_plays_as_it_would_in_the_whole_and_in_the_callers_order(tmp_path, share):
    trainer = team(share=share)
    run = saved(trainer, tmp_path)
    obs = observations(trainer)
    for agents in (["agent_2"], ["agent_1", "agent_0"]):
        part = load_policy(run, seed=1)({agent: obs[agent] for agent in agents})
        whole = load_policy(run, seed=1)(obs)
        assert list(part) == agents
        assert part == {agent: whole[agent] for agent in agents}
    assert load_policy(run)({}) == {}


@both_shares
def test_probabilities_are_those_that_actions_are_drawn_with_and_a_mask_takes_part(tmp_path, share):
    trainer = team(Kinds, share=share, kind="discrete", mask="info")
    policy, uniform = load_policy(saved(trainer, tmp_path), seed=2), RandomPolicy(trainer.envs.groups)
    obs, infos = Kinds("discrete", mask="info").reset(seed=0)
    laws, spaces = policy.probabilities(obs, infos), trainer.envs.groups[0].spaces
    draws = [policy(obs, infos) for _ in range(2000)]
    for agent, law in laws.items():
        allowed = np.asarray(infos[agent]["action_mask"], bool)
        assert not law[~allowed].any()
        assert law.sum() == pytest.approx(1)
        counts = np.bincount([int(spaces.to_policy(played[agent])) for played in draws], minlength=len(law))
        np.testing.assert_allclose(counts / len(draws), law, atol=0.06)
        np.testing.assert_array_equal(uniform.probabilities(obs, infos)[agent], allowed / allowed.sum())
    (one, *_) = obs
    part = policy.probabilities({one: obs[one]}, infos)
    assert list(part) == [one]
    np.testing.assert_array_equal(part[one], laws[one])


def test_an_agent_that_was_not_trained_is_refused_with_those_that_were(tmp_path):
    policy = load_policy(saved(team(), tmp_path))
    with pytest.raises(ConfigError, match=r"'agent_9'.* trained as agent_0, agent_1, agent_2"):
        policy({"agent_0": np.zeros(2), "agent_9": np.zeros(2)})


@pytest.mark.parametrize("mask", ["observation", "info"])
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
@pytest.mark.parametrize("player", ["trained", "deterministic", "random"])
def test_forbidden_actions_are_never_played(tmp_path, kind, mask, player):
    trainer = team(Kinds, kind=kind, mask=mask)
    if player == "random":
        policy = RandomPolicy(trainer.envs.groups)
    else:
        policy = load_policy(saved(trainer, tmp_path), deterministic=player == "deterministic")
    env = Kinds(kind, mask=mask, max_cycles=40)
    obs, infos = env.reset(seed=0)
    while env.agents:
        # The env refuses what is forbidden.
        obs, _, _, _, infos = env.step(policy(obs, infos))


def test_the_random_baseline_is_uniform_repeatable_and_respects_the_start_of_a_discrete_space():
    policy = RandomPolicy(team(Kinds, updates=0).envs.groups)
    obs = {"agent_0": np.zeros(2, np.float32)}
    policy.seed(1)
    trace = [policy(obs)["agent_0"] for _ in range(2000)]
    policy.seed(1)
    assert [policy(obs)["agent_0"] for _ in range(2000)] == trace
    values, counts = np.unique(trace, return_counts=True)
    assert values.tolist() == [2, 3, 4, 5]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_checkpoint_file_is_as_good_as_its_run_and_a_missing_one_is_named(tmp_path):
    trainer = team()
    run = saved(trainer, tmp_path)
    obs = observations(trainer)
    best = run / "checkpoints" / "best.safetensors"
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*best\.safetensors"):
        load_policy(run, checkpoint="best")
    shutil.copy(run / "checkpoints" / "latest.safetensors", best)
    assert load_policy(run)(obs) == load_policy(str(best))(obs) == load_policy(run, checkpoint="best")(obs)


def spoil(state, tensors, how):
    match how:
        case "no groups":
            del state["groups"]
        case "an unknown space":
            state["groups"][0]["action_space"] = {"kind": "Graph"}
        case "no network":
            state["network"] = None
        case "another size":
            state["network"]["hidden"] = [8, 8]
        case "missing weights":
            del tensors["agent/network/policy_head.weight"]
        case "no lanes":
            state["lanes"] = {}
        case "weights of another shape":
            tensors["agent/network/policy_head.bias"] = torch.zeros(1, 1, 7)


@pytest.mark.parametrize(
    "how",
    [
        "no groups",
        "an unknown space",
        "no network",
        "another size",
        "missing weights",
        "no lanes",
        "weights of another shape",
    ],
)
def test_a_checkpoint_that_does_not_hold_a_team_is_refused(tmp_path, how):
    path = saved(team(updates=0), tmp_path) / "checkpoints" / "latest.safetensors"
    tensors, state = load_checkpoint(path)
    state = json.loads(json.dumps(state))
    spoil(state, tensors, how)
    save_checkpoint(path, tensors, state)
    with pytest.raises(CorruptFileError):
        load_policy(tmp_path)


def test_loading_a_team_imports_nothing_of_its_env_and_needs_no_simulator(tmp_path):
    run = saved(team(), tmp_path)
    script = run_script(
        """
import sys
import numpy as np
from marl_tools import load_policy
policy = load_policy(sys.argv[1], seed=0)
print(policy({"agent_1": np.ones(2, np.float32)}))
foreign = ("tests.envs_for_tests", "tests.probe_envs", "mpe2", "pygame", "moviepy", "wandb", "supersuit")
print(sorted(set(foreign) & set(sys.modules)))
""",
        run,
    )
    assert script.returncode == 0, script.stderr
    action, loaded = script.stdout.splitlines()
    assert loaded == "[]"
    assert action == str(load_policy(run, seed=0)({"agent_1": np.ones(2, np.float32)}))


def test_a_team_plays_on_with_the_weights_it_was_given():
    trainer = team()
    networks = {name: learner.network for name, learner in trainer.learners.items()}
    policy = TeamPolicy(trainer.envs.groups, networks, deterministic=True)
    obs = observations(trainer)
    before = policy(obs)
    with torch.no_grad():
        networks["agent"].policy_head.bias[..., (before["agent_0"] + 1) % 3] += 100
    assert policy(obs)["agent_0"] == (before["agent_0"] + 1) % 3
