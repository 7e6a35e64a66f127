"""Figures as compact plain values: the page's script makes plotly's out of them when they come into sight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_tools.bench.report.curves import Curve, Floats
from marl_tools.bench.report.wording import is_number, number

MOST_LINES = 12
"""Agents with a line of their own. More could not be told apart."""


@dataclass(frozen=True)
class Figure:
    """One figure: its name on the page, what it shows in words for those who cannot see it, and what to draw.

    ``spec`` holds axes and ``traces``; a trace has a name, numbers ``y`` and, where it has an interval, ``lo`` and ``hi``.
    """

    key: str
    title: str
    alt: str
    spec: Mapping[str, Any]
    note: str = ""


@dataclass
class Lines:
    """A figure of lines over env steps in the making."""

    key: str
    title: str
    y_title: str
    percent: bool = False
    note: str = ""
    x_title: str = "env steps"
    traces: list[dict[str, Any]] = field(default_factory=list)
    levels: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, curve: Curve, color: int, *, band: bool = True, **style: Any) -> None:
        """A line, with its interval as a band. Nothing is drawn of a curve without any number."""
        if not np.isfinite(curve.y).any():
            return
        trace = {"name": name, "x": _places(curve.x), "y": compact(curve.y), "color": color, **style}
        if band and not np.array_equal(curve.lo, curve.hi, equal_nan=True):
            trace |= {"lo": compact(curve.lo), "hi": compact(curve.hi)}
        self.traces.append(trace)

    def level(self, value: Any, label: str) -> None:
        """A horizontal line for comparison."""
        if is_number(value):
            self.levels.append({"y": value, "label": label})

    def done(self) -> Figure | None:
        """The figure; None without a line in it."""
        if not self.traces:
            return None
        # Said once: on a phone a long one would not fit beside the axis.
        y_title = "" if self.y_title.lower() == self.title.lower() else self.y_title
        spec = {"kind": "lines", "x": self.x_title, "y": y_title, "traces": self.traces}
        if self.percent:
            spec["percent"] = True
        if self.levels:
            spec["levels"] = self.levels
        return Figure(self.key, self.title, self._alt(), spec, self.note)

    def _alt(self) -> str:
        ways = [_way(trace, self.percent) for trace in self.traces[:MOST_LINES]]
        levels = [f"Dotted line: {level['label']}." for level in self.levels]
        return " ".join([f"{self.title}: {self.y_title} over {self.x_title}.", *ways, *levels])


def compact(values: Any) -> list[Any]:
    """Numbers of four digits; None where there is none, since JSON knows no NaN."""
    return [_short(value) if is_number(value) else None for value in np.asarray(values, np.float64).tolist()]


def _places(x: Floats) -> Any:
    """Even places as their first and their distance."""
    steps = np.diff(x)
    if len(x) > 2 and np.allclose(steps, steps[0]):
        return {"from": _short(x[0]), "by": float(f"{steps[0]:.8g}")}
    return compact(x)


def _short(value: float) -> float | int:
    value = float(value)
    rounded = float(f"{value:.4g}") if abs(value) < 1000 else round(value)
    return int(rounded) if rounded == int(rounded) else rounded


def _way(trace: Mapping[str, Any], percent: bool) -> str:
    """Where a line begins, ends and has been."""
    known = [value for value in trace["y"] if value is not None]
    first, last, low, high = (
        number(value, percent=percent) for value in (known[0], known[-1], min(known), max(known))
    )
    return f"{trace['name']}: from {first} to {last}, between {low} and {high}."
