"""Values of files that anyone may have written, by what they are; and numbers, states and methods in the words of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

STATES = {
    "done": "done",
    "solved": "solved",
    "running": "running",
    "interrupted": "interrupted",
    "failed": "failed",
    "damaged": "damaged",
    "waiting": "not started",
}

VERDICTS = {"within": "✓ within", "open": "? open", "above": "✕ above", "": "–"}

_PERCENT = "\N{NO-BREAK SPACE}%"
_CONSTRAINTS = {"lagrange": "Lagrangian", "pid": "PID Lagrangian"}


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


def number(value: Any, *, percent: bool = False) -> str:
    """Three digits that count, thousands apart; a dash for what is no number."""
    if not is_number(value):
        return "–"
    if percent:
        return f"{_digits(round(100 * value, 6), strip=True)}{_PERCENT}"
    if isinstance(value, int) and abs(value) < 10**9:
        return f"{value:,}".replace("-", "−")
    return _digits(value)


def interval(row: Any, *, percent: bool = False) -> str:
    """ "lo to hi", or a dash."""
    between = pair(row)
    if between is None:
        return "–"
    lo, hi = (number(value, percent=percent) for value in between)
    return f"{lo.removesuffix(_PERCENT)} to {hi}"


def method_of(config: Mapping[str, Any]) -> str:
    """What a run's settings amount to: "IPPO", "Lagrangian", "ledger shield", or a shield with a Lagrangian."""
    constraint = _CONSTRAINTS.get(str(config.get("constraint")))
    rule = config.get("shield", "none")
    if rule == "none":
        return constraint or "IPPO"
    return f"{rule} shield" + (f" + {constraint}" if constraint else "")


def family(config: Mapping[str, Any]) -> int:
    """Which of the fixed colours a run's method has: IPPO, Lagrangian, shield, or both of the last."""
    shielded = config.get("shield", "none") != "none"
    constrained = config.get("constraint", "none") != "none"
    return 3 if shielded and constrained else 2 if shielded else 1 if constrained else 0


def duration(seconds: float) -> str:
    """In the largest units that fit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds)} s"


def _digits(value: float, *, strip: bool = False) -> str:
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.2e}".replace("-", "−")
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 4
    text = f"{value:,.{decimals}f}"
    if decimals and (strip or size < 0.1):
        text = text.rstrip("0").removesuffix(".")
    return text.replace("-", "−")
