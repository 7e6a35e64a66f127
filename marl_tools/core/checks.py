"""Checks of single settings: each takes a name and a value, and returns the value or says what it must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from marl_tools.core.errors import ConfigError

Check = Callable[[str, Any], Any]
"""``check(key, value)`` returns the value, NumPy scalars as Python's own, or raises ConfigError."""


def at_least(least: int) -> Check:
    """Whole numbers from ``least`` on. A bool is not a number here, nor below."""

    def check(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ConfigError(f"{key}={value!r}: must be a whole number of at least {least}.")
        return int(value)

    return check


def between(low: float, high: float) -> Check:
    """Numbers strictly between the two."""

    def check(key: str, value: Any) -> float:
        if not _is_number(value) or not low < value < high:
            raise ConfigError(f"{key}={value!r}: must be a number above {low:g} and below {high:g}.")
        return float(value)

    return check


def proportion(key: str, value: Any) -> float:
    """Numbers from 0 to 1, both included."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise ConfigError(f"{key}={value!r}: must be a number from 0 to 1.")
    return float(value)


def one_of(*choices: str) -> Check:
    """One of the given strings."""

    def check(key: str, value: Any) -> str:
        if value not in choices:
            raise ConfigError(f"{key}={value!r}: must be one of {', '.join(map(repr, choices))}.")
        return value

    return check


def boolean(key: str, value: Any) -> bool:
    """True or False, not 1 or "true"."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{key}={value!r}: must be True or False.")
    return bool(value)


def string(key: str, value: Any) -> str:
    """Any string."""
    if not isinstance(value, str):
        raise ConfigError(f"{key}={value!r}: must be a string.")
    return value


def name(key: str, value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{key}={value!r}: must be a string that is not empty.")
    return value


def increasing(key: str, value: Any) -> tuple[int, ...]:
    """Whole numbers from 1 on, each above the one before; a list becomes a tuple."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ConfigError(f"{key}={value!r}: must be a tuple of whole numbers, such as (1, 10, 50).")
    try:
        numbers = tuple(at_least(1)("one of them", number) for number in value)
    except ConfigError as error:
        raise ConfigError(f"{key}={value!r}: {error}") from None
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise ConfigError(f"{key}={value!r}: each must be above the one before.")
    return numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
