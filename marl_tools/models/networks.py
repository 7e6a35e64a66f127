"""Actor-critic networks over *lanes*: L independent networks of one shape, evaluated in one batched call.

Inputs are (L, N, *obs_shape). One lane is a network that all agents of a group share; a lane per agent gives each its
own parameters, still in one matrix product. Initialisation follows Andrychowicz et al. 2021 (2006.05990):
orthogonal, gain 0.01 at the policy's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentSpaces
from marl_tools.models.distributions import action_distribution, mask_logits
from marl_tools.models.normalise import RunningNorm

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}
# (channels, kernel, stride) a layer: Mnih et al. 2015 for screens, 3x3 for small grids.
_SCREEN = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
_GRID = ((16, 3, 1), (32, 3, 1))
_SCREEN_SIDE, _GRID_SIDE = 36, 5
# Weight of the past in the statistics of returns, per update: about ten rollouts are remembered.
_RETURN_DECAY = 0.9


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Shape of the networks.

    Args:
        encoder: "mlp" flattens, "cnn" convolves (H, W, C) or (C, H, W) images; "auto" takes the cnn for 3-D observations
            of at least 5x5 pixels.
        hidden: sizes of the hidden layers.
        activation: between the layers.
    """

    encoder: Literal["auto", "mlp", "cnn"] = "auto"
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden={self.hidden}: give at least one layer, each of size 1 or more")


class LaneLinear(nn.Module):
    """L linear layers side by side: (L, N, inputs) to (L, N, outputs)."""

    def __init__(
        self, lanes: int, inputs: int, outputs: int, gain: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            _orthogonal((lanes, outputs, inputs), gain, generator).transpose(1, 2).contiguous()
        )
        self.bias = nn.Parameter(torch.zeros(lanes, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class LaneConv(nn.Module):
    """L convolutions side by side, as one grouped convolution over (N, L * channels, H, W)."""

    def __init__(
        self, lanes: int, inputs: int, outputs: int, kernel: int, stride: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        flat = _orthogonal((lanes, outputs, inputs * kernel * kernel), math.sqrt(2), generator)
        self.weight = nn.Parameter(flat.reshape(lanes, outputs, inputs, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(lanes, outputs))
        self.lanes, self.stride = lanes, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight.flatten(0, 1), self.bias.flatten(), self.stride, groups=self.lanes)


class MlpEncoder(nn.Module):
    """Hidden layers over the flattened observation."""

    def __init__(self, lanes: int, inputs: int, config: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        sizes = (inputs, *config.hidden)
        gain = math.sqrt(2)
        self.layers = nn.ModuleList(LaneLinear(lanes, a, b, gain, generator) for a, b in pairwise(sizes))
        self.activation = config.activation
        self.features = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        x, activate = x.flatten(2), _ACTIVATIONS[self.activation]
        for layer in self.layers:
            x = activate(layer(x))
        return x

    def linears(self) -> list[LaneLinear]:
        return [layer for layer in self.layers if isinstance(layer, LaneLinear)]


class CnnEncoder(nn.Module):
    """Convolutions over an image, then the hidden layers of the config. Channels first or last is read off the shape."""

    def __init__(
        self, lanes: int, shape: tuple[int, ...], config: NetworkConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.channels_last = _channels_last(shape)
        height, width, channels = shape if self.channels_last else (*shape[1:], shape[0])
        if min(height, width) < _GRID_SIDE:
            raise ConfigError(
                f"observations of shape {shape} are too small for the cnn: use encoder='mlp' or 'auto'"
            )
        self.convs = nn.ModuleList()
        for outputs, kernel, stride in _SCREEN if min(height, width) >= _SCREEN_SIDE else _GRID:
            self.convs.append(LaneConv(lanes, channels, outputs, kernel, stride, generator))
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            channels = outputs
        self.mlp = MlpEncoder(lanes, channels * height * width, config, generator)
        self.features = self.mlp.features

    def forward(self, x: Tensor) -> Tensor:
        lanes = len(x)
        x = x.permute(1, 0, 4, 2, 3) if self.channels_last else x.transpose(0, 1)
        x = x.flatten(1, 2)
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.mlp(x.unflatten(1, (lanes, -1)).transpose(0, 1))


class PopArtHead(nn.Module):
    """A value head that learns normalised targets; its outputs do not move when the statistics do.

    References:
        van Hasselt et al. 2016, Learning values across many orders of magnitude (1602.07714).
    """

    def __init__(self, lanes: int, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = LaneLinear(lanes, features, 1, 1.0, generator)
        self.norm = RunningNorm(lanes, (), decay=_RETURN_DECAY)

    def forward(self, features: Tensor) -> Tensor:
        """Normalised values, shape (L, N)."""
        return self.linear(features).squeeze(-1)

    def denormalise(self, values: Tensor) -> Tensor:
        return values * self.norm.std + self.norm.mean

    @torch.no_grad()
    def shift(self, offsets: Tensor) -> None:
        """Add one offset a lane, shape (L,), to every denormalised value."""
        self.linear.bias.add_(offsets[:, None, None] / self.norm.std.unsqueeze(-1))

    @torch.no_grad()
    def update(self, returns: Tensor, weights: Tensor) -> None:
        """Take in returns (L, N) and keep every denormalised output where it was."""
        mean, std = self.norm.mean.clone(), self.norm.std.clone()
        self.norm.update(returns, weights)
        new_mean, new_std = self.norm.mean, self.norm.std
        self.linear.weight.mul_((std / new_std).unsqueeze(-1))
        self.linear.bias.mul_(std.unsqueeze(-1)).add_((mean - new_mean).unsqueeze(-1)).div_(
            new_std.unsqueeze(-1)
        )


class ActorCritic(nn.Module):
    """Policy and critics of one group of agents; ``critics`` names what is predicted, reward first.

    Flat observations get separate trunks for the actor and each critic; images share the convolutions. Float
    observations are normalised by running statistics when asked, uint8 ones divided by 255.
    """

    def __init__(
        self,
        spaces: AgentSpaces,
        lanes: int,
        config: NetworkConfig,
        *,
        critics: Sequence[str] = ("reward",),
        normalise_observations: bool = True,
        action_pdtype: str | None = None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.lanes = lanes
        self.distribution = action_distribution(spaces, action_pdtype)
        shape, pixels = spaces.obs_shape, spaces.obs_dtype == "uint8"
        image = config.encoder == "cnn" or (config.encoder == "auto" and _is_image(shape))
        if image and len(shape) != 3:
            raise ConfigError(
                f"encoder='cnn' needs observations of 3 dimensions, not {shape}: use 'mlp' or 'auto'"
            )
        self.scale = 1.0 / 255.0 if pixels else 1.0
        self.obs_norm = RunningNorm(lanes, shape) if normalise_observations and not pixels else None

        def encoder() -> MlpEncoder | CnnEncoder:
            if image:
                return CnnEncoder(lanes, shape, config, generator)
            return MlpEncoder(lanes, math.prod(shape), config, generator)

        self.actor = encoder()
        # Empty where the critics look through the actor's convolutions.
        self.trunks = nn.ModuleDict({} if image else {name: encoder() for name in critics})
        features, free = self.actor.features, self.distribution.free
        self.policy_head = LaneLinear(lanes, features, self.distribution.outputs, 0.01, generator)
        self.value_heads = nn.ModuleDict({name: PopArtHead(lanes, features, generator) for name in critics})
        # Of a distribution's own, whatever is observed: log standard deviations, as a rule.
        self.free_params = nn.Parameter(torch.zeros(lanes, 1, free)) if free else None

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Distribution parameters (L, N, params) and each critic's *normalised* values (L, N)."""
        x = self.prepare(obs)
        features = self.actor(x)
        values = {
            name: head(self.trunks[name](x) if self.trunks else features)
            for name, head in self.value_heads.items()
        }
        return self._policy_params(features, mask), values

    def policy(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Distribution parameters alone, (L, N, params)."""
        return self._policy_params(self.actor(self.prepare(obs)), mask)

    def value(self, obs: Tensor, critic: str = "reward") -> Tensor:
        """One critic's values in units of return, (L, N)."""
        trunk = self.trunks[critic] if self.trunks else self.actor
        head = self.head(critic)
        return head.denormalise(head(trunk(self.prepare(obs))))

    def head(self, critic: str = "reward") -> PopArtHead:
        head = self.value_heads[critic]
        assert isinstance(head, PopArtHead)
        return head

    def _policy_params(self, features: Tensor, mask: Tensor | None) -> Tensor:
        outputs = self.policy_head(features)
        if self.free_params is not None:
            return torch.cat([outputs, self.free_params.expand(-1, outputs.shape[1], -1)], -1)
        return mask_logits(outputs, mask)

    def prepare(self, obs: Tensor) -> Tensor:
        """Observations as the encoders take them: floats, normalised or divided by 255."""
        x = obs.float()
        if self.obs_norm is not None:
            return self.obs_norm(x)
        return x if self.scale == 1.0 else x * self.scale


def _is_image(shape: tuple[int, ...]) -> bool:
    if len(shape) != 3:
        return False
    sides = shape[:2] if _channels_last(shape) else shape[1:]
    return min(sides) >= _GRID_SIDE


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether the last of three axes holds the channels: two equal sides tell, else the shorter of the outer axes."""
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return first == middle
    return last <= first


def _orthogonal(shape: tuple[int, ...], gain: float, generator: torch.Generator) -> Tensor:
    """(lanes, rows, columns) with each lane orthogonal by itself."""
    weight = torch.empty(shape)
    for lane in weight:
        nn.init.orthogonal_(lane, gain, generator=generator)
    return weight
