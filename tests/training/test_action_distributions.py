"""IPPO with every action distribution that has a gradient: it learns, it is saved, and what cannot learn is refused."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.networks import NetworkConfig
from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint
from marl_tools.training.ippo import IPPO, IPPOConfig
from marl_tools.training.policy import load_policy
from tests.envs_for_tests import Team
from tests.probe_envs import vector

BOX = gs.Box(np.array([-2.0, 10.0], np.float32), np.array([2.0, 11.0], np.float32))
PARTS = gs.Dict(go=gs.Discrete(3), aim=gs.Tuple([gs.Box(0, 4, (1,), np.float32), gs.MultiBinary(1)]))
# The kind of action, the distribution, and what is rewarded.
LEARNERS = {
    "GumbelSoftmax": (gs.Discrete(4, start=1), 3),
    "Normal": (BOX, np.array([1.0, 10.25])),
    "Beta": (BOX, np.array([1.0, 10.25])),
    "MultivariateNormal": (BOX, np.array([1.0, 10.25])),
    "LogNormal": (BOX, np.array([1.0, 10.25])),
    "Gumbel": (BOX, np.array([1.0, 10.25])),
    "SquashedNormal": (BOX, np.array([1.0, 10.25])),
    "Joint": (PARTS, {"aim": (np.array([3.0]), np.array([1])), "go": 2}),
}


class Target(Team):
    """Reward is minus the squared distance of one's action, as a vector, from that of a goal."""

    def __init__(self, name: str) -> None:
        super().__init__(2, max_cycles=8)
        space, goal = LEARNERS[name]
        self._action_spaces = dict.fromkeys(self.possible_agents, space)
        self.spaces = AgentSpaces(gs.Box(0, 1, (1,)), space)
        self._goal = self.spaces.one_hot(goal)

    def step(self, actions):
        obs, rewards, terminations, truncations, infos = super().step(actions)
        for agent in rewards:
            miss = self.spaces.one_hot(actions[agent]) - self._goal
            rewards[agent] = -float(miss @ miss)
        return obs, rewards, terminations, truncations, infos


def trainer(name, action_pdtype=None, **changes):
    config = IPPOConfig(
        rollouts=24,
        mini_batches=2,
        learning_rate=0.03,
        entropy_coef=0.0,
        action_pdtype=action_pdtype or name,
        network=NetworkConfig(hidden=(8,)),
        **changes,
    )
    return IPPO(vector(Target, 2, name=name), config, seed=0, total_frames=10_000)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_team_learns_with_every_distribution(name, tmp_path):
    run = trainer(name)
    earned = []
    for _ in range(15):
        rollout = run.collect()
        earned.append(float(rollout.groups["agent"].rewards.mean()))
        figures = run.update(rollout)["agent"]
        assert all(np.isfinite(value) for value in figures.values()), figures
    assert np.mean(earned[-3:]) > 0.5 * earned[0], earned

    # What was learned is played from the checkpoint.
    path = save_checkpoint_of(run, tmp_path)
    policy = load_policy(path, deterministic=True)
    network, theirs = run.learners["agent"].network, policy.networks["agent"]
    assert theirs.distribution == network.distribution
    spaces = run.envs.groups[0].spaces
    obs = {agent: spaces.observation_space.sample() for agent in run.envs.groups[0].agents}
    action = policy(obs)["agent_0"]
    assert spaces.action_space.contains(action)
    goal = spaces.one_hot(LEARNERS[name][1])
    assert abs(spaces.one_hot(action) - goal).max() < 0.6


def save_checkpoint_of(run, folder):
    path = folder / "latest.safetensors"
    save_checkpoint(path, *run.state())
    return path


@pytest.mark.parametrize("name", ["MultivariateNormal", "Beta", "Joint"])
def test_a_trainer_goes_on_from_its_checkpoint_to_the_bit(name, tmp_path):
    old = trainer(name, share="none")
    old.update(old.collect())
    new = trainer(name, share="none")
    new.load(*load_checkpoint(save_checkpoint_of(old, tmp_path)))
    for run in (old, new):
        run.update(run.collect())
    left, right = old.state()[0], new.state()[0]
    assert left.keys() == right.keys()
    for key, tensor in left.items():
        assert torch.equal(tensor, right[key]), key


def test_a_checkpoint_with_another_distribution_is_refused_with_both():
    tensors, state = trainer("Normal").state()
    with pytest.raises(ConfigError, match=r"distributions differ.*'Normal'.*'SquashedNormal'"):
        trainer("Normal", "SquashedNormal").load(tensors, state)


def test_a_name_that_no_action_type_has_is_refused_by_the_config():
    with pytest.raises(ConfigError, match=r"action_pdtype='Betta'.*mean 'Beta'"):
        IPPOConfig(action_pdtype="Betta")
    assert IPPOConfig(action_pdtype="default") != IPPOConfig(action_pdtype="Beta")


def test_a_name_of_another_action_type_is_refused_with_the_choices_when_the_team_is_made():
    with pytest.raises(ConfigError, match=r"action_pdtype='Beta'.*discrete.*Categorical"):
        trainer("GumbelSoftmax", "Beta")


def test_argmax_has_no_gradient_and_is_refused_for_training():
    with pytest.raises(ConfigError, match=r"action_pdtype='Argmax' has no gradient.*deterministic"):
        trainer("GumbelSoftmax", "Argmax")
