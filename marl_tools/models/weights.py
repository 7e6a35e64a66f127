"""All weights of a network over lanes as one matrix, a row a lane, and their gradients as another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from marl_tools.models.networks import ActorCritic


class LaneWeights:
    """Turns a network's parameters into views of one matrix (L, P), and their gradients into views of a second one.

    What an update does to every weight is then one operation in place of a dozen. ``matrix`` is the parameter to hand to
    an optimiser. Gradients add up in place until `forget`.
    """

    def __init__(self, network: ActorCritic) -> None:
        parameters = list(network.parameters())
        self._shapes = [parameter.shape for parameter in parameters]
        self.matrix = nn.Parameter(torch.cat([p.detach().reshape(network.lanes, -1) for p in parameters], 1))
        self.gradients = torch.zeros_like(self.matrix)
        self.matrix.grad = self.gradients
        views = zip(parameters, self.split(self.matrix.detach()), self.split(self.gradients), strict=True)
        for parameter, weights, gradients in views:
            parameter.data, parameter.grad = weights, gradients

    def split(self, matrix: Tensor) -> list[Tensor]:
        """Views of a matrix (L, P), parameter by parameter."""
        sizes = [shape.numel() // len(matrix) for shape in self._shapes]
        return [part.view(shape) for part, shape in zip(matrix.split(sizes, 1), self._shapes, strict=True)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Inverse of `split`."""
        return torch.cat([part.reshape(len(self.matrix), -1) for part in parts], 1)

    @property
    def count(self) -> int:
        """How many parameters there are."""
        return len(self._shapes)

    def forget(self) -> None:
        """Set every gradient to 0."""
        self.gradients.zero_()

    def clip(self, longest: float) -> Tensor:
        """Scale each lane's gradient to at most this norm; returns the norms (L,) before."""
        norms = self.gradients.norm(dim=1)
        self.gradients.mul_((longest / (norms + 1e-6)).clamp_(max=1.0).unsqueeze(1))
        return norms
