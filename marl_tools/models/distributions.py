"""Action distributions as pure functions of a parameter tensor, fast enough for the per-step path.

Parameters have shape (..., params), actions (..., *action_shape); log-probabilities and entropies are summed over the
dimensions of one joint action, shape (...). Randomness comes from the generator that is passed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor
from torch.nn import functional as F

from marl_tools.core.spaces import AgentSpaces

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class ActionDistribution(Protocol):
    """What the trainer asks of a distribution."""

    @property
    def params(self) -> int:
        """Number of parameters that the network must put out."""
        ...

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor: ...

    def mode(self, params: Tensor) -> Tensor: ...

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor: ...

    def entropy(self, params: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Categorical:
    """One choice out of ``params``; the parameters are logits."""

    params: int

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        # argmax(logits - log E) with E ~ Exp(1) is the Gumbel-max trick: one pass, no normalisation.
        noise = torch.empty_like(params).exponential_(generator=generator).log_()
        return (params - noise).argmax(-1)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return F.log_softmax(params, -1).gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        log_p = F.log_softmax(params, -1)
        return -(log_p.exp() * log_p).sum(-1)


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices, ``sizes[i]`` options each; the parameters are all logits side by side."""

    sizes: tuple[int, ...]

    @property
    def params(self) -> int:
        return sum(self.sizes)

    def _parts(self, params: Tensor) -> list[tuple[Categorical, Tensor]]:
        split = params.split(self.sizes, -1)
        return [(Categorical(size), part) for size, part in zip(self.sizes, split, strict=True)]

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        return torch.stack([part.sample(logits, generator) for part, logits in self._parts(params)], -1)

    def mode(self, params: Tensor) -> Tensor:
        return torch.stack([logits.argmax(-1) for _, logits in self._parts(params)], -1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        rows = [
            part.log_prob(logits, actions[..., i]) for i, (part, logits) in enumerate(self._parts(params))
        ]
        return torch.stack(rows).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        return torch.stack([part.entropy(logits) for part, logits in self._parts(params)]).sum(0)


@dataclass(frozen=True)
class Bernoulli:
    """Independent bits; the parameters are their logits."""

    params: int

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(params.shape, generator=generator, dtype=params.dtype)
        return (uniform < params.sigmoid()).long()

    def mode(self, params: Tensor) -> Tensor:
        return (params > 0).long()

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return -F.binary_cross_entropy_with_logits(params, actions.to(params.dtype), reduction="none").sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        p = params.sigmoid()
        return F.binary_cross_entropy_with_logits(params, p, reduction="none").sum(-1)


@dataclass(frozen=True)
class Normal:
    """Independent normals in ``dim`` dimensions; the parameters are the means, then the log standard deviations."""

    dim: int

    @property
    def params(self) -> int:
        return 2 * self.dim

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        return mean + log_std.exp() * noise

    def mode(self, params: Tensor) -> Tensor:
        return params.chunk(2, -1)[0]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        z = (actions - mean) * (-log_std).exp()
        return (-0.5 * z * z - log_std - _LOG_SQRT_2PI).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return (params.chunk(2, -1)[1] + 0.5 + _LOG_SQRT_2PI).sum(-1)


def action_distribution(spaces: AgentSpaces) -> ActionDistribution:
    """The distribution that fits an action space: Categorical, Normal, MultiCategorical or Bernoulli."""
    space = spaces.action_space
    if isinstance(space, gym_spaces.Discrete):
        return Categorical(spaces.action_dim)
    if isinstance(space, gym_spaces.MultiDiscrete):
        return MultiCategorical(tuple(int(n) for n in space.nvec.reshape(-1)))
    if isinstance(space, gym_spaces.MultiBinary):
        return Bernoulli(spaces.action_dim)
    return Normal(spaces.action_dim)


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with the forbidden choices (False in ``mask``) at the lowest finite value: probability exactly 0."""
    return logits if mask is None else logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
