"""From a rollout to minibatches: flat rows, lanes of valid rows, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl_tools.models.networks import ActorCritic
from marl_tools.training.rollout import GroupRollout

_CHUNK = 8192
"""Rows of one forward pass over a whole rollout: bounds the memory that a convolution takes."""


class FlatRollout:
    """A rollout's arrays as tensors over flat rows (T*E*A, ...), sharing its memory."""

    def __init__(
        self,
        rollout: GroupRollout,
        advantages: NDArray[np.float32],
        returns: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self.shape = rollout.valid.shape

        def rows(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array.reshape(-1, *array.shape[3:]))

        self.obs, self.actions, self.log_probs = (
            rows(rollout.obs),
            rows(rollout.actions),
            rows(rollout.log_probs),
        )
        self.mask = None if rollout.action_mask is None else rows(rollout.action_mask)
        self.advantages = rows(advantages)
        self.returns = {critic: rows(array) for critic, array in returns.items()}


class LaneCritic:
    """One critic of a network over lanes, as `GroupRollout.evaluate` asks for it."""

    def __init__(self, network: ActorCritic, name: str) -> None:
        self.network, self.name = network, name

    @torch.inference_mode()
    def values(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Values (N, A) of observations (N, A, ...), in units of return."""
        chunk = max(1, _CHUNK // obs.shape[1])
        parts = [obs[start : start + chunk] for start in range(0, len(obs), chunk)]
        lanes, agents = self.network.lanes, obs.shape[1]
        return np.concatenate(
            [from_lanes(self.network.value(to_lanes(part, lanes), self.name), agents) for part in parts]
        )

    @torch.inference_mode()
    def values_of(self, obs: NDArray[Any], agents: NDArray[np.intp]) -> NDArray[np.float32]:
        """Values (n,) of single observations (n, ...) of the agents with these indices."""
        rows = torch.from_numpy(obs)
        lanes = self.network.lanes
        if lanes == 1:
            return self.network.value(rows.unsqueeze(0), self.name)[0].numpy()
        # Every lane sees every row and the agent's own is picked: n is small, and it stays one batched call.
        every = self.network.value(rows.unsqueeze(0).expand(lanes, *rows.shape), self.name)
        return every[torch.from_numpy(agents), torch.arange(len(rows))].numpy()


def to_lanes(rows: NDArray[Any], lanes: int) -> Tensor:
    """(N, A, ...) to (1, N*A, ...) for one shared lane, else (A, N, ...)."""
    tensor = torch.from_numpy(rows)
    return tensor.flatten(0, 1).unsqueeze(0) if lanes == 1 else tensor.transpose(0, 1)


def from_lanes(rows: Tensor, agents: int) -> NDArray[Any]:
    """Inverse of `to_lanes`: (N, A, ...)."""
    if len(rows) == 1:
        return rows[0].unflatten(0, (-1, agents)).numpy()
    return rows.transpose(0, 1).numpy()


def pad(lanes: Sequence[NDArray[np.intp]]) -> tuple[Tensor, Tensor]:
    """Index lists of unequal length as one (L, B) array, and weights that are 0 where it was filled up."""
    longest = max(map(len, lanes))
    index, weights = np.zeros((len(lanes), longest), np.int64), np.zeros((len(lanes), longest), np.float32)
    for lane, rows in enumerate(lanes):
        index[lane, : len(rows)] = rows
        weights[lane, : len(rows)] = 1.0
    return torch.from_numpy(index), torch.from_numpy(weights)


def lane_rows(valid: NDArray[np.bool_], lanes: int) -> list[NDArray[np.intp]]:
    """Flat indices, into (T*E*A,), of the valid rows of each lane: all of them for one lane, else agent by agent."""
    flat = np.flatnonzero(valid)
    return [flat] if lanes == 1 else [flat[flat % lanes == lane] for lane in range(lanes)]
