"""Passes of an actor-critic forward and back: written out for MLPs, since autograd takes half as long again; else by autograd.

Both kinds add to the gradients of the network's parameters, which `models.weights.LaneWeights` holds ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from marl_tools.models.distributions import mask_logits
from marl_tools.models.heads import Head, head_for
from marl_tools.models.networks import ActorCritic, LaneLinear, MlpEncoder


class _Activation(NamedTuple):
    """Both in place: the function, and the slope before it from that behind it and the function's output."""

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


_ACTIVATIONS = {
    "tanh": _Activation(
        torch.tanh_, lambda slope, out: torch.ops.aten.tanh_backward.grad_input(slope, out, grad_input=slope)
    ),
    "relu": _Activation(
        torch.relu_,
        lambda slope, out: torch.ops.aten.threshold_backward.grad_input(slope, out, 0.0, grad_input=slope),
    ),
}


class Scores(NamedTuple):
    """What a network makes of rows that were acted on; all tensors (L, N)."""

    log_probs: Tensor
    entropies: Tensor
    values: Mapping[str, Tensor]
    """Of each critic, normalised."""


class Passes(Protocol):
    """How a network acts, scores and learns; `backward` belongs to the last `score`. For use without autograd around it."""

    def prepare(self, obs: Tensor) -> Tensor:
        """Observations (L, N, *obs_shape) as `act` and `score` take them; right until the statistics move."""
        ...

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        """What `act` needs of chance for rows of this shape; None where it draws for itself."""
        ...

    def act(
        self, inputs: Tensor, mask: Tensor | None, noise: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Sampled actions (L, N, ...) and their log-probabilities (L, N)."""
        ...

    def score(self, inputs: Tensor, mask: Tensor | None, actions: Tensor) -> Scores: ...

    def backward(self, of_log_probs: Tensor, of_entropies: Tensor, of_values: Mapping[str, Tensor]) -> None:
        """Add to all gradients what follows from the loss's slopes in the scores, (L, N) each."""
        ...


def passes_of(network: ActorCritic) -> Passes:
    """The fastest passes that a network can have."""
    head = head_for(network.distribution)
    flat = all(isinstance(part, MlpEncoder) for part in (network.actor, *network.trunks.values()))
    return WrittenPasses(network, head) if head and flat else AutogradPasses(network, head)


class AutogradPasses:
    """Those of any network."""

    def __init__(self, network: ActorCritic, head: Head | None) -> None:
        self._network, self._head = network, head
        self._parameters = list(network.parameters())
        self._outputs: list[Tensor] = []

    def prepare(self, obs: Tensor) -> Tensor:
        """As they are: images would take four times their space as floats."""
        return obs

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        return self._head.noise(shape, generator) if self._head else None

    def act(
        self, inputs: Tensor, mask: Tensor | None, noise: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        params = self._network.policy(inputs, mask)
        if self._head and noise is not None:
            return self._head.act(params.mT, noise)
        distribution = self._network.distribution
        actions = distribution.sample(params, generator)
        return actions, distribution.log_prob(params, actions)

    def score(self, inputs: Tensor, mask: Tensor | None, actions: Tensor) -> Scores:
        with torch.enable_grad():
            params, values = self._network(inputs, mask)
            distribution = self._network.distribution
            scores = Scores(distribution.log_prob(params, actions), distribution.entropy(params), values)
        self._outputs = [scores.log_probs, scores.entropies, *values.values()]
        return Scores(
            scores.log_probs.detach(),
            scores.entropies.detach(),
            {name: value.detach() for name, value in values.items()},
        )

    def backward(self, of_log_probs: Tensor, of_entropies: Tensor, of_values: Mapping[str, Tensor]) -> None:
        slopes = [of_log_probs, of_entropies, *of_values.values()]
        gradients = torch.autograd.grad(self._outputs, self._parameters, slopes)
        self._outputs = []
        # Left to autograd, adding to lanes of one matrix draws a warning about their layout.
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            _gradient(parameter).add_(gradient)


class WrittenPasses:
    """Those of MLPs with an action distribution whose slopes are written out too."""

    def __init__(self, network: ActorCritic, head: Head) -> None:
        self._network, self._head = network, head
        assert isinstance(network.actor, MlpEncoder)
        self._actor = _Mlp(network.actor, network.policy_head)
        self._free = network.free_params
        self._critics: dict[str, _Mlp] = {}
        for name, trunk in network.trunks.items():
            assert isinstance(trunk, MlpEncoder)
            self._critics[name] = _Mlp(trunk, network.head(name).linear)

    def prepare(self, obs: Tensor) -> Tensor:
        return self._network.prepare(obs).flatten(2)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return self._head.noise(shape, generator)

    def act(
        self, inputs: Tensor, mask: Tensor | None, noise: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        if noise is None:
            noise = self._head.noise((len(inputs), inputs.shape[1]), generator)
        return self._head.act(self._policy(inputs, mask), noise)

    def score(self, inputs: Tensor, mask: Tensor | None, actions: Tensor) -> Scores:
        log_probs, entropies = self._head.score(self._policy(inputs, mask), actions)
        return Scores(
            log_probs,
            entropies,
            {name: critic.forward(inputs).squeeze(1) for name, critic in self._critics.items()},
        )

    def backward(self, of_log_probs: Tensor, of_entropies: Tensor, of_values: Mapping[str, Tensor]) -> None:
        slopes = self._head.slopes(of_log_probs, of_entropies)
        if self._free is not None:
            slopes, of_free = slopes.split([slopes.shape[1] - self._free.shape[2], self._free.shape[2]], 1)
            _gradient(self._free).add_(of_free.sum(2).unsqueeze(1))
        self._actor.backward(slopes)
        for name, critic in self._critics.items():
            critic.backward(of_values[name].unsqueeze(1))

    def _policy(self, inputs: Tensor, mask: Tensor | None) -> Tensor:
        outputs = self._actor.forward(inputs)
        if self._free is not None:
            return torch.cat([outputs, self._free.mT.expand(-1, -1, outputs.shape[2])], 1)
        return mask_logits(outputs, None if mask is None else mask.mT)


class _Mlp:
    """Hidden layers over rows (L, N, inputs), and an output layer that gives (L, outputs, N)."""

    def __init__(self, encoder: MlpEncoder, last: LaneLinear) -> None:
        self._hidden = [(layer.weight, layer.bias) for layer in encoder.linears()]
        self._last = (last.weight, last.bias)
        self._activation = _ACTIVATIONS[encoder.activation]
        self._rows: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self._rows = [x]
        for weight, bias in self._hidden:
            x = self._activation.apply(torch.baddbmm(bias, x, weight))
            self._rows.append(x)
        weight, bias = self._last
        # A product with few columns is slow; one with as few rows, their factor laid out for it, takes half the time.
        return torch.bmm(weight.mT.contiguous(), x.mT).add_(bias.mT)

    def backward(self, slopes: Tensor) -> None:
        """Add to the gradients; ``slopes`` (L, outputs, N) belong to the last `forward`."""
        weight, bias = self._last
        x, *outs = self._rows
        _gradient(weight).add_(torch.bmm(slopes, outs[-1]).mT)
        _gradient(bias).add_(slopes.sum(2).unsqueeze(1))
        slopes = slopes.mT
        for layer in range(len(outs) - 1, -1, -1):
            # `weight` is still that of the layer above.
            slopes = self._activation.slope(torch.bmm(slopes, weight.mT), outs[layer])
            weight, bias = self._hidden[layer]
            below = outs[layer - 1] if layer else x
            _gradient(weight).baddbmm_(below.mT, slopes)
            _gradient(bias).add_(slopes.sum(1, keepdim=True))


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "give the network its LaneWeights first"
    return parameter.grad
