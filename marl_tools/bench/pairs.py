"""Every two methods of a plan against each other, over all tasks and on each, with all tests of a kind corrected together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from marl_tools.bench.scores import MEASURES, Bootstrap, Values, in_common, matrix
from marl_tools.bench.statistics import holm, paired_permutation_test, probability_of_improvement


@dataclass(frozen=True, kw_only=True)
class TaskPair:
    """Two methods on one task: mean of x - y over the seeds that both have, and its p, alone and Holm-corrected."""

    task: str
    seeds: int
    difference: float
    p: float
    p_holm: float


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two methods by one measure, over the ``tasks`` that both have and the ``seeds`` that they have on all of these.

    ``improvement`` is the probability that a run of x is better than one of y (``better`` says whether that is "higher" or "lower"), with
    its interval from ``low`` to ``high``, none for a single seed. ``difference`` is the mean of x - y. ``p`` is that of a paired
    sign-flip test over all runs, ``p_holm`` the same corrected for all pairs and measures; those of ``by_task`` are
    a family of their own.
    """

    measure: str
    better: str
    x: str
    y: str
    tasks: list[str]
    seeds: list[int]
    improvement: float
    low: float | None
    high: float | None
    difference: float
    p: float
    p_holm: float
    by_task: list[TaskPair]


def pairs(
    values: Mapping[str, Values], methods: Sequence[str], tasks: Sequence[str], draw: Bootstrap
) -> list[Pair]:
    """All pairs of methods by each of `MEASURES`, where they have a task and a seed in common."""
    found = [
        pair
        for measure in MEASURES
        for x, y in combinations([method for method in methods if method in values[measure]], 2)
        if (pair := _pair(measure, values[measure], x, y, tasks, draw))
    ]
    overall = holm([pair.p for pair in found])
    single = iter(holm([row.p for pair in found for row in pair.by_task]).tolist())
    return [
        replace(pair, p_holm=float(p), by_task=[replace(row, p_holm=next(single)) for row in pair.by_task])
        for pair, p in zip(found, overall, strict=True)
    ]


def _pair(measure: str, values: Values, x: str, y: str, tasks: Sequence[str], draw: Bootstrap) -> Pair | None:
    """None where there is nothing to compare by."""
    shared, seeds = in_common(values, (x, y), tasks)
    if not seeds:
        return None
    one, other = (matrix(values, method, shared, seeds) for method in (x, y))
    sign = MEASURES[measure]
    improvement = probability_of_improvement(
        sign * one, sign * other, rng=draw.rng, reps=draw.reps, confidence=draw.confidence
    )
    several = len(seeds) > 1
    p = paired_permutation_test(one, other, rng=draw.rng)
    return Pair(
        measure=measure,
        better="higher" if sign > 0 else "lower",
        x=x,
        y=y,
        tasks=shared,
        seeds=seeds,
        improvement=improvement.probability,
        low=improvement.low if several else None,
        high=improvement.high if several else None,
        difference=float((one - other).mean()),
        p=p,
        p_holm=p,
        by_task=[_on_task(values, x, y, task, draw) for task in shared],
    )


def _on_task(values: Values, x: str, y: str, task: str, draw: Bootstrap) -> TaskPair:
    _, seeds = in_common(values, (x, y), [task])
    one, other = (matrix(values, method, [task], seeds) for method in (x, y))
    p = paired_permutation_test(one, other, rng=draw.rng)
    return TaskPair(task=task, seeds=len(seeds), difference=float((one - other).mean()), p=p, p_holm=p)
