"""From a rollout to minibatches: flat rows, lanes of valid rows, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl_tools.training.rollout import GroupRollout


class FlatRollout:
    """A rollout's arrays as tensors over flat rows (T*E*A, ...), sharing its memory."""

    def __init__(
        self, rollout: GroupRollout, advantages: NDArray[np.float32], returns: NDArray[np.float32]
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
        self.advantages, self.returns = rows(advantages), rows(returns)


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
