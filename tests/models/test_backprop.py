"""The passes that are written out against autograd: scores, gradients, sampling, and which networks they are for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from hypothesis import given, settings, strategies as st
from torch import Tensor

from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.backprop import AutogradPasses, Scores, WrittenPasses, passes_of
from marl_tools.models.heads import head_for
from marl_tools.models.networks import ActorCritic, NetworkConfig
from marl_tools.models.weights import LaneWeights


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(obs=None, action=None, lanes=2, *, critics=("reward",), seed=0, normalise=False, **config):
    """With weights large enough for policies and values far from their start."""
    net = ActorCritic(
        AgentSpaces(obs or gs.Box(-1, 1, (3,)), action or gs.Discrete(4)),
        lanes,
        NetworkConfig(hidden=config.pop("hidden", (8,)), **config),
        critics=critics,
        normalise_observations=normalise,
        generator=generator(seed),
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator(seed + 1)))
    return net


def both(net):
    written = passes_of(net)
    assert isinstance(written, WrittenPasses)
    return written, AutogradPasses(net, head_for(net.distribution))


@torch.no_grad()
def gradients(passes, weights: LaneWeights, obs, mask, actions, seed) -> tuple[Scores, Tensor]:
    """Scores of some rows, and the gradients that follow from random slopes in them."""
    weights.forget()
    scores = passes.score(passes.prepare(obs), mask, actions)
    rng = generator(seed)

    def slopes(like):
        # Below 1, as in training: autograd multiplies them with the lowest logarithm there is.
        return torch.rand(like.shape, generator=rng, dtype=like.dtype) - 0.5

    passes.backward(
        slopes(scores.log_probs),
        slopes(scores.entropies),
        {name: slopes(value) for name, value in scores.values.items()},
    )
    return scores, weights.gradients.clone()


@st.composite
def cases(draw):
    discrete = draw(st.booleans())
    outputs = draw(st.integers(1, 6))
    shape = draw(st.sampled_from([(1,), (5,), (2, 3)]))
    return {
        "obs": gs.Box(-1, 1, shape),
        "action": gs.Discrete(outputs) if discrete else gs.Box(-1, 1, (outputs,)),
        "lanes": draw(st.integers(1, 3)),
        "critics": draw(st.sampled_from([("reward",), ("reward", "cost")])),
        "hidden": tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))),
        "activation": draw(st.sampled_from(["tanh", "relu"])),
        "normalise": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**20)),
    }, {"rows": draw(st.integers(1, 12)), "masked": discrete and draw(st.booleans())}


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_scores_and_gradients_are_those_of_autograd(case):
    settings, batch = case
    net = network(**settings).double()
    obs_space, seed, lanes, rows = settings["obs"], settings["seed"], settings["lanes"], batch["rows"]
    # In double precision, where nothing but a wrong formula shows; `prepare` alone would go through floats.
    obs = 2 * torch.randn(lanes, rows, *obs_space.shape, generator=generator(seed + 2), dtype=torch.float64)
    net.prepare = (lambda x: net.obs_norm(x)) if net.obs_norm is not None else (lambda x: x)
    if net.obs_norm is not None:
        net.obs_norm.update(3 * obs + 1, torch.ones(lanes, rows))
    mask = None
    if batch["masked"]:
        mask = torch.rand(lanes, rows, settings["action"].n, generator=generator(seed + 3)) < 0.6
        mask[..., 0] = True
    with torch.no_grad():
        actions = net.distribution.sample(net.policy(obs, mask), generator(seed + 4))
    weights = LaneWeights(net)
    (scores, ours), (expected, theirs) = (
        gradients(passes, weights, obs, mask, actions, seed + 5) for passes in both(net)
    )
    torch.testing.assert_close(scores.log_probs, expected.log_probs)
    torch.testing.assert_close(scores.entropies, expected.entropies)
    assert scores.values.keys() == expected.values.keys()
    for name, values in scores.values.items():
        torch.testing.assert_close(values, expected.values[name])
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    assert theirs.any()


def test_gradients_add_up_until_they_are_forgotten():
    net = network()
    weights = LaneWeights(net)
    obs, actions = torch.randn(2, 5, 3, generator=generator()), torch.tensor([[0, 1, 2, 3, 0]] * 2)
    slopes = torch.rand(3, 2, 5, generator=generator(1))
    for passes in both(net):
        weights.forget()
        for times in (1, 2):
            with torch.no_grad():
                passes.score(passes.prepare(obs), None, actions)
                passes.backward(slopes[0], slopes[1], {"reward": slopes[2]})
            if times == 1:
                once = weights.gradients.clone()
        torch.testing.assert_close(weights.gradients, 2 * once)


@pytest.mark.parametrize("action", [gs.Discrete(4), gs.Box(-1, 1, (2,))], ids=["discrete", "continuous"])
@pytest.mark.parametrize("lanes", [1, 3])
def test_what_is_sampled_has_the_log_probability_that_is_scored(action, lanes):
    net = network(action=action, lanes=lanes)
    obs = torch.randn(lanes, 7, 3, generator=generator(1))
    noise = passes_of(net).noise((lanes, 7), generator(2))
    acted = []
    with torch.no_grad():
        for passes in both(net):
            inputs = passes.prepare(obs)
            actions, log_probs = passes.act(inputs, None, noise, generator(3))
            torch.testing.assert_close(passes.score(inputs, None, actions).log_probs, log_probs)
            acted.append(actions)
    torch.testing.assert_close(*acted)


def test_a_row_acts_the_same_with_its_noise_whoever_else_acts_in_the_same_call():
    net = network(lanes=1)
    passes = passes_of(net)
    obs, noise = torch.randn(1, 40, 3, generator=generator(1)), passes.noise((1, 40), generator(2))
    with torch.no_grad():
        whole, _ = passes.act(passes.prepare(obs), None, noise, generator())
        half, _ = passes.act(passes.prepare(obs[:, 20:]), None, noise[:, 20:], generator())
    assert torch.equal(whole[:, 20:], half)


def test_noise_makes_each_choice_as_likely_as_its_probability():
    net = network(lanes=1)
    passes = passes_of(net)
    obs = torch.ones(1, 1, 3)
    with torch.no_grad():
        probabilities = net.policy(obs).softmax(-1)[0, 0]
        inputs = passes.prepare(obs).expand(1, 20_000, 3)
        actions, _ = passes.act(inputs, None, passes.noise((1, 20_000), generator()), generator())
    shares = torch.bincount(actions[0], minlength=4) / 20_000
    torch.testing.assert_close(shares, probabilities, atol=0.015, rtol=0)


def test_what_is_masked_is_never_sampled_and_moves_no_weight():
    net = network(lanes=1, hidden=(4,))
    weights, passes = LaneWeights(net), passes_of(net)
    obs, mask = torch.randn(1, 300, 3, generator=generator()), torch.tensor([True, False, True, False])
    mask = mask.expand(1, 300, 4)
    with torch.no_grad():
        actions, log_probs = passes.act(
            passes.prepare(obs), mask, passes.noise((1, 300), generator()), generator()
        )
    assert set(actions.unique().tolist()) == {0, 2}
    assert torch.isfinite(log_probs).all()
    gradients(passes, weights, obs, mask, actions, 0)
    of_head = net.policy_head.bias.grad[0, 0]
    assert of_head[[1, 3]].tolist() == [0.0, 0.0]
    assert of_head[[0, 2]].all()


@pytest.mark.parametrize(
    ("obs", "action"),
    [
        (gs.Box(0, 1, (6, 6, 3)), gs.Discrete(2)),
        (gs.Box(0, 255, (6, 6, 1), np.uint8), gs.Box(-1, 1, (2,))),
        (gs.Box(-1, 1, (3,)), gs.MultiDiscrete([2, 3])),
        (gs.Box(-1, 1, (3,)), gs.MultiBinary(2)),
    ],
    ids=["grid", "pixels", "multi discrete", "bits"],
)
@pytest.mark.parametrize("lanes", [1, 3])
def test_other_networks_and_actions_go_through_autograd(obs, action, lanes):
    net = network(obs, action, lanes)
    weights, passes = LaneWeights(net), passes_of(net)
    assert isinstance(passes, AutogradPasses)
    rows = torch.rand(lanes, 4, *obs.shape, generator=generator())
    rows = (255 * rows).to(torch.uint8) if obs.dtype == np.uint8 else rows
    with torch.no_grad():
        noise = passes.noise((lanes, 4), generator(1))
        actions, log_probs = passes.act(passes.prepare(rows), None, noise, generator(2))
        scores, ours = gradients(passes, weights, rows, None, actions, 3)
    torch.testing.assert_close(scores.log_probs, log_probs)
    assert all(part.any() for part in weights.split(ours))


def test_a_distribution_that_samples_in_its_own_way_is_not_taken_for_its_parent():
    net = network()
    kind = type(net.distribution)
    net.distribution = type("Other", (kind,), {})(4)
    assert isinstance(passes_of(net), AutogradPasses)
