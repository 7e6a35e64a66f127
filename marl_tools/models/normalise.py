"""Running mean and standard deviation, one set a lane, kept with the network that they belong to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_EPSILON = 1e-8
_CLIP = 10.0


class RunningNorm(nn.Module):
    """Mean and standard deviation of the rows seen so far, merged batch by batch (Chan et al. 1983).

    With ``decay`` below 1 the weight of what was seen shrinks by it at each update that brings a lane new rows. Before
    the first update it is the identity. Statistics are float64, since a float32 count stops growing at 2**24.
    """

    count: Tensor
    running_mean: Tensor
    squares: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, lanes: int, shape: tuple[int, ...], decay: float = 1.0) -> None:
        super().__init__()
        self.decay = decay
        columns = (lanes, 1, *shape)
        self.register_buffer("count", torch.zeros(lanes, dtype=torch.float64))
        self.register_buffer("running_mean", torch.zeros(columns, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(columns, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("std", torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised rows (lanes, N, *shape), clipped to ten standard deviations."""
        return ((x - self.mean) / self.std).clamp_(-_CLIP, _CLIP)

    @torch.no_grad()
    def update(self, rows: Tensor, weights: Tensor) -> None:
        """Merge rows (lanes, N, *shape); ``weights`` (lanes, N) is 1 for a row that counts and 0 for padding."""
        # A product with the weights sums in one pass over the rows, which are many.
        rows, weights = rows.double().reshape(*weights.shape, -1), weights.double().unsqueeze(1)
        added = weights.sum((1, 2))
        columns = (-1, *[1] * (self.squares.dim() - 1))
        # A lane whose agents were away keeps what it knows; else its statistics would fade to nothing.
        kept = self.decay ** (added > 0).double()
        self.count *= kept
        self.squares *= kept.reshape(columns)
        mean = torch.bmm(weights, rows) / added.clamp(min=1).reshape(-1, 1, 1)
        squares = torch.bmm(weights, (rows - mean).square_()).view_as(self.squares)
        total = self.count + added
        share = (added / total.clamp(min=1)).reshape(columns)
        delta = mean.view_as(self.running_mean) - self.running_mean
        self.squares += squares + delta**2 * share * self.count.reshape(columns)
        self.running_mean += delta * share
        self.count += added
        # A column that never varied keeps its scale: dividing by nearly 0 would blow up the first change.
        variance = self.squares / self.count.clamp(min=1).reshape(columns)
        self.mean.copy_(self.running_mean)
        self.std.copy_(torch.where(variance > _EPSILON, variance, 1.0).sqrt())
