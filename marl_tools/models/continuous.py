"""Distributions over the numbers of a Box, in which [-1, 1] spans the bounds; `distributions` says what all have in common.

Those that have no bounds of their own are cut off at the env's, after sampling: log-probabilities are of what was drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from marl_tools.core.actions import ActionCodec, BoxCodec
from marl_tools.core.errors import ConfigError

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_EULER = 0.5772156649015329
# Least distance from a bound, in units of half the range, and greatest from the lower of an open range: log-densities stay
# finite in float32.
_EDGE, _FAR = 1e-6, 1e30


@dataclass(frozen=True)
class Normal:
    """Independent normals in ``dim`` dimensions; the parameters are the means, then the log standard deviations."""

    dim: int
    trainable = True

    @classmethod
    def of(cls, codec: ActionCodec) -> Self:
        return cls(codec.inputs)

    @property
    def params(self) -> int:
        return self.outputs + self.free

    @property
    def outputs(self) -> int:
        return self.dim

    @property
    def free(self) -> int:
        return self.dim

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


@dataclass(frozen=True)
class MultivariateNormal(Normal):
    """A normal with full covariance; the parameters are the means, then those of its Cholesky factor.

    The factor's are the logs of its diagonal, then what is below it, row by row.
    """

    @property
    def free(self) -> int:
        return self.dim * (self.dim + 1) // 2

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        mean, factor = self._split(params)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        return mean + (factor @ noise.unsqueeze(-1)).squeeze(-1)

    def mode(self, params: Tensor) -> Tensor:
        return params[..., : self.dim]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, factor = self._split(params)
        z = torch.linalg.solve_triangular(factor, (actions - mean).unsqueeze(-1), upper=False).squeeze(-1)
        return (-0.5 * z * z - self._log_diagonal(params) - _LOG_SQRT_2PI).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return (self._log_diagonal(params) + 0.5 + _LOG_SQRT_2PI).sum(-1)

    def _log_diagonal(self, params: Tensor) -> Tensor:
        return params[..., self.dim : 2 * self.dim]

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        factor = self._log_diagonal(params).exp().diag_embed()
        rows, columns = torch.tril_indices(self.dim, self.dim, -1)
        factor[..., rows, columns] = params[..., 2 * self.dim :]
        return params[..., : self.dim], factor


@dataclass(frozen=True)
class LogNormal(Normal):
    """The exponential of a `Normal`, from ``low`` upwards: the least action of each dimension, 0 where it has none."""

    low: tuple[float, ...]

    @classmethod
    def of(cls, codec: ActionCodec) -> Self:
        assert isinstance(codec, BoxCodec)
        least = codec.limits[0]
        return cls(codec.inputs, tuple(np.where(np.isfinite(least), least, 0.0).tolist()))

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        return self._lift(super().sample(params, generator), params)

    def mode(self, params: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        return self._lift(mean - (2 * log_std).exp(), params)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        logs = (actions - self._low(params)).clamp(min=_EDGE).log()
        return super().log_prob(params, logs) - logs.sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return super().entropy(params) + params.chunk(2, -1)[0].sum(-1)

    def _lift(self, logs: Tensor, params: Tensor) -> Tensor:
        return logs.exp().clamp(_EDGE, _FAR) + self._low(params)

    def _low(self, params: Tensor) -> Tensor:
        return params.new_tensor(self.low)


@dataclass(frozen=True)
class Gumbel(Normal):
    """Independent Gumbel variables; the parameters are the locations, which are the modes, then the log scales."""

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        location, log_scale = params.chunk(2, -1)
        noise = torch.empty_like(location).exponential_(generator=generator).log()
        return location - log_scale.exp() * noise

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        location, log_scale = params.chunk(2, -1)
        z = (actions - location) * (-log_scale).exp()
        # Some 80 scales below the mode the density is 0 in float32, and its exponential would overflow.
        return (-z - (-z).clamp(max=80.0).exp() - log_scale).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return (params.chunk(2, -1)[1] + 1 + _EULER).sum(-1)


@dataclass(frozen=True)
class SquashedNormal(Normal):
    """The hyperbolic tangent of a `Normal`: inside [-1, 1] without being cut off. `mode` is the median.

    References:
        Haarnoja et al. 2018, Soft actor-critic (1801.01290), appendix C.
    """

    @classmethod
    def of(cls, codec: ActionCodec) -> Self:
        _require_bounds(codec, cls.__name__)
        return cls(codec.inputs)

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        return super().sample(params, generator).tanh().clamp(_EDGE - 1, 1 - _EDGE)

    def mode(self, params: Tensor) -> Tensor:
        return super().mode(params).tanh()

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        z = actions.clamp(_EDGE - 1, 1 - _EDGE).atanh()
        return super().log_prob(params, z) - _log_slope_of_tanh(z).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """By Gauss-Hermite quadrature, there being no closed form: right to 1e-3 for standard deviations up to 3."""
        mean, log_std = params.chunk(2, -1)
        nodes, weights = (params.new_tensor(values) for values in _gauss_hermite(64))
        z = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
        return super().entropy(params) + (_log_slope_of_tanh(z) * weights).sum((-1, -2))


@dataclass(frozen=True)
class Beta:
    """Independent Beta variables, stretched from [0, 1] to [-1, 1]; the shapes are 1 + softplus of the outputs.

    Shapes above 1 keep the density bounded, with one mode.

    References:
        Chou et al. 2017, Improving stochastic policy gradients in continuous control using the Beta distribution.
    """

    dim: int
    free = 0
    trainable = True

    @classmethod
    def of(cls, codec: ActionCodec) -> Self:
        _require_bounds(codec, cls.__name__)
        return cls(codec.inputs)

    @property
    def params(self) -> int:
        return 2 * self.dim

    @property
    def outputs(self) -> int:
        return self.params

    def sample(self, params: Tensor, generator: torch.Generator) -> Tensor:
        above, below = (torch._standard_gamma(shape, generator) for shape in _shapes(params))
        return (2 * above / (above + below) - 1).clamp(_EDGE - 1, 1 - _EDGE)

    def mode(self, params: Tensor) -> Tensor:
        above, below = F.softplus(params).clamp(min=1e-30).chunk(2, -1)
        return (above - below) / (above + below)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        above, below = _shapes(params)
        actions = actions.clamp(_EDGE - 1, 1 - _EDGE)
        up, down = (0.5 + 0.5 * actions).log(), (0.5 - 0.5 * actions).log()
        density = (above - 1) * up + (below - 1) * down - _log_beta(above, below) - math.log(2)
        return density.sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        above, below = _shapes(params)
        both = above + below
        drops = (above - 1) * above.digamma() + (below - 1) * below.digamma() - (both - 2) * both.digamma()
        return (_log_beta(above, below) - drops + math.log(2)).sum(-1)


def _shapes(params: Tensor) -> tuple[Tensor, Tensor]:
    above, below = (1 + F.softplus(params)).chunk(2, -1)
    return above, below


def _log_beta(above: Tensor, below: Tensor) -> Tensor:
    return above.lgamma() + below.lgamma() - (above + below).lgamma()


def _log_slope_of_tanh(z: Tensor) -> Tensor:
    """log(1 - tanh(z)^2), without the cancellation."""
    return 2 * (math.log(2) - z - F.softplus(-2 * z))


@cache
def _gauss_hermite(order: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of the mean over a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    return nodes.tolist(), (weights / weights.sum()).tolist()


def _require_bounds(codec: ActionCodec, name: str) -> None:
    assert isinstance(codec, BoxCodec)
    if not codec.bounded.all():
        raise ConfigError(
            f"action_pdtype={name!r} needs bounds on both sides of every dimension, which {codec.space} lacks: use "
            "'Normal', or bound the space in a wrapper of your own"
        )
