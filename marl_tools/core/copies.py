"""The copies of an env in slices: who holds which, and their states cut up and joined again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from marl_tools.core.errors import ConfigError

_OF_ALL = ("frames", "episodes_started")
"""What a `VectorEnv.state` holds of all copies together; everything else has a row a copy."""


def slices(num_envs: int, parts: int) -> list[range]:
    """``num_envs`` copies in so many neighbouring slices, as equal as can be.

    >>> slices(5, 2)
    [range(0, 2), range(2, 5)]
    """
    bounds = [part * num_envs // parts for part in range(parts + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


def cut_state(state: Mapping[str, Any], copies: range, total: int) -> dict[str, Any]:
    """The state of some of ``total`` copies, for a vector env that holds no others.

    Raises:
        ConfigError: the state is of another number of copies.
    """

    def rows(of_all: Any) -> Any:
        if isinstance(of_all, Mapping):
            return {name: rows(value) for name, value in of_all.items()}
        if len(of_all) != total:
            raise ConfigError(
                f"the state of {len(of_all)} copies cannot be restored in {total}: use the num_envs that it was saved with"
            )
        return of_all[copies.start : copies.stop]

    per_copy = rows({name: value for name, value in state.items() if name not in _OF_ALL})
    # The slices count on from different figures, which add up to that of all.
    started = state["episodes_started"] if copies.start == 0 else 0
    return {"frames": state["frames"], "episodes_started": started, **per_copy}


def join_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of all copies from those of neighbouring slices: the inverse of `cut_state`."""

    def joined(parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], Mapping):
            return {name: joined([part[name] for part in parts]) for name in parts[0]}
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        return [row for part in parts for row in part]

    per_copy = [{name: of_part for name, of_part in part.items() if name not in _OF_ALL} for part in states]
    started = sum(part["episodes_started"] for part in states)
    return {"frames": states[0]["frames"], "episodes_started": started, **joined(per_copy)}
