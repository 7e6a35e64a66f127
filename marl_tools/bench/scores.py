"""Figures of runs as means by task and method, as scores that are comparable from task to task, and aggregated over tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from marl_tools.bench.plan_folder import RunKey
from marl_tools.bench.run_figures import RunFigures
from marl_tools.bench.statistics import AGGREGATES, mean, performance_profile, stratified_bootstrap
from marl_tools.bench.statistics.aggregate import Floats, Statistic

FIGURES = (
    "final_return",
    "random_return",
    "training_return",
    "violation",
    "worst_violation",
    "training_violations",
    "overrides",
    "strength",
    "sample_efficiency",
    "training_efficiency",
    "stability",
)
"""The figures of a run that a `Cell` has the means of."""

MEASURES = {"score": 1, "violation": -1, "training_violations": -1}
"""What methods are compared by over all tasks, and whether more of it is better (1) or worse (-1)."""

_TAUS = 101

Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""One measure: by method, then task, then seed."""


class Bootstrap(NamedTuple):
    """How intervals are made; the generator is shared by all, so that figures follow from one seed."""

    rng: np.random.Generator
    reps: int
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean over runs with its bootstrap interval; no interval for a single run."""

    mean: float
    low: float | None
    high: float | None
    runs: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One method on one task: ``finished`` of ``planned`` runs, and the means of those of `FIGURES` that runs have.

    In ``under_risk`` of the ``certified`` runs the interval of every agent lies below the allowed risk.
    """

    task: str
    method: str
    planned: int
    finished: int
    certified: int
    under_risk: int
    figures: Mapping[str, Spread]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a score on a task is relative to: the return of ``random`` play is 0, the mean of the ``best_method`` 1."""

    task: str
    random: float
    best: float
    best_method: str


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """A measure of one method over the tasks and seeds that all methods have: ``statistic`` is one of `AGGREGATES`."""

    method: str
    measure: str
    statistic: str
    value: float
    low: float | None
    high: float | None
    runs: int


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The performance profile of a method's scores: the share of runs that score more than each tau."""

    method: str
    taus: list[float]
    share: list[float]
    low: list[float]
    high: list[float]


def cell(
    task: str, method: str, planned: Sequence[RunKey], runs: Sequence[RunFigures], draw: Bootstrap
) -> Cell:
    """What the finished runs of a method on a task say."""
    mine = [run for run in runs if (run.task, run.method) == (task, method)]
    figures = {}
    for name in FIGURES:
        known = [value for run in mine if (value := getattr(run, name)) is not None]
        if known:
            value, low, high = _interval(np.array(known)[:, None], mean, draw)
            figures[name] = Spread(mean=value, low=low, high=high, runs=len(known))
    verdicts = [run.under_risk for run in mine if run.under_risk is not None]
    return Cell(
        task=task,
        method=method,
        planned=sum((run.task, run.method) == (task, method) for run in planned),
        finished=len(mine),
        certified=len(verdicts),
        under_risk=sum(verdicts),
        figures=figures,
    )


def scale_of(task: str, methods: Sequence[str], runs: Sequence[RunFigures]) -> Scale | None:
    """The scale of a task; None where random play was not evaluated, or nobody is better than it."""
    here = [run for run in runs if run.task == task]
    random = [run.random_return for run in here if run.random_return is not None]
    final = {
        method: [run.final_return for run in here if run.method == method and run.final_return is not None]
        for method in methods
    }
    means = {method: float(np.mean(returns)) for method, returns in final.items() if returns}
    if not random or not means:
        return None
    best_method = max(means, key=means.__getitem__)
    baseline, best = float(np.mean(random)), means[best_method]
    return Scale(task=task, random=baseline, best=best, best_method=best_method) if best > baseline else None


def values_of(runs: Sequence[RunFigures], scales: Sequence[Scale]) -> dict[str, Values]:
    """Each of `MEASURES` of every run that has it."""
    scale = {one.task: one for one in scales}
    table: dict[str, dict[str, dict[str, dict[int, float]]]] = {measure: {} for measure in MEASURES}
    for run in runs:
        found = {"violation": run.violation, "training_violations": run.training_violations}
        if run.task in scale and run.final_return is not None:
            zero, one = scale[run.task].random, scale[run.task].best
            found["score"] = (run.final_return - zero) / (one - zero)
        for measure, value in found.items():
            if value is not None:
                table[measure].setdefault(run.method, {}).setdefault(run.task, {})[run.seed] = value
    return dict(table)


def in_common(values: Values, methods: Sequence[str], tasks: Sequence[str]) -> tuple[list[str], list[int]]:
    """The tasks on which each of the methods has runs, and the seeds that each has on all of these; methods without any run aside."""
    rows = [values[method] for method in methods if method in values]
    shared = [task for task in tasks if rows and all(task in row for row in rows)]
    seeds = [set(row[task]) for row in rows for task in shared]
    return shared, sorted(set.intersection(*seeds)) if seeds else []


def matrix(values: Values, method: str, tasks: Sequence[str], seeds: Sequence[int]) -> Floats:
    """(seeds, tasks)."""
    return np.array([[values[method][task][seed] for task in tasks] for seed in seeds], np.float64)


def aggregates(
    values: Mapping[str, Values], methods: Sequence[str], tasks: Sequence[str], draw: Bootstrap
) -> list[Aggregate]:
    """Scores by all of `AGGREGATES`, the other measures by their mean."""
    found = []
    for measure in MEASURES:
        shared, seeds = in_common(values[measure], methods, tasks)
        for method in methods if seeds else ():
            if method not in values[measure]:
                continue
            scores = matrix(values[measure], method, shared, seeds)
            for name in AGGREGATES if measure == "score" else ("mean",):
                value, low, high = _interval(scores, AGGREGATES[name], draw)
                found.append(
                    Aggregate(
                        method=method,
                        measure=measure,
                        statistic=name,
                        value=value,
                        low=low,
                        high=high,
                        runs=scores.size,
                    )
                )
    return found


def curves(scores: Values, methods: Sequence[str], tasks: Sequence[str], draw: Bootstrap) -> list[Curve]:
    """Performance profiles over the tasks and seeds that all methods have; none for a single seed."""
    shared, seeds = in_common(scores, methods, tasks)
    if len(seeds) < 2:
        return []
    tables = {method: matrix(scores, method, shared, seeds) for method in methods if method in scores}
    lowest = min(0.0, *(float(table.min()) for table in tables.values()))
    highest = max(1.0, *(float(table.max()) for table in tables.values()))
    taus = np.linspace(lowest, highest, _TAUS)
    found = []
    for method, table in tables.items():
        profile = performance_profile(table, taus, rng=draw.rng, reps=draw.reps, confidence=draw.confidence)
        lines = {name: getattr(profile, name).tolist() for name in ("taus", "share", "low", "high")}
        found.append(Curve(method=method, **lines))
    return found


def _interval(
    scores: Floats, statistic: Statistic, draw: Bootstrap
) -> tuple[float, float | None, float | None]:
    """A statistic of scores (runs, tasks) and its interval: of a single run there is none."""
    value = float(statistic(scores))
    if len(scores) < 2:
        return value, None, None
    low, high = stratified_bootstrap(
        scores, statistic, rng=draw.rng, reps=draw.reps, confidence=draw.confidence
    )
    return value, float(low), float(high)
