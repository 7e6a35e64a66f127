"""Distributions over numbers against SciPy and torch.distributions: by integration, by sampling, and at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch import distributions as td

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.continuous import Beta, Gumbel, LogNormal, MultivariateNormal, Normal, SquashedNormal
from marl_tools.models.distributions import action_distribution

N = 20_000
LOW = -1.0
# Each with its support, in one dimension.
LINE = {
    "normal": (Normal(1), (-math.inf, math.inf)),
    "multivariate": (MultivariateNormal(1), (-math.inf, math.inf)),
    "log": (LogNormal(1, (LOW,)), (LOW, math.inf)),
    "gumbel": (Gumbel(1), (-math.inf, math.inf)),
    "squashed": (SquashedNormal(1), (-1.0, 1.0)),
    "beta": (Beta(1), (-1.0, 1.0)),
}
# Three dimensions, for what is summed over them.
SPACE = {
    "normal": Normal(3),
    "multivariate": MultivariateNormal(3),
    "log": LogNormal(3, (-1.0, 0.0, 2.0)),
    "gumbel": Gumbel(3),
    "squashed": SquashedNormal(3),
    "beta": Beta(3),
}
PARAMS = [(0.0, 0.0), (0.7, -0.6), (-1.2, 0.4)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def scipy_law(name, first, second):
    scale = math.exp(second)
    match name:
        case "normal" | "multivariate":
            return stats.norm(first, scale)
        case "log":
            return stats.lognorm(scale, LOW, math.exp(first))
        case "gumbel":
            return stats.gumbel_r(first, scale)
        case "beta":
            a, b = (1 + math.log1p(math.exp(raw)) for raw in (first, second))
            return stats.beta(a, b, -1, 2)
    return None


def density(distribution, params, x):
    actions = torch.as_tensor(x, dtype=torch.float64).reshape(-1, 1)
    return distribution.log_prob(params.expand(len(actions), -1), actions).exp().numpy()


def grid(low, high):
    """Points that fill a range, the whole line too, and the width that each stands for: for the midpoint rule."""
    u = (np.arange(200_000) + 0.5) / 200_000
    if high < math.inf:
        return low + (high - low) * u, np.full_like(u, (high - low) / len(u))
    if low > -math.inf:
        return low + u / (1 - u), 1 / (1 - u) ** 2 / len(u)
    return np.log(u / (1 - u)), 1 / (u * (1 - u)) / len(u)


@pytest.mark.parametrize("pair", PARAMS)
@pytest.mark.parametrize("name", LINE)
def test_the_density_integrates_to_1_and_to_its_entropy(name, pair):
    distribution, support = LINE[name]
    params = torch.tensor(pair, dtype=torch.float64)
    x, width = grid(*support)
    p = density(distribution, params, x)
    assert (p * width).sum() == pytest.approx(1, abs=1e-4)
    surprise = -np.log(p, out=np.zeros_like(p), where=p > 0)
    assert float(distribution.entropy(params)) == pytest.approx((p * surprise * width).sum(), abs=3e-4)


@pytest.mark.parametrize("pair", PARAMS)
@pytest.mark.parametrize("name", LINE)
def test_samples_fall_as_the_density_says(name, pair):
    distribution, (low, _) = LINE[name]
    params = torch.tensor(pair, dtype=torch.float64)
    samples = distribution.sample(params.expand(N, -1), generator(3)).numpy()[:, 0]
    law = scipy_law(name, *pair)
    if law is None:
        edges = np.linspace(low, 1.0, 2001)
        middle = density(distribution, params, 0.5 * (edges[1:] + edges[:-1])) * np.diff(edges)
        below = np.concatenate([[0], np.cumsum(middle)]) / middle.sum()

        def cdf(x):
            return np.interp(x, edges, below)
    else:
        cdf = law.cdf
        points = law.ppf([0.01, 0.3, 0.6, 0.99])
        np.testing.assert_allclose(density(distribution, params, points), law.pdf(points), rtol=1e-9)
        assert float(distribution.entropy(params)) == pytest.approx(float(law.entropy()), abs=1e-6)
    assert stats.kstest(samples, cdf).pvalue > 1e-3


def torch_law(name, params):
    first, second = params.chunk(2, -1)
    normal = td.Normal(first, second.exp())
    match name:
        case "normal":
            return td.Independent(normal, 1)
        case "log":
            shift = td.AffineTransform(torch.tensor(SPACE["log"].low), 1.0)
            return td.TransformedDistribution(td.Independent(normal, 1), [td.ExpTransform(), shift])
        case "gumbel":
            return td.Independent(td.Gumbel(first, second.exp()), 1)
        case "squashed":
            return td.TransformedDistribution(td.Independent(normal, 1), [td.TanhTransform(cache_size=1)])
        case "beta":
            a, b = (1 + torch.nn.functional.softplus(raw) for raw in (first, second))
            return td.TransformedDistribution(
                td.Independent(td.Beta(a, b), 1), [td.AffineTransform(-1.0, 2.0)]
            )
    raise AssertionError(name)


@pytest.mark.parametrize("name", [name for name in SPACE if name != "multivariate"])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 1.0]))
def test_joint_log_probabilities_and_their_gradients_are_those_of_torch(name, seed, scale):
    ours = SPACE[name]
    params = scale * torch.randn(4, ours.params, generator=generator(seed), dtype=torch.float64)
    params.requires_grad_()
    actions = ours.sample(params.detach(), generator(seed))
    mine, theirs = ours.log_prob(params, actions), torch_law(name, params).log_prob(actions)
    assert mine.shape == ours.entropy(params).shape == (4,)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    left, right = (torch.autograd.grad(x.sum(), params, retain_graph=True)[0] for x in (mine, theirs))
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)
    # Independent dimensions: the joint entropy is the sum of each one's.
    if name != "log":
        alone = type(ours)(1)
        parts = [torch.stack([half[:, i] for half in params.chunk(2, -1)], -1) for i in range(3)]
        torch.testing.assert_close(ours.entropy(params), sum(alone.entropy(part) for part in parts))


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_the_multivariate_normal_is_that_of_torch_with_its_covariance(seed):
    ours = SPACE["multivariate"]
    assert (ours.outputs, ours.free, ours.params) == (3, 6, 9)
    params = torch.randn(5, 9, generator=generator(seed), dtype=torch.float64).requires_grad_()
    factor = torch.zeros(5, 3, 3, dtype=torch.float64)
    for row, column, index in [(1, 0, 6), (2, 0, 7), (2, 1, 8)]:
        factor[:, row, column] = params[:, index]
    factor = factor + params[:, 3:6].exp().diag_embed()
    theirs = td.MultivariateNormal(params[:, :3], scale_tril=factor)
    actions = ours.sample(params.detach(), generator(seed))
    mine = ours.log_prob(params, actions)
    torch.testing.assert_close(mine, theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(params), theirs.entropy())
    left, right = (
        torch.autograd.grad(x.sum(), params, retain_graph=True)[0] for x in (mine, theirs.log_prob(actions))
    )
    torch.testing.assert_close(left, right)


def test_multivariate_samples_have_the_covariance_of_the_factor():
    params = torch.tensor([1.0, -2.0, math.log(0.5), math.log(2.0), 1.5], dtype=torch.float64)
    samples = MultivariateNormal(2).sample(params.expand(N, -1), generator()).numpy()
    factor = np.array([[0.5, 0.0], [1.5, 2.0]])
    np.testing.assert_allclose(np.cov(samples.T), factor @ factor.T, rtol=0.05)
    white = np.linalg.solve(factor, (samples - [1.0, -2.0]).T)
    for column in white:
        assert stats.kstest(column, stats.norm.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", [name for name in SPACE if name != "squashed"])
def test_no_sample_is_more_likely_than_the_mode(name):
    ours = SPACE[name]
    params = torch.randn(30, ours.params, generator=generator(5), dtype=torch.float64)
    best = ours.log_prob(params, ours.mode(params))
    for seed in range(20):
        assert (ours.log_prob(params, ours.sample(params, generator(seed))) <= best + 1e-9).all()


def test_the_squashed_normals_mode_is_its_median():
    ours = SquashedNormal(1)
    params = torch.tensor([0.8, 0.3])
    samples = ours.sample(params.expand(N, -1), generator())
    assert float((samples < ours.mode(params)).double().mean()) == pytest.approx(0.5, abs=0.015)


@pytest.mark.parametrize("name", SPACE)
def test_one_seed_is_one_sample_and_the_global_seed_is_not_touched(name):
    ours = SPACE[name]
    params = torch.randn(9, ours.params, generator=generator())
    before = torch.get_rng_state()
    first, again, other = (ours.sample(params, generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", SPACE)
@pytest.mark.parametrize("size", [0.0, 8.0, 40.0])
def test_far_out_parameters_and_actions_of_others_leave_figures_and_gradients_finite(name, size):
    """A row that is only padding is scored with another agent's parameters, in float32."""
    ours = SPACE[name]
    params = size * torch.randn(200, ours.params, generator=generator(1))
    # Scales are learned slowly and stay moderate; what the network puts out may be anything.
    params[:, ours.outputs :] = params[:, ours.outputs :].clamp(-3, 3)
    params.requires_grad_()
    for actions in (ours.sample(params.detach(), generator(2)), ours.mode(-params.detach())):
        assert torch.isfinite(actions).all()
        figures = torch.stack([ours.log_prob(params, actions), ours.entropy(params)])
        (gradient,) = torch.autograd.grad(figures.double().sum(), params)
        assert torch.isfinite(figures).all()
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["Beta", "SquashedNormal"])
def test_bounded_distributions_fill_the_box_inside_its_bounds(name):
    space = gs.Box(np.array([-2.0, 5.0], np.float32), np.array([2.0, 5.5], np.float32))
    spaces = AgentSpaces(space, space)
    ours = action_distribution(spaces, name)
    params = 2 * torch.randn(2000, ours.params, generator=generator())
    actions = np.stack(spaces.to_env(ours.sample(params, generator()).numpy()))
    assert ((actions >= space.low) & (actions <= space.high)).all()
    np.testing.assert_allclose(actions.min(0), space.low, atol=0.1)
    np.testing.assert_allclose(actions.max(0), space.high, atol=0.1)


@pytest.mark.parametrize("name", ["Beta", "SquashedNormal"])
def test_a_bounded_distribution_is_refused_for_a_box_that_lacks_a_bound(name):
    spaces = AgentSpaces(gs.Box(0, 1, (1,)), gs.Box(0, np.inf, (2,)))
    with pytest.raises(ConfigError, match=rf"action_pdtype='{name}' needs bounds.*Box\(0.0, inf.*'Normal'"):
        action_distribution(spaces, name)


def test_the_log_normal_starts_at_the_least_action_of_each_dimension():
    low = np.array([-3.0, 2.0, -np.inf, -np.inf], np.float32)
    space = gs.Box(low, np.array([3.0, np.inf, 4.0, np.inf], np.float32))
    ours = action_distribution(AgentSpaces(space, space), "LogNormal")
    assert ours == LogNormal(4, (-1.0, 2.0, 0.0, 0.0))
    samples = ours.sample(torch.randn(500, 8, generator=generator()), generator())
    assert (samples > torch.tensor(ours.low)).all()
