"""PPO's clipped objective, row by row, and its slope in each log-probability.

References:
    Schulman et al. 2017, Proximal policy optimization algorithms (1707.06347).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Surrogate(NamedTuple):
    """All tensors have the shape of the rows."""

    loss: Tensor
    slope: Tensor
    """Of ``loss`` in the new log-probability."""
    kl: Tensor
    """Schulman's low-variance estimate of the KL divergence, http://joschu.net/blog/kl-approx.html."""
    clipped: Tensor
    """1.0 where the ratio lies outside the clip range."""


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip: float) -> Surrogate:
    """The loss -min(A r, A clip(r)) with r = exp(log_ratio); rows of any shape."""
    ratio = log_ratio.exp()
    gain = advantages * ratio
    bounded = advantages * ratio.clamp(1 - clip, 1 + clip)
    # d r / d log p = r. Beyond the clip range, where the bounded gain is the lesser, the slope is 0.
    slope = torch.where(gain <= bounded, -gain, 0.0)
    excess = ratio - 1
    return Surrogate(
        -torch.minimum(gain, bounded), slope, excess - log_ratio, (excess.abs() > clip).to(ratio.dtype)
    )


def normalised(advantages: Tensor, share: Tensor) -> Tensor:
    """Advantages (L, N) of mean 0 and variance 1 in each lane; ``share`` (L, N) is each row's weight, a lane's sum 1."""
    mean = (advantages * share).sum(1, keepdim=True)
    deviation = advantages - mean
    variance = (deviation * deviation * share).sum(1, keepdim=True)
    return deviation / (variance.sqrt_() + 1e-8)
