"""Values from files that anyone may have written, by what they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard


def is_number(value: Any) -> TypeGuard[float]:
    """A finite number that is no bool."""
    # A whole number in JSON may be too large to be any float.
    with suppress(OverflowError):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return False


def pair(value: Any) -> tuple[float, float] | None:
    """An interval, or None."""
    if isinstance(value, Sequence) and len(value) == 2 and is_number(value[0]) and is_number(value[1]):
        return value[0], value[1]
    return None


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping as it is; anything else is an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Any, longest: int = 300) -> str:
    """As it would be typed, cut."""
    typed = str(value)
    return typed if len(typed) <= longest else f"{typed[:longest]}…"
