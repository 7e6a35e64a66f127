"""Action distributions against torch.distributions, against counted samples, and under masks."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces as gs
from hypothesis import given, settings, strategies as st
from scipy import integrate, stats
from torch.distributions import (
    Bernoulli as TorchBernoulli,
    Categorical as TorchCategorical,
    Independent,
    Normal as TorchNormal,
    RelaxedOneHotCategorical,
)

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.distributions import (
    ACTION_PDS,
    Argmax,
    Bernoulli,
    Categorical,
    GumbelSoftmax,
    Joint,
    MultiCategorical,
    Normal,
    action_distribution,
    check_action_pdtype,
    get_action_pd_cls,
    get_action_type,
    mask_logits,
)

SIZES = (2, 4, 3)
DISTRIBUTIONS = {
    "categorical": Categorical(5),
    "gumbel_softmax": GumbelSoftmax(5),
    "multi": MultiCategorical(SIZES),
    "bernoulli": Bernoulli(4),
    "normal": Normal(3),
}


def reference(name, params, actions):
    """Log-probability and entropy by torch.distributions, summed over the dimensions of an action."""
    match name:
        case "categorical" | "gumbel_softmax":
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
        (
            gs.Tuple([gs.Discrete(3), gs.Dict(a=gs.Box(-1, 1, (2,)), b=gs.MultiBinary(2))]),
            Joint((Categorical(3), Joint((Normal(2), Bernoulli(2)), ((2,), (2,)))), ((), (4,))),
        ),
        (
            gs.Tuple([gs.Discrete(3), gs.MultiDiscrete([2, 2])]),
            Joint((Categorical(3), MultiCategorical((2, 2))), ((), (2,))),
        ),
    ],
)
def test_each_action_space_has_its_distribution_and_its_samples_are_actions_of_it(space, expected):
    spaces = AgentSpaces(gs.Box(0, 1, (1,)), space)
    distribution = action_distribution(spaces)
    assert distribution == expected
    samples = distribution.sample(torch.zeros(7, distribution.params), generator())
    assert samples.shape == (7, *spaces.action_shape)
    assert all(space.contains(action) for action in spaces.to_env(samples.numpy()))


def test_the_parts_of_a_joint_action_are_drawn_and_scored_each_by_its_own():
    joint = Joint((Categorical(3), Normal(2), Bernoulli(2)), ((), (2,), (2,)))
    assert (joint.outputs, joint.free, joint.params) == (7, 2, 9)
    params = torch.randn(N, 9, generator=generator(), dtype=torch.float64)
    choice, bits = params[:, :3], params[:, 5:7]
    normal = torch.cat([params[:, 3:5], params[:, 7:]], -1)
    actions = joint.sample(params, generator(1))
    assert actions.shape == (N, 5)
    expected = (
        Categorical(3).log_prob(choice, actions[:, 0])
        + Normal(2).log_prob(normal, actions[:, 1:3])
        + Bernoulli(2).log_prob(bits, actions[:, 3:])
    )
    torch.testing.assert_close(joint.log_prob(params, actions), expected)
    entropy = Categorical(3).entropy(choice) + Normal(2).entropy(normal) + Bernoulli(2).entropy(bits)
    torch.testing.assert_close(joint.entropy(params), entropy)
    # The mean surprise of what is drawn is the entropy.
    gap = (-joint.log_prob(params, actions) - entropy).double()
    assert abs(float(gap.mean())) < 4 * float(gap.std()) / math.sqrt(N)
    assert (joint.log_prob(params, joint.mode(params)) >= joint.log_prob(params, actions) - 1e-9).all()


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), temperature=st.sampled_from([0.3, 1.0, 2.5]))
def test_relaxed_samples_lie_in_the_simplex_with_torchs_density_and_carry_gradients(seed, temperature):
    ours = GumbelSoftmax(4, temperature)
    params = parameters(ours, 6, seed=seed, scale=1.0).requires_grad_()
    points = ours.relaxed_sample(params, generator(seed))
    torch.testing.assert_close(points.sum(-1), torch.ones(6, dtype=torch.float64))
    theirs = RelaxedOneHotCategorical(torch.tensor(temperature, dtype=torch.float64), logits=params)
    inside = points.detach().clamp(min=1e-12)
    inside = inside / inside.sum(-1, keepdim=True)
    torch.testing.assert_close(ours.relaxed_log_prob(params, inside), theirs.log_prob(inside))
    (gradient,) = torch.autograd.grad(points[:, 0].sum(), params)
    assert (gradient[:, 0] > 0).all() or temperature < 1
    assert (gradient[:, 1:] <= 0).all()


def test_the_relaxed_density_integrates_to_1_and_its_greatest_entry_has_the_categorical_law():
    ours = GumbelSoftmax(2, 0.7)
    params = torch.tensor([0.4, -0.3], dtype=torch.float64)

    def p(x):
        return float(ours.relaxed_log_prob(params, torch.tensor([x, 1 - x], dtype=torch.float64)).exp())

    assert integrate.quad(p, 0, 1)[0] == pytest.approx(1, abs=1e-6)
    first = float(params.softmax(-1)[0])
    assert integrate.quad(p, 0.5, 1)[0] == pytest.approx(first, abs=1e-6)
    greatest = ours.relaxed_sample(params.expand(N, 2), generator(7)).argmax(-1)
    assert fits(torch.bincount(greatest, minlength=2), params.softmax(-1))


def test_argmax_always_takes_the_greatest_and_obeys_masks():
    ours = Argmax(4)
    logits = mask_logits(parameters(ours, 50), torch.tensor([True, False, True, True]).expand(50, -1))
    drawn = ours.sample(logits, generator())
    assert torch.equal(drawn, ours.mode(logits))
    assert torch.equal(drawn, logits.argmax(-1))
    assert (drawn != 1).all()
    assert (ours.log_prob(logits, drawn) == 0).all()
    assert (ours.log_prob(logits, (drawn + 1) % 4) == -math.inf).all()
    assert (ours.entropy(logits) == 0).all()
    assert not ours.trainable


@pytest.mark.parametrize(
    ("space", "kind", "names"),
    [
        (gs.Discrete(2), "discrete", ["Categorical", "Argmax", "GumbelSoftmax"]),
        (
            gs.Box(-1, 1, (2,)),
            "continuous",
            ["Normal", "Beta", "MultivariateNormal", "LogNormal", "Gumbel", "SquashedNormal"],
        ),
        (gs.MultiDiscrete([2, 2]), "multi_discrete", ["MultiCategorical"]),
        (gs.MultiBinary(2), "multi_binary", ["Bernoulli"]),
        (gs.Tuple([gs.Discrete(2)]), "composite", ["Joint"]),
    ],
)
def test_each_type_of_action_space_has_its_distributions_the_usual_one_first(space, kind, names):
    spaces = AgentSpaces(gs.Box(0, 1, (1,)), space)
    assert get_action_type(space) == spaces.action_type == kind
    assert list(ACTION_PDS[kind]) == names
    for default in (None, "default"):
        assert get_action_pd_cls(default, kind).__name__ == names[0]
        assert type(action_distribution(spaces, default)).__name__ == names[0]
    for name in names:
        distribution = action_distribution(spaces, name)
        assert type(distribution) is get_action_pd_cls(name, kind)
        assert distribution.params == distribution.outputs + distribution.free
        samples = distribution.sample(torch.zeros(5, distribution.params), generator())
        assert samples.shape == (5, *spaces.action_shape)
        assert distribution.log_prob(torch.zeros(5, distribution.params), samples).shape == (5,)
        assert all(space.contains(action) for action in spaces.to_env(samples.numpy()))
        check_action_pdtype(name)


def test_an_unknown_name_lists_the_choices_and_the_nearest():
    with pytest.raises(
        ConfigError, match=r"'Betta'.* for continuous actions.*default, Normal, Beta, Multi.*mean 'Beta'\?"
    ):
        get_action_pd_cls("Betta", "continuous")
    # One that another type of action has is no choice here.
    with pytest.raises(
        ConfigError, match=r"'Beta'.* for discrete actions.*Categorical, Argmax, GumbelSoftmax\.$"
    ):
        get_action_pd_cls("Beta", "discrete")
    with pytest.raises(ConfigError, match=r"action_type='discret'.*mean 'discrete'"):
        get_action_pd_cls(None, "discret")
    with pytest.raises(ConfigError, match="mean 'Categorical'"):
        check_action_pdtype("categorical")
