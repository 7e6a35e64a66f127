"""The figures of a plan: its methods side by side, on each task and over all, and learning curves across seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_tools.bench.comparison import Comparison
from marl_tools.bench.pairs import Pair
from marl_tools.bench.report.curves import Curve, mean_curve
from marl_tools.bench.report.figures import Figure, Lines, compact
from marl_tools.bench.report.gather import Reading
from marl_tools.bench.report.methods import is_costed
from marl_tools.bench.report.wording import interval, number
from marl_tools.bench.scores import Cell, Spread

Colors = Mapping[str, int]

MEASURES = {
    "score": "score",
    "violation": "violations, trained",
    "training_violations": "violations in training",
}
_POINTS = 64


def task_figures(
    task: str, runs: Mapping[str, Sequence[Reading]], comparison: Comparison | None, colors: Colors
) -> list[Figure]:
    """Return and violation probability of each method on a task, and how they came about.

    ``runs`` holds the runs on that task, by method.
    """
    found = []
    if comparison is not None:
        cells = [cell for cell in comparison.cells if cell.task == task]
        rho = {run.max_risk for run in comparison.runs if run.task == task}
        found += [
            _forest(
                f"{task}-return", "Return of the trained team", "final_return", cells, comparison, colors
            ),
            _forest(
                f"{task}-violation",
                "Violation probability of the trained team",
                "violation",
                cells,
                comparison,
                colors,
                percent=True,
                levels=[{"y": value, "label": "rho, per agent"} for value in rho] if len(rho) == 1 else [],
            ),
        ]
    returns = Lines(f"{task}-learning", "Return while learning", "return per episode", note=_ACROSS)
    violations = Lines(
        f"{task}-violations", "Episodes with a violation while learning", "share of episodes", percent=True
    )
    for method, mine in runs.items():
        returns.add(
            method, _across([run.curves.mean("return", points=_POINTS) for run in mine]), colors[method]
        )
        costed = [run for run in mine if is_costed(run)]
        if costed:
            curve = _across([run.curves.rate(points=_POINTS) for run in costed])
            violations.add(
                method, curve._replace(lo=np.clip(curve.lo, 0, 1), hi=np.clip(curve.hi, 0, 1)), colors[method]
            )
    return [figure for figure in (*found, returns.done(), violations.done()) if figure]


_ACROSS = "Mean over seeds of the training episodes, with its 95 % Student-t interval; no band where there is one seed."


def overall_figures(comparison: Comparison, colors: Colors) -> list[Figure]:
    """Performance profile and probability of improvement over all tasks."""
    profile = Lines(
        "profile",
        "Performance profile",
        "share of runs above it",
        percent=True,
        x_title="score: 0 random play, 1 the best mean",
        note="Higher is better. Where two lines cross, neither method is better at every level.",
    )
    for curve in comparison.profiles:
        rows = (np.asarray(values) for values in (curve.taus, curve.share, curve.low, curve.high))
        profile.add(curve.method, Curve(*rows), colors[curve.method])
    pairs = [_improvement(measure, comparison, colors) for measure in MEASURES]
    return [figure for figure in (profile.done(), *pairs) if figure]


def _across(curves: Sequence[Curve]) -> Curve:
    return mean_curve([curve for curve in curves if np.isfinite(curve.y).sum() > 1] or curves)


def _forest(
    key: str,
    title: str,
    name: str,
    cells: Sequence[Cell],
    comparison: Comparison,
    colors: Colors,
    *,
    percent: bool = False,
    levels: Sequence[Mapping[str, Any]] = (),
) -> Figure | None:
    """A row a method: the mean of its seeds with its interval, and each seed."""
    traces, said = [], []
    for cell in cells:
        spread = cell.figures.get(name)
        if spread is None:
            continue
        seeds = [
            value
            for run in comparison.runs
            if (run.task, run.method) == (cell.task, cell.method)
            and (value := getattr(run, name)) is not None
        ]
        color = colors[cell.method]
        traces.append(
            {
                "name": f"{cell.method}, one seed",
                "x": compact(seeds),
                "y": [cell.method] * len(seeds),
                "color": color,
                "size": 6,
                "opacity": 0.4,
            }
        )
        traces.append(_point(cell.method, cell.method, spread.mean, spread.low, spread.high, color))
        said.append(f"{cell.method} {described(spread, percent=percent)}.")
    if not traces:
        return None
    order = [cell.method for cell in cells if name in cell.figures]
    spec = {
        "kind": "points",
        "x": "",
        "order": order,
        "traces": traces,
        "percent": percent,
        "levels": list(levels),
    }
    note = f"Mean over seeds with its {number(comparison.confidence, percent=True)} bootstrap interval; pale points are seeds."
    return Figure(key, title, " ".join([f"{title}, mean over seeds:", *said]), spec, note)


def _improvement(measure: str, comparison: Comparison, colors: Colors) -> Figure | None:
    pairs = [pair for pair in comparison.pairs if pair.measure == measure]
    if not pairs:
        return None
    traces = [
        _point(_versus(pair), _versus(pair), pair.improvement, pair.low, pair.high, colors[pair.x])
        for pair in pairs
    ]
    title = f"Probability of improvement: {MEASURES[measure]}"
    said = [
        f"{pair.x} is better than {pair.y} with probability {number(pair.improvement, percent=True)}."
        for pair in pairs
    ]
    spec = {
        "kind": "points",
        "x": "",
        "order": [_versus(pair) for pair in pairs],
        "traces": traces,
        "percent": True,
        "x_range": [-0.03, 1.03],
        "levels": [{"y": 0.5, "label": "no difference"}],
    }
    note = f"Chance that a run of the first is better, that is {pairs[0].better}, than one of the second; ties count half."
    return Figure(f"improvement-{measure}", title, " ".join([f"{title}.", *said]), spec, note)


def _versus(pair: Pair) -> str:
    return f"{pair.x} over {pair.y}"


def _point(name: str, row: str, x: float, lo: float | None, hi: float | None, color: int) -> dict[str, Any]:
    point = {"name": name, "x": [x], "y": [row], "color": color}
    return point if lo is None or hi is None else {**point, "lo": [lo], "hi": [hi]}


def described(spread: Spread | None, *, percent: bool = False) -> str:
    """Mean and interval in words; a dash where there is none."""
    if spread is None:
        return "–"
    mean = number(spread.mean, percent=percent)
    if spread.low is None:
        return mean
    return f"{mean} ({interval([spread.low, spread.high], percent=percent)})"
