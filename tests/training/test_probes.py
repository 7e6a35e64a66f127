"""Learning probes: small envs whose values have a closed form, which only a right trainer finds.

Each of them is 8 steps long, and what it would take to fail is said with it.
"""

import numpy as np
import pytest

from marl_tools.models.networks import NetworkConfig
from marl_tools.training.ippo import IPPO, IPPOConfig
from tests.probe_envs import Probe, one_hot, vector

pytestmark = pytest.mark.slow

GAMMA = 0.9


def learn(updates, *, gamma=GAMMA, share="group", normalise=True, **probe):
    """A trainer after ``updates`` updates on a `Probe` of 4 copies, whose critic alone has anything to learn."""
    config = IPPOConfig(
        rollouts=20,
        learning_epochs=6,
        mini_batches=1,
        learning_rate=3e-2,
        gamma=gamma,
        gae_lambda=0.95,
        learning_rate_schedule="cosine",
        max_grad_norm=10.0,
        value_coef=1.0,
        share=share,
        normalise_observations=False,
        normalise_returns=normalise,
        network=NetworkConfig(hidden=(16,)),
    )
    trainer = IPPO(vector(Probe, 4, **probe), config, seed=0, total_frames=updates * 80)
    for _ in range(updates):
        trainer.update(trainer.collect())
    return trainer


def values(trainer, agent, phases):
    """The learnt value of each of an agent's phases."""
    learner = trainer.learners["agent"]
    obs = np.stack([one_hot(phase) for phase in phases])
    return learner.critics["reward"].values_of(obs, np.full(len(obs), learner.group.agents.index(agent)))


def dying(steps):
    """Value of each of the last ``steps`` steps before a death, at reward 1 a step."""
    return [(1 - GAMMA**left) / (1 - GAMMA) for left in range(steps, 0, -1)]


FOREVER = 1 / (1 - GAMMA)
both_shares = pytest.mark.parametrize("share", ["group", "none"])


@pytest.mark.parametrize("normalise", [True, False])
def test_const_a_team_that_is_only_ever_cut_off_values_the_endless_future(normalise):
    # Read as a termination, 8 steps of 0.05 are worth 0.23 on average.
    trainer = learn(140, gamma=0.99, normalise=normalise)
    assert values(trainer, "agent_0", [0]) == pytest.approx([5.0], abs=0.4)


@both_shares
def test_first_a_reward_at_the_start_is_worth_nothing_afterwards(share):
    # A bootstrap from the next episode's first observation keeps the later value above 0.
    trainer = learn(70, share=share, rewards=(1.0, *[0.0] * 7), phases={"agent_0": (0, 1), "agent_1": (2, 3)})
    for agent, first, later in (("agent_0", 0, 1), ("agent_1", 2, 3)):
        assert values(trainer, agent, [first, later]) == pytest.approx([1.0, 0.0], abs=0.05)


@both_shares
def test_death_the_value_of_a_mortal_ends_with_its_life_while_the_other_goes_on(share):
    # Bootstrapped, agent 1 would be worth as much as agent 0; trained on after its death, less at phase 4.
    trainer = learn(
        70,
        share=share,
        rewards=(1.0,) * 8,
        deaths={"agent_1": 4},
        phases={"agent_0": (0,), "agent_1": (1, 2, 3, 4)},
    )
    assert values(trainer, "agent_0", [0]) == pytest.approx([FOREVER], abs=0.3)
    assert values(trainer, "agent_1", [1, 2, 3, 4]) == pytest.approx(dying(4), abs=0.15)


@both_shares
def test_deathmix_whoever_is_cut_goes_on_and_whoever_dies_does_not_in_the_same_step(share):
    trainer = learn(
        70,
        share=share,
        n=4,
        rewards=(1.0,) * 8,
        deaths={"agent_1": 4, "agent_3": 8},
        cuts={"agent_2": 4},
        phases={
            "agent_0": (0,),
            "agent_1": (1, 2, 3, 4),
            "agent_2": (5,),
            "agent_3": (6, 6, 6, 6, 6, 7, 8, 9),
        },
    )
    assert values(trainer, "agent_0", [0]) == pytest.approx([FOREVER], abs=0.3)
    assert values(trainer, "agent_1", [1, 2, 3, 4]) == pytest.approx(dying(4), abs=0.15)
    assert values(trainer, "agent_2", [5]) == pytest.approx([FOREVER], abs=0.3)
    assert values(trainer, "agent_3", [7, 8, 9]) == pytest.approx(dying(3), abs=0.15)
