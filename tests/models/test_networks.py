"""Networks over lanes against the same networks one by one, the reading of image shapes, and PopArt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch.nn import functional as F

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.networks import (
    ActorCritic,
    CnnEncoder,
    LaneConv,
    LaneLinear,
    NetworkConfig,
    PopArtHead,
)

LANES = 3


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(obs, action, lanes=LANES, *, normalise=True, critics=("reward",), **config):
    return ActorCritic(
        AgentSpaces(obs, action),
        lanes,
        NetworkConfig(**config),
        critics=critics,
        normalise_observations=normalise,
        generator=generator(),
    )


def observations(obs, lanes, n, seed=1):
    x = torch.randn(lanes, n, *obs.shape, generator=generator(seed))
    return (x * 60 + 128).clamp(0, 255).to(torch.uint8) if obs.dtype == np.uint8 else x


def one_lane(whole: ActorCritic, lane: int, make) -> ActorCritic:
    """A network of one lane with the weights that ``whole`` has in ``lane``."""
    single = make()
    own = whole.state_dict()
    for name, value in single.state_dict().items():
        value.copy_(own[name][lane : lane + 1])
    return single


NETWORKS = {
    "discrete mlp": (gs.Box(-1, 1, (6,)), gs.Discrete(4), {}),
    "relu mlp of one layer": (
        gs.Box(-1, 1, (2, 3)),
        gs.MultiDiscrete([2, 3]),
        {"hidden": (8,), "activation": "relu"},
    ),
    "continuous mlp": (gs.Box(-1, 1, (5,)), gs.Box(-1, 1, (2,)), {}),
    "bits": (gs.Box(-1, 1, (5,)), gs.MultiBinary(3), {}),
    "grid": (gs.Box(0, 1, (7, 7, 3)), gs.Discrete(4), {}),
    "screen": (gs.Box(0, 255, (40, 44, 2), np.uint8), gs.Discrete(3), {"hidden": (16,)}),
    "channels first": (gs.Box(0, 255, (2, 9, 8), np.uint8), gs.Box(-1, 1, (2,)), {}),
    "flattened image": (gs.Box(0, 1, (6, 6, 3)), gs.Discrete(2), {"encoder": "mlp"}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_each_lane_is_the_same_network_alone(name):
    obs, action, config = NETWORKS[name]
    whole = network(obs, action, **config)
    x = observations(obs, LANES, 5)
    if whole.obs_norm is not None:
        whole.obs_norm.update(3 * x + 1, torch.ones(LANES, 5))
    whole.head().update(torch.randn(LANES, 9, generator=generator(2)) * 7 + 3, torch.ones(LANES, 9))
    params, values = whole(x)
    for lane in range(LANES):
        single = one_lane(whole, lane, lambda: network(obs, action, 1, **config))
        alone_params, alone_values = single(x[lane : lane + 1])
        torch.testing.assert_close(params[lane], alone_params[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values["reward"][lane], alone_values["reward"][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            whole.value(x)[lane], single.value(x[lane : lane + 1])[0], rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(whole.policy(x)[lane], params[lane])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_loss_of_one_lane_moves_no_weight_of_another(name):
    obs, action, config = NETWORKS[name]
    whole = network(obs, action, **config)
    params, values = whole(observations(obs, LANES, 4))
    (params[1].exp().sum() + values["reward"][1].exp().sum()).backward()
    for parameter_name, parameter in whole.named_parameters():
        # As the trainer views it to clip each lane by itself.
        norms = parameter.grad.view(LANES, -1).norm(dim=1)
        assert norms[[0, 2]].tolist() == [0.0, 0.0], parameter_name
        assert norms[1] > 0, parameter_name


@pytest.mark.parametrize("name", NETWORKS)
def test_no_rows_give_no_values_and_no_error(name):
    obs, action, config = NETWORKS[name]
    for lanes in (1, LANES):
        with torch.inference_mode():
            assert network(obs, action, lanes, **config).value(observations(obs, lanes, 0)).shape == (
                lanes,
                0,
            )


@pytest.mark.parametrize("name", NETWORKS)
def test_one_seed_is_one_network_and_lanes_differ(name):
    obs, action, config = NETWORKS[name]
    left, right = (network(obs, action, **config) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))
    weight = left.policy_head.weight
    assert not torch.equal(weight[0], weight[1])


def test_a_linear_layer_is_torchs_lane_by_lane():
    x = torch.randn(LANES, 7, 4, generator=generator(), dtype=torch.float64)
    layer = LaneLinear(LANES, 4, 5, 1.0, generator(1)).double()
    layer.bias.data.normal_(generator=generator(2))
    for lane in range(LANES):
        expected = F.linear(x[lane], layer.weight[lane].T, layer.bias[lane, 0])
        torch.testing.assert_close(layer(x)[lane], expected)
        one = LaneLinear(1, 4, 5, 1.0, generator()).double()
        one.weight.data, one.bias.data = layer.weight[lane : lane + 1].data, layer.bias[lane : lane + 1].data
        torch.testing.assert_close(one(x[lane : lane + 1])[0], expected)


def test_a_convolution_is_torchs_lane_by_lane():
    x = torch.randn(5, LANES * 2, 9, 8, generator=generator(), dtype=torch.float64)
    layer = LaneConv(LANES, 2, 4, 3, 2, generator(1)).double()
    layer.bias.data.normal_(generator=generator(2))
    out = layer(x)
    for lane in range(LANES):
        expected = F.conv2d(x[:, 2 * lane : 2 * lane + 2], layer.weight[lane], layer.bias[lane], stride=2)
        torch.testing.assert_close(out[:, 4 * lane : 4 * lane + 4], expected)


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 5), (5, 8)])
def test_weights_start_orthogonal_in_each_lane(inputs, outputs):
    layer = LaneLinear(LANES, inputs, outputs, 2.0, generator())
    for weight in layer.weight.double():
        small = weight.T @ weight if outputs < inputs else weight @ weight.T
        torch.testing.assert_close(
            small, 4.0 * torch.eye(min(inputs, outputs), dtype=torch.float64), atol=1e-5, rtol=0
        )
    assert not layer.bias.any()


@pytest.mark.parametrize(
    ("shape", "channels", "last"),
    [
        ((84, 84, 4), 4, True),
        ((84, 84, 1), 1, True),
        ((210, 160, 3), 3, True),
        ((457, 120, 3), 3, True),
        ((7, 7, 3), 3, True),
        ((10, 12, 3), 3, True),
        ((3, 64, 64), 3, False),
        ((4, 84, 84), 4, False),
        ((1, 40, 60), 1, False),
        # More planes than pixels on a side, as in boards with a plane for each kind of piece.
        ((8, 8, 20), 20, True),
        ((20, 8, 8), 20, False),
        ((5, 5, 16), 16, True),
        ((16, 5, 5), 16, False),
        # Nothing tells: Gymnasium's own order.
        ((7, 7, 7), 7, True),
        ((9, 8, 9), 9, True),
    ],
)
def test_the_shape_of_an_image_says_where_its_channels_are(shape, channels, last):
    encoder = CnnEncoder(1, shape, NetworkConfig(hidden=(4,)), generator())
    assert (encoder.channels_last, encoder.convs[0].weight.shape[2]) == (last, channels)
    assert encoder(torch.zeros(1, 2, *shape)).shape == (1, 2, 4)


def test_channels_first_and_last_are_the_same_image():
    image = torch.randn(2, 3, 9, 8, 2, generator=generator())
    last = CnnEncoder(2, (9, 8, 2), NetworkConfig(), generator(1))
    first = CnnEncoder(2, (2, 9, 8), NetworkConfig(), generator(1))
    torch.testing.assert_close(last(image), first(image.permute(0, 1, 4, 2, 3)))


@pytest.mark.parametrize("shape", [(4, 4, 3), (3, 4, 9), (1, 1, 1)])
def test_an_image_too_small_to_convolve_is_flattened_unless_the_cnn_was_asked_for(shape):
    obs = gs.Box(0, 1, shape)
    params, _ = network(obs, gs.Discrete(2))(observations(obs, LANES, 2))
    assert params.shape == (LANES, 2, 2)
    with pytest.raises(ConfigError, match=r"are too small for the cnn: use encoder='mlp' or 'auto'"):
        network(obs, gs.Discrete(2), encoder="cnn")


@pytest.mark.parametrize("shape", [(5,), (5, 5), (2, 5, 5, 5)])
def test_the_cnn_needs_three_dimensions(shape):
    with pytest.raises(ConfigError, match="encoder='cnn' needs observations of 3 dimensions"):
        network(gs.Box(0, 1, shape), gs.Discrete(2), encoder="cnn")
    assert network(gs.Box(0, 1, shape), gs.Discrete(2)).policy(torch.zeros(LANES, 1, *shape)).shape[2] == 2


@pytest.mark.parametrize("hidden", [(), (64, 0)])
def test_layers_of_no_size_are_refused(hidden):
    with pytest.raises(ConfigError, match="hidden="):
        NetworkConfig(hidden=hidden)


def test_an_observation_of_a_single_number_can_be_learnt_from():
    spaces = AgentSpaces(gs.Box(-1, 1, ()), gs.Discrete(2))
    net = ActorCritic(spaces, 1, NetworkConfig(), generator=generator())
    assert net.value(torch.zeros(1, 4, *spaces.obs_shape)).shape == (1, 4)


def test_pixels_are_divided_by_255_and_floats_normalised_when_asked():
    pixels = network(gs.Box(0, 255, (4,), np.uint8), gs.Discrete(2))
    assert pixels.obs_norm is None
    as_floats = network(gs.Box(0, 1, (4,)), gs.Discrete(2), normalise=False)
    assert as_floats.obs_norm is None
    x = observations(gs.Box(0, 255, (4,), np.uint8), LANES, 5)
    torch.testing.assert_close(pixels.policy(x), as_floats.policy(x.float() / 255))
    normalised = network(gs.Box(0, 1, (4,)), gs.Discrete(2))
    y = x.float()
    normalised.obs_norm.update(y, torch.ones(LANES, 5))
    z = (y - y.mean(1, keepdim=True)) / y.std(1, correction=0, keepdim=True)
    torch.testing.assert_close(normalised.policy(y), as_floats.policy(z), rtol=1e-4, atol=1e-5)


def test_images_share_the_convolutions_and_flat_observations_share_nothing():
    image = network(gs.Box(0, 1, (7, 7, 3)), gs.Discrete(2), critics=("reward", "cost"))
    image.value(torch.ones(LANES, 1, 7, 7, 3), "cost").sum().backward()
    assert all(p.grad is not None for p in image.actor.parameters())
    assert all(p.grad is None for p in image.head("reward").parameters())
    flat = network(gs.Box(0, 1, (7,)), gs.Discrete(2), critics=("reward", "cost"))
    flat.value(torch.ones(LANES, 1, 7), "cost").sum().backward()
    for part in (flat.actor, flat.trunks["reward"], flat.head("reward")):
        assert all(p.grad is None for p in part.parameters())


def test_a_mask_reaches_the_logits_and_the_first_policy_is_nearly_uniform():
    net = network(gs.Box(-1, 1, (3,)), gs.Discrete(4))
    x = observations(gs.Box(-1, 1, (3,)), LANES, 6)
    assert (net.policy(x).softmax(-1) - 0.25).abs().max() < 0.02
    mask = torch.rand(LANES, 6, 4, generator=generator(3)) < 0.5
    mask[..., 0] = True
    for params in (net.policy(x, mask), net(x, mask)[0]):
        assert torch.equal(params.softmax(-1) > 0, mask)


class TestPopArt:
    def batches(self):
        for n, scale in enumerate((1.0, 300.0, 1e-2, 5.0)):
            returns = torch.randn(LANES, 20, generator=generator(n)) * scale + 40 * scale
            weights = (torch.rand(LANES, 20, generator=generator(n + 9)) < 0.7).float()
            weights[2] = 0 if n == 1 else weights[2]
            yield returns, weights

    def test_values_stay_where_they_were_when_the_statistics_move(self):
        head = PopArtHead(LANES, 8, generator())
        features = torch.randn(LANES, 30, 8, generator=generator(1))
        expected = head.denormalise(head(features))
        assert torch.equal(expected, head(features))
        for returns, weights in self.batches():
            std = head.norm.std.clone()
            head.update(returns, weights)
            assert not torch.equal(head.norm.std, std)
            torch.testing.assert_close(head.denormalise(head(features)), expected, rtol=1e-4, atol=2e-2)

    def test_its_statistics_are_those_of_the_returns_with_the_past_at_nine_tenths(self):
        head = PopArtHead(LANES, 8, generator())
        seen = []
        for returns, weights in self.batches():
            head.update(returns, weights)
            seen.append((returns.double().numpy(), weights.double().numpy()))
        for lane in range(LANES):
            own = [(r[lane], w[lane]) for r, w in seen if w[lane].any()]
            values = np.concatenate([r for r, _ in own])
            weights = np.concatenate([w * 0.9 ** (len(own) - 1 - i) for i, (_, w) in enumerate(own)])
            mean = np.average(values, weights=weights)
            std = np.sqrt(np.average((values - mean) ** 2, weights=weights))
            assert head.norm.mean[lane].item() == pytest.approx(mean, rel=1e-5)
            assert head.norm.std[lane].item() == pytest.approx(std, rel=1e-5)

    def test_a_shift_adds_each_lanes_offset_to_its_values(self):
        head = PopArtHead(LANES, 8, generator())
        features = torch.randn(LANES, 30, 8, generator=generator(1))
        offsets = torch.tensor([5.0, 0.0, -250.0])
        for returns, weights in self.batches():
            before = head.denormalise(head(features))
            head.shift(offsets)
            after = head.denormalise(head(features))
            torch.testing.assert_close(after, before + offsets[:, None], rtol=1e-5, atol=1e-3)
            head.update(returns, weights)

    def test_normalised_returns_have_mean_0_and_deviation_1(self):
        head = PopArtHead(1, 4, generator())
        returns = torch.randn(1, 500, generator=generator(2)) * 12 - 70
        head.update(returns, torch.ones(1, 500))
        normalised = (returns - head.norm.mean) / head.norm.std
        assert normalised.mean().item() == pytest.approx(0, abs=1e-4)
        assert normalised.std(correction=0).item() == pytest.approx(1, abs=1e-4)
