"""Spaces as plain values, so that a checkpoint can name them without a pickle."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces

from marl_tools.core.errors import ConfigError, CorruptFileError


def space_to_json(space: gymnasium.Space) -> dict[str, Any]:
    """A plain description that `space_from_json` turns back into an equal space."""
    # Gymnasium 1.0's Discrete takes no dtype, so the usual one goes unsaid.
    dtype = {} if space.dtype in (None, np.int64) else {"dtype": str(space.dtype)}
    if isinstance(space, gym_spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), **dtype}
    if isinstance(space, gym_spaces.Box):
        bounds = {
            name: array.flat[0].item() if array.size and (array == array.flat[0]).all() else array.tolist()
            for name, array in (("low", space.low), ("high", space.high))
        }
        return {"kind": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, gym_spaces.MultiDiscrete):
        ranges = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"kind": "MultiDiscrete", **ranges, **dtype}
    if isinstance(space, gym_spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, gym_spaces.Dict):
        return {"kind": "Dict", "spaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, gym_spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise ConfigError(f"space {space} has no plain description")


def space_from_json(row: Mapping[str, Any]) -> gymnasium.Space:
    """The space that `space_to_json` described.

    Raises:
        CorruptFileError: an unknown kind, or fields that do not make a space.
    """
    try:
        dtype: dict[str, Any] = {"dtype": np.dtype(row["dtype"]).type} if "dtype" in row else {}
        match row["kind"]:
            case "Discrete":
                return gym_spaces.Discrete(row["n"], start=row["start"], **dtype)
            case "Box":
                shape = tuple(row["shape"])
                with np.errstate(over="raise"):
                    low, high = (
                        np.broadcast_to(np.array(row[name], row["dtype"]), shape).copy()
                        for name in ("low", "high")
                    )
                return gym_spaces.Box(low, high, shape, **dtype)
            case "MultiDiscrete":
                nvec, start = whole_numbers(row["nvec"]), whole_numbers(row["start"])
                return gym_spaces.MultiDiscrete(nvec, start=start, **dtype)
            case "MultiBinary":
                return gym_spaces.MultiBinary(row["n"])
            case "Dict":
                # Pairs, since a dict would be sorted, and the order is that of the network's inputs.
                return gym_spaces.Dict([(key, space_from_json(part)) for key, part in row["spaces"].items()])
            case "Tuple":
                return gym_spaces.Tuple([space_from_json(part) for part in row["spaces"]])
            case kind:
                raise CorruptFileError(f"unknown space kind {kind!r}")
    except CorruptFileError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AssertionError,
        AttributeError,
        ArithmeticError,
        MemoryError,
        RecursionError,
    ) as error:
        raise CorruptFileError(f"not a space: {reprlib.repr(row)} ({error})") from error


def whole_numbers(values: Any) -> np.ndarray:
    """An array of integers; Gymnasium itself would cut off fractions, or wrap what does not fit."""
    array = np.array(values)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{reprlib.repr(values)} are not whole numbers")
    return array
