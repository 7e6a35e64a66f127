"""What the learned models' saved states share: where they come from, and byte keys as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import Key


def origin(kind: str, env_name: str, actions: Sequence[int]) -> dict[str, NDArray[Any]]:
    """What a state must agree on with the env that it is loaded for."""
    return {"kind": np.array(kind), "env_name": np.array(env_name), "actions": np.array(actions, np.int64)}


def check_origin(ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> None:
    """Refuse the state of something else.

    Raises:
        ConfigError: the kind of model, the env's name, the agents' numbers of actions or another setting differs.
    """
    kind = str(ours["kind"])
    for name, value in ours.items():
        if name not in theirs:
            raise ConfigError(
                f"this is no state of a {kind}: it lacks {name!r}. Load what its state() returned."
            )
        if not np.array_equal(value, theirs[name]):
            raise ConfigError(
                f"{kind} of env {str(ours['env_name'])!r}: the state has {name} {theirs[name].tolist()!r}, "
                f"here it is {value.tolist()!r}. Load the state that was learned with it, or start a new model."
            )


def pack_keys(keys: Sequence[Key]) -> dict[str, NDArray[Any]]:
    """Keys of any lengths as two arrays; NumPy's own byte strings would lose trailing zeros."""
    lengths = np.array([len(key) for key in keys], np.int64)
    return {"key_bytes": np.frombuffer(b"".join(keys), np.uint8), "key_lengths": lengths}


def unpack_keys(state: Mapping[str, NDArray[Any]]) -> list[Key]:
    """Inverse of `pack_keys`."""
    joined, stops = state["key_bytes"].tobytes(), np.cumsum(state["key_lengths"]).tolist()
    return [joined[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
