"""`compare`: the methods of a plan side by side, from whatever runs in its folder are done."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marl_tools.bench.pairs import Pair, pairs
from marl_tools.bench.plan_folder import read_plan
from marl_tools.bench.run_figures import Missing, RunFigures, RunReading, figures_of_runs
from marl_tools.bench.scores import (
    Aggregate,
    Bootstrap,
    Cell,
    Curve,
    Scale,
    aggregates,
    cell,
    curves,
    in_common,
    scale_of,
    values_of,
)
from marl_tools.bench.verdicts import verdicts
from marl_tools.core.checks import at_least, between


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that the finished runs of a plan say about its methods.

    ``runs`` has the figures of each finished run, ``cells`` their means by task and method, ``missing`` the planned runs that are
    not there, ``excluded`` the pairs of method and task that the plan leaves out, each with its reason. ``common_tasks`` and
    ``common_seeds`` are those in which all methods have a score: aggregates and ``profiles`` of scores are over them. A pair of
    methods is compared on what the two have in common.
    """

    name: str
    methods: Sequence[str]
    tasks: Sequence[str]
    seeds: Sequence[int]
    confidence: float
    runs: Sequence[RunFigures]
    missing: Sequence[Missing]
    excluded: Sequence[Mapping[str, str]]
    cells: Sequence[Cell]
    scales: Sequence[Scale]
    common_tasks: Sequence[str]
    common_seeds: Sequence[int]
    aggregates: Sequence[Aggregate]
    pairs: Sequence[Pair]
    profiles: Sequence[Curve]

    @property
    def sentences(self) -> list[str]:
        """What is shown and what is not, in words."""
        return verdicts(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values, the sentences among them; what is unknown is None, so that it is strict JSON."""
        return {**asdict(self), "sentences": self.sentences}


def compare(
    folder: str | os.PathLike[str],
    *,
    reps: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    known: Mapping[str, RunReading] | None = None,
) -> Comparison:
    """Compare the methods of the plan in ``folder`` (``plan.json`` and ``runs/<id>/``), changing nothing there.

    Only finished runs count. Those that are missing, failed or damaged are named, and the rest is compared. The same
    folder gives the same figures: all resampling follows from ``seed``. Runs that are ``known``, by id, are not read again.

    A score is a final return (mean over agents, in the evaluation of the trained team) on a scale on which random play on that
    task is 0 and the mean of the best method is 1. A task on which no method is better than random play has no scores.

    Raises:
        ConfigError: no plan in the folder, or ``reps`` or ``confidence`` that cannot be.
        CorruptFileError: its plan.json is damaged.
    """
    folder = Path(folder)
    draw = Bootstrap(
        rng=np.random.default_rng(seed),
        reps=at_least(1)("reps", reps),
        confidence=between(0, 1)("confidence", confidence),
    )
    plan = read_plan(folder)
    runs, missing = figures_of_runs(folder, plan, known)
    methods, tasks = list(plan.methods), list(plan.tasks)
    scales = [scale for task in tasks if (scale := scale_of(task, methods, runs))]
    values = values_of(runs, scales)
    common_tasks, common_seeds = in_common(values["score"], methods, tasks)
    return Comparison(
        name=plan.name,
        methods=methods,
        tasks=tasks,
        seeds=sorted({run.seed for run in plan.runs}),
        confidence=confidence,
        runs=runs,
        missing=missing,
        excluded=plan.excluded,
        cells=[cell(task, method, plan.runs, runs, draw) for task in tasks for method in methods],
        scales=scales,
        common_tasks=common_tasks,
        common_seeds=common_seeds,
        aggregates=aggregates(values, methods, tasks, draw),
        pairs=pairs(values, methods, tasks, draw),
        profiles=curves(values["score"], methods, tasks, draw),
    )
