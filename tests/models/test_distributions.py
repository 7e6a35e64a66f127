"""Action distributions against torch.distributions, against counted samples, and under masks."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces as gs
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch.distributions import (
    Bernoulli as TorchBernoulli,
    Categorical as TorchCategorical,
    Independent,
    Normal as TorchNormal,
)

from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.distributions import (
    Bernoulli,
    Categorical,
    MultiCategorical,
    Normal,
    action_distribution,
    mask_logits,
)

SIZES = (2, 4, 3)
DISTRIBUTIONS = {
    "categorical": Categorical(5),
    "multi": MultiCategorical(SIZES),
    "bernoulli": Bernoulli(4),
    "normal": Normal(3),
}


def reference(name, params, actions):
    """Log-probability and entropy by torch.distributions, summed over the dimensions of an action."""
    match name:
        case "categorical":
            theirs = TorchCategorical(logits=params)
            return theirs.log_prob(actions), theirs.entropy()
        case "multi":
            parts = [TorchCategorical(logits=part) for part in params.split(SIZES, -1)]
            log_probs = [part.log_prob(actions[..., i]) for i, part in enumerate(parts)]
            return sum(log_probs), sum(part.entropy() for part in parts)
        case "bernoulli":
            theirs = Independent(TorchBernoulli(logits=params), 1)
            return theirs.log_prob(actions.to(params.dtype)), theirs.entropy()
        case _:
            mean, log_std = params.chunk(2, -1)
            theirs = Independent(TorchNormal(mean, log_std.exp()), 1)
            return theirs.log_prob(actions), theirs.entropy()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parameters(distribution, *shape, seed=0, scale=2.0):
    return scale * torch.randn(*shape, distribution.params, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.01, 1.0, 5.0, 50.0]))
def test_log_probabilities_entropies_and_gradients_are_those_of_torch(name, seed, scale):
    ours = DISTRIBUTIONS[name]
    if name == "normal":
        scale = min(scale, 5.0)
    params = parameters(ours, 2, 6, seed=seed, scale=scale).requires_grad_()
    actions = ours.sample(params.detach(), generator(seed))
    log_prob, entropy = ours.log_prob(params, actions), ours.entropy(params)
    expected = reference(name, params, actions)
    assert log_prob.shape == entropy.shape == (2, 6)
    torch.testing.assert_close(log_prob, expected[0])
    # torch clamps a Bernoulli's probability at float epsilon: only to that is its own entropy right.
    tolerance = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(entropy, expected[1], **tolerance)
    for mine, theirs in zip((log_prob, entropy), expected, strict=True):
        left, right = (torch.autograd.grad(x.sum(), params, retain_graph=True)[0] for x in (mine, theirs))
        torch.testing.assert_close(left, right, **tolerance)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_one_generator_seed_is_one_sample_and_the_global_seed_is_not_touched(name):
    ours = DISTRIBUTIONS[name]
    params = parameters(ours, 50)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    samples = [ours.sample(params, generator(seed)) for seed in (3, 3, 4)]
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])
    assert torch.equal(before, torch.get_rng_state())


def fits(counts: torch.Tensor, probabilities: torch.Tensor) -> bool:
    """Pearson's test at a level that a right sampler with this fixed seed passes."""
    expected = probabilities / probabilities.sum() * counts.sum()
    return stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


N = 40_000


def test_categorical_samples_come_as_often_as_they_should():
    logits = torch.tensor([0.0, 1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    samples = Categorical(5).sample(logits.expand(N, 5), generator())
    assert fits(torch.bincount(samples, minlength=5), logits.softmax(-1))


def test_multi_categorical_samples_come_as_often_as_they_should_and_independently():
    logits = torch.randn(5, generator=generator(1), dtype=torch.float64)
    samples = MultiCategorical((2, 3)).sample(logits.expand(N, 5), generator(2))
    joint = logits[:2].softmax(-1)[:, None] * logits[2:].softmax(-1)
    assert samples.shape == (N, 2)
    assert fits(torch.bincount(samples[:, 0] * 3 + samples[:, 1], minlength=6), joint.reshape(-1))


def test_bernoulli_samples_come_as_often_as_they_should_and_independently():
    logits = torch.tensor([0.3, -1.5], dtype=torch.float64)
    samples = Bernoulli(2).sample(logits.expand(N, 2), generator(3))
    p, q = logits.sigmoid().tolist()
    joint = torch.tensor([(1 - p) * (1 - q), (1 - p) * q, p * (1 - q), p * q], dtype=torch.float64)
    assert fits(torch.bincount(samples[:, 0] * 2 + samples[:, 1], minlength=4), joint)


def test_normal_samples_are_distributed_as_they_should():
    params = torch.tensor([1.0, -2.0, math.log(0.5), math.log(3.0)], dtype=torch.float64)
    samples = Normal(2).sample(params.expand(N, 4), generator(4)).numpy()
    for column, (mean, std) in enumerate([(1.0, 0.5), (-2.0, 3.0)]):
        assert stats.kstest(samples[:, column], stats.norm(mean, std).cdf).pvalue > 1e-3
    assert abs(stats.pearsonr(samples[:, 0], samples[:, 1]).statistic) < 0.02


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_mode_is_more_likely_than_any_sample(name):
    ours = DISTRIBUTIONS[name]
    params = parameters(ours, 40)
    best = ours.log_prob(params, ours.mode(params))
    for seed in range(20):
        assert (ours.log_prob(params, ours.sample(params, generator(seed))) <= best + 1e-12).all()


masks = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda mask: any(mask))
)


@settings(max_examples=25)
@given(mask=masks, seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 3.0, 1e4]))
def test_a_forbidden_choice_has_probability_0_is_never_drawn_and_leaves_gradients_finite(mask, seed, scale):
    allowed, ours = torch.tensor(mask), Categorical(len(mask))
    for dtype in (torch.float32, torch.float64):
        logits = parameters(ours, 300, seed=seed, scale=scale).to(dtype).requires_grad_()
        masked = mask_logits(logits, allowed.expand(300, -1))
        every = torch.arange(len(mask)).expand(300, -1)
        probabilities = torch.stack([ours.log_prob(masked, choice) for choice in every.T], -1).exp()
        assert (probabilities[:, ~allowed] == 0).all()
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(300, dtype=dtype))
        assert allowed[ours.sample(masked.detach(), generator(seed))].all()
        assert allowed[ours.mode(masked)].all()
        # The distribution over the allowed choices alone, as if the others were not there.
        alone = TorchCategorical(logits=logits[:, allowed])
        entropy = ours.entropy(masked)
        torch.testing.assert_close(entropy, alone.entropy(), rtol=1e-5, atol=1e-6 + 1e-7 * scale)
        drawn = ours.sample(masked.detach(), generator(seed))
        (ours.log_prob(masked, drawn) + entropy).sum().backward()
        assert torch.isfinite(logits.grad).all()
        assert (logits.grad[:, ~allowed] == 0).all()


def test_masks_of_several_choices_bind_each_choice():
    ours = MultiCategorical((2, 3))
    logits = parameters(ours, 500)
    mask = torch.tensor([True, False, False, True, True])
    masked = mask_logits(logits, mask.expand(500, -1))
    samples = ours.sample(masked, generator())
    assert (samples[:, 0] == 0).all()
    assert set(samples[:, 1].tolist()) == {1, 2}
    torch.testing.assert_close(ours.entropy(masked), TorchCategorical(logits=logits[:, 3:]).entropy())


def test_a_single_allowed_choice_is_certain():
    ours = Categorical(3)
    masked = mask_logits(
        torch.randn(10, 3, generator=generator()), torch.tensor([False, True, False]).expand(10, 3)
    )
    assert (ours.sample(masked, generator()) == 1).all()
    assert (ours.log_prob(masked, torch.ones(10)) == 0).all()
    assert (ours.entropy(masked) == 0).all()


def test_no_mask_changes_nothing():
    logits = torch.randn(4, 3, generator=generator())
    assert mask_logits(logits, None) is logits


@pytest.mark.parametrize("logit", [-1e4, -100.0, 100.0, 1e4])
def test_certain_bits_have_finite_figures_and_gradients(logit):
    params = torch.full((1, 2), logit, requires_grad=True)
    bits = Bernoulli(2)
    drawn = bits.sample(params.detach(), generator())
    assert (drawn == (logit > 0)).all()
    figures = bits.log_prob(params, drawn) + bits.entropy(params)
    figures.sum().backward()
    assert torch.isfinite(figures).all()
    assert torch.isfinite(params.grad).all()
    torch.testing.assert_close(figures, torch.zeros(1))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (gs.Discrete(4, start=2), Categorical(4)),
        (gs.MultiDiscrete([[2, 3], [4, 5]]), MultiCategorical((2, 3, 4, 5))),
        (gs.MultiBinary((2, 2)), Bernoulli(4)),
        (gs.Box(-1, 1, (2, 3)), Normal(6)),
    ],
)
def test_each_action_space_has_its_distribution_and_its_samples_are_actions_of_it(space, expected):
    spaces = AgentSpaces(gs.Box(0, 1, (1,)), space)
    distribution = action_distribution(spaces)
    assert distribution == expected
    samples = distribution.sample(torch.zeros(7, distribution.params), generator())
    assert samples.shape == (7, *spaces.action_shape)
    assert all(space.contains(action) for action in spaces.to_env(samples.numpy()))
