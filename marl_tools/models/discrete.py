"""Distributions over choices and bits, as pure functions of their logits; `distributions` says what all have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from marl_tools.core.actions import ActionCodec, MultiDiscreteCodec


@dataclass(frozen=True)
class Categorical:
    """One choice out of ``params``; the parameters are logits."""

    params: int
    free = 0
    trainable = True

    @classmethod
    def of(cls, codec: ActionCodec) -> Self:
        return cls(codec.inputs)

    @property
    def outputs(self) -> int:
        return self.params

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
class Argmax(Categorical):
    """The choice with the greatest logit, always. It has no gradient: for play, and for policies learned in other ways."""

    trainable = False

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        return self.mode(params)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """0 for the greatest, minus infinity for all others."""
        return torch.where(actions == self.mode(params), 0.0, -math.inf).to(params.dtype)

    def entropy(self, params: Tensor) -> Tensor:
        return torch.zeros_like(params[..., 0])


@dataclass(frozen=True)
class GumbelSoftmax(Categorical):
    """`Categorical` with a relaxed sample that gradients flow through.

    What is played is the relaxed sample's greatest entry, whose law is that of `Categorical` at any temperature.

    References:
        Jang et al. 2017, Categorical reparameterization with Gumbel-softmax (1611.01144).
        Maddison et al. 2017, The concrete distribution (1611.00712).
    """

    temperature: float = 1.0

    def relaxed_sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        """A differentiable point of the simplex, (..., params)."""
        noise = torch.empty_like(params).exponential_(generator=generator).log()
        return ((params - noise) / self.temperature).softmax(-1)

    def relaxed_log_prob(self, params: Tensor, points: Tensor) -> Tensor:
        """Log-density of points (..., params) inside the simplex, with respect to all coordinates but one; (...)."""
        scores = params - self.temperature * points.log()
        n = self.params
        density = (F.log_softmax(scores, -1) - points.log()).sum(-1)
        return density + math.lgamma(n) + (n - 1) * math.log(self.temperature)


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices, ``sizes[i]`` options each; the parameters are all logits side by side."""

    sizes: tuple[int, ...]
    free = 0
    trainable = True

    @classmethod
    def of(cls, codec: ActionCodec) -> Self:
        assert isinstance(codec, MultiDiscreteCodec)
        return cls(codec.sizes)

    @property
    def params(self) -> int:
        return sum(self.sizes)

    @property
    def outputs(self) -> int:
        return self.params

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
    free = 0
    trainable = True

    @classmethod
    def of(cls, codec: ActionCodec) -> Self:
        return cls(codec.inputs)

    @property
    def outputs(self) -> int:
        return self.params

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


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with the forbidden choices (False in ``mask``) at the lowest finite value: probability exactly 0."""
    return logits if mask is None else logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
