"""From a rollout to minibatches: flat rows, lanes of valid rows, padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl_tools.models.backprop import Passes
from marl_tools.models.networks import ActorCritic
from marl_tools.training.rollout import GroupRollout

_CHUNK = 4096
"""Rows of one forward pass over a whole rollout: bounds the memory that a convolution takes."""


class FlatRollout:
    """A rollout as tensors over flat rows (T*E*A, ...): what the network takes and what it is compared with.

    ``returns`` (T, E, A) are given by critic; they become targets, normalised as the critic's head is.
    """

    def __init__(
        self,
        rollout: GroupRollout,
        network: ActorCritic,
        passes: Passes,
        advantages: NDArray[np.float32],
        returns: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self.shape, lanes = rollout.valid.shape, network.lanes
        agents = self.shape[2]
        obs = rollout.obs.reshape(-1, *rollout.obs.shape[2:])
        # Once for all epochs, the statistics hold still meanwhile.
        inputs = passes.prepare(to_lanes(obs, lanes))
        self.inputs = (inputs if lanes == 1 else inputs.transpose(0, 1)).flatten(0, 1)
        self.actions, self.log_probs = _rows(rollout.actions), _rows(rollout.log_probs)
        self.mask = None if rollout.action_mask is None else _rows(rollout.action_mask)
        self.advantages = _rows(advantages)
        self.targets: dict[str, Tensor] = {}
        for critic, array in returns.items():
            norm = network.head(critic).norm
            # Columns are agents; so are lanes, or there is one for all.
            by_agent = torch.from_numpy(array).view(-1, agents)
            self.targets[critic] = ((by_agent - norm.mean.T) / norm.std.T).flatten()

    def take(self, index: Tensor) -> Rows:
        """The rows with these flat indices (L, N)."""

        def pick(rows: Tensor) -> Tensor:
            return rows.index_select(0, index.flatten()).view(*index.shape, *rows.shape[1:])

        return Rows(
            inputs=pick(self.inputs),
            mask=None if self.mask is None else pick(self.mask),
            actions=pick(self.actions),
            log_probs=pick(self.log_probs),
            targets={critic: pick(rows) for critic, rows in self.targets.items()},
        )


class Rows(NamedTuple):
    """Rows (L, N, ...) to learn from."""

    inputs: Tensor
    mask: Tensor | None
    actions: Tensor
    log_probs: Tensor
    targets: dict[str, Tensor]


class Minibatch(NamedTuple):
    """What one gradient step is made of, all (L, N)."""

    rows: Tensor
    """Flat indices into a rollout."""
    share: Tensor
    """The weight of each row in the means of its lane: they add up to 1, and are 0 where a shorter lane was filled up."""
    advantages: Tensor

    def of_rank(self, rank: int, size: int) -> Minibatch:
        """That rank's part among so many, which together make up the whole; it may have no rows."""
        columns = self.rows.shape[1]
        start, stop = rank * columns // size, (rank + 1) * columns // size
        return Minibatch(*(tensor[:, start:stop] for tensor in self))

    def parts(self, rows: int) -> Iterator[Minibatch]:
        """In turn, at most this many rows of each lane."""
        for part in zip(*(tensor.split(rows, 1) for tensor in self), strict=True):
            yield Minibatch(*part)


def _rows(array: NDArray[Any]) -> Tensor:
    """(T, E, A, ...) as flat rows in the same memory."""
    return torch.from_numpy(array.reshape(-1, *array.shape[3:]))


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
    # By NumPy, whose views cost half as much: this runs at every step.
    return torch.from_numpy(rows.reshape(1, -1, *rows.shape[2:]) if lanes == 1 else rows.swapaxes(0, 1))


def from_lanes(rows: Tensor, agents: int) -> NDArray[Any]:
    """Inverse of `to_lanes`: (N, A, ...)."""
    array = rows.numpy()
    return array.reshape(-1, agents, *array.shape[2:]) if len(array) == 1 else array.swapaxes(0, 1)


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
