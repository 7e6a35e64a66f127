"""What a row's outputs say about an action, and back: log-probability, entropy and the slopes of both, written out.

Outputs are (L, outputs, N), the choices before the rows: softmax and sums over a handful of choices are an order of
magnitude faster across rows than along each of them.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from marl_tools.models.distributions import ActionDistribution, Categorical, Normal

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Head(Protocol):
    """Reads one batch at a time; `slopes` belong to the last call of `score`."""

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """What `act` needs of chance for rows of this shape, (*shape, ...)."""
        ...

    def act(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (L, N, ...) that ``noise`` (L, N, ...) makes of the outputs, and their log-probabilities (L, N)."""
        ...

    def score(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, both (L, N)."""
        ...

    def slopes(self, of_log_probs: Tensor, of_entropies: Tensor) -> Tensor:
        """The loss's slope in each output, (L, outputs, N), from those in log-probabilities and entropies, (L, N)."""
        ...


class CategoricalHead:
    """Logits of one choice.

    d log p(a) / d logit_j = [j = a] - p_j, and d entropy / d logit_j = -p_j (log p_j + entropy).
    """

    def __init__(self, choices: int) -> None:
        self._choices = choices

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        # -log of an exponential variable is a Gumbel one.
        return torch.empty(*shape, self._choices).exponential_(generator=generator).log_().neg_()

    def act(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        # Gumbel-max wants the choices of a row side by side again.
        log_p = outputs.log_softmax(1).mT.contiguous()
        actions = (log_p + noise).argmax(-1)
        return actions, log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def score(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        self._actions = actions.long().unsqueeze(1)
        self._log_p = outputs.log_softmax(1)
        self._p = self._log_p.exp()
        self._entropies = (self._p * self._log_p).sum(1).neg_()
        return self._log_p.gather(1, self._actions).squeeze(1), self._entropies

    def slopes(self, of_log_probs: Tensor, of_entropies: Tensor) -> Tensor:
        taken = of_log_probs.unsqueeze(1)
        # Probabilities first: the logarithm of a masked one is the lowest float there is, which must not be scaled up.
        slopes = (self._log_p + self._entropies.unsqueeze(1)).mul_(self._p).mul_(of_entropies.unsqueeze(1))
        return slopes.addcmul_(self._p, taken).neg_().scatter_add_(1, self._actions, taken)


class NormalHead:
    """Means of independent normals, then their log standard deviations.

    With z = (a - mean) / std: d log p / d mean = z / std, d log p / d log std = z^2 - 1, d entropy / d log std = 1.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, self._dim, generator=generator)

    def act(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs.chunk(2, 1)
        z = noise.mT
        actions = mean + log_std.exp() * z
        return actions.mT.contiguous(), (-0.5 * z * z - log_std - _LOG_SQRT_2PI).sum(1)

    def score(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs.chunk(2, 1)
        self._per_std = log_std.neg().exp_()
        self._z = (actions.mT - mean) * self._per_std
        log_probs = (-0.5 * self._z * self._z - log_std - _LOG_SQRT_2PI).sum(1)
        return log_probs, (log_std + 0.5 + _LOG_SQRT_2PI).sum(1)

    def slopes(self, of_log_probs: Tensor, of_entropies: Tensor) -> Tensor:
        taken = of_log_probs.unsqueeze(1)
        of_log_std = (self._z * self._z - 1) * taken + of_entropies.unsqueeze(1)
        return torch.cat([self._z * self._per_std * taken, of_log_std], 1)


def head_for(distribution: ActionDistribution) -> Head | None:
    """The written-out form of a distribution; None where there is none."""
    # By exact type: a subclass may sample or score in another way.
    if type(distribution) is Categorical:
        return CategoricalHead(distribution.params)
    if type(distribution) is Normal:
        return NormalHead(distribution.dim)
    return None
