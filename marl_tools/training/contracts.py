"""What the trainer asks of the objects that are handed to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from marl_tools.core.types import AgentID, EpisodeLog, VectorStep


class Actor(Protocol):
    """What a rollout asks of the policy of one group; rows are env-major, (E, A, ...)."""

    def noise(self, steps: int, envs: int) -> NDArray[np.float32] | None:
        """Chance for ``steps`` calls of `act`, (T, E, A, ...), so that it does not matter how many rows act at a time.

        None: `act` draws for itself.
        """
        ...

    def act(
        self, obs: NDArray[Any], mask: NDArray[np.bool_] | None, noise: NDArray[np.float32] | None
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Sampled actions and their log-probabilities; ``noise`` holds what `noise` gave for these rows."""
        ...

    def probabilities(
        self, obs: NDArray[Any], agents: NDArray[np.intp], mask: NDArray[np.bool_] | None
    ) -> NDArray[np.floating]:
        """Probabilities (m, n) of all choices, row k being of agent ``agents[k]`` in the group; draws nothing.

        Asked for by a guard alone, of teams that choose one out of n.
        """
        ...


class Critic(Protocol):
    """What `GroupRollout.evaluate` asks of a value function."""

    def values(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Values (N, A) of observations (N, A, ...)."""
        ...

    def values_of(self, obs: NDArray[Any], agents: NDArray[np.intp]) -> NDArray[np.float32]:
        """Values (n,) of single observations (n, ...), row k being of agent ``agents[k]`` in the group."""
        ...


Probabilities = Callable[[str, NDArray[np.intp], NDArray[np.intp]], NDArray[np.floating]]
"""``probabilities(group, copies (m,), agents (m,))``: what the policies make of those rows of the step, (m, choices)."""


class Guard(Protocol):
    """What stands between the policies and the envs; `training.shielding.ShieldedTeam` is one."""

    @property
    def masks_actions(self) -> bool: ...

    def begin(self, step: VectorStep, copies: NDArray[np.bool_] | None = None) -> None:
        """Take in the first step of the envs, or of some copies (E,) of them."""
        ...

    def masks(self, step: VectorStep, probabilities: Probabilities) -> Mapping[str, NDArray[np.bool_]]:
        """What each group may sample from, (E, A, choices); asked for if `masks_actions`."""
        ...

    def execute(
        self, step: VectorStep, proposals: Mapping[str, NDArray[Any]], probabilities: Probabilities
    ) -> tuple[Mapping[str, NDArray[Any]], Sequence[Mapping[str, Any]]]:
        """The actions to play, and notes for the episode logs."""
        ...

    def observe(self, step: VectorStep) -> None:
        """Take in what the last actions led to."""
        ...

    def shaping(self, steps: int) -> Mapping[str, NDArray[np.float64]]:
        """What is added to the rewards (T, E, A) of each group in the last ``steps`` steps, the whole rollout."""
        ...


class LearningGuard(Guard, Protocol):
    """A guard that learns on the way and belongs to the checkpoint."""

    def policies_changed(self) -> None:
        """The policies have just been updated."""
        ...

    def state(self) -> dict[str, Any]:
        """All from which it can go on, as arrays in mappings; they stay as they are when it does."""
        ...

    def load(self, state: Mapping[str, Any]) -> None: ...


class Standing(NamedTuple):
    """A word to peers: `IPPO.state` of the process that leads, from which all begin."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Update(NamedTuple):
    """A word to peers: collect, and learn from it, beginning with these weights, a matrix a group."""

    weights: dict[str, Tensor]


class Peers(Protocol):
    """The processes that learn together from the same rollout; `training.ranks.Ranks` is one."""

    rank: int
    size: int

    @property
    def leads(self) -> bool: ...

    def tell(self, word: Any) -> None:
        """Let all others know what they do next."""
        ...

    def add_up(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all processes, to the same bits in each."""
        ...


class Constraint(Protocol):
    """What the trainer asks of a constraint; `safety.lagrange.LagrangeConstraint` is one."""

    def update(self, episodes: Sequence[EpisodeLog]) -> None:
        """Look at the episodes that have just ended, once per rollout."""
        ...

    def penalise(
        self,
        agents: Sequence[AgentID],
        reward_advantages: NDArray[np.float32],
        cost_advantages: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """The policy's advantages, all arrays (T, E, A)."""
        ...

    def figures(self) -> dict[str, Any]: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...
