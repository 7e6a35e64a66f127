"""The folder of a plan as it is found: what was planned, which runs are done, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_tools.bench.run_figures import RunFigures, figures_of_run
from marl_tools.core.errors import ConfigError, CorruptFileError, MarlToolsError
from marl_tools.core.io import load_from_file
from marl_tools.experiment.runs import summarise_run

PLAN, RUNS = "plan.json", "runs"


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """Which run of a plan it is; ``runs/<id>`` is its folder."""

    id: str
    method: str
    task: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class PlannedRuns:
    """What `compare` needs of a ``plan.json``; each of ``excluded`` has a method, a task and why it is left out."""

    name: str
    methods: Sequence[str]
    tasks: Sequence[str]
    runs: Sequence[RunKey]
    excluded: Sequence[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A planned run without figures: ``state`` is that of `RunSummary`, or "missing" where there is no folder."""

    id: str
    method: str
    task: str
    seed: int
    state: str
    why: str


def read_plan(folder: Path) -> PlannedRuns:
    """The runs that the plan in ``folder`` consists of.

    Raises:
        ConfigError: there is no plan.
        CorruptFileError: it is damaged, or a run's id is no plain name; names the field.
    """
    where = folder / PLAN
    try:
        plan = load_from_file(folder, PLAN)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{folder} is no plan: it has no {PLAN}; name a folder that `marl-tools bench` wrote"
        ) from None
    if not isinstance(plan, dict):
        raise CorruptFileError(f"{where} holds a {type(plan).__name__}, not a plan by field")
    methods, tasks, rows = (
        _field(plan, name, kind, where) for name, kind in (("methods", dict), ("tasks", dict), ("runs", list))
    )
    excluded = plan.get("except") or []
    try:
        return PlannedRuns(
            name=str(plan.get("name", folder.name)),
            methods=list(methods),
            tasks=list(tasks),
            runs=[_planned(row, methods, tasks) for row in rows],
            excluded=[
                {key: str(row[key]) for key in ("method", "task", "why") if key in row} for row in excluded
            ],
        )
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{where}: field 'runs' or 'except': {error}") from error


def read_runs(folder: Path, plan: PlannedRuns) -> tuple[list[RunFigures], list[Missing]]:
    """The figures of the runs that are done, and the others."""
    figures, missing = [], []
    for run in plan.runs:
        place = folder / RUNS / run.id
        names = {"id": run.id, "method": run.method, "task": run.task, "seed": run.seed}
        if not place.is_dir():
            missing.append(Missing(**names, state="missing", why="not started"))
            continue
        summary = summarise_run(place)
        if summary.state not in ("done", "solved"):
            why = summary.detail or f"{summary.frames} of {summary.timesteps} env steps played"
            missing.append(Missing(**names, state=summary.state, why=why))
            continue
        try:
            figures.append(figures_of_run(place, **names))
        except (MarlToolsError, OSError) as error:
            missing.append(Missing(**names, state="damaged", why=str(error)))
    return figures, missing


def _field(plan: Mapping[str, Any], name: str, kind: type, where: Path) -> Any:
    value = plan.get(name)
    if not isinstance(value, kind):
        raise CorruptFileError(f"{where}: field {name!r} is {str(value)[:80]!r}, no {kind.__name__}")
    return value


def _planned(row: Mapping[str, Any], methods: Mapping[str, Any], tasks: Mapping[str, Any]) -> RunKey:
    """Raises ValueError or LookupError with what is wrong."""
    run_id, method, task, seed = (row[key] for key in ("id", "method", "task", "seed"))
    # It becomes a path: a stranger's plan must not lead elsewhere.
    if not isinstance(run_id, str) or Path(run_id).name != run_id or run_id in ("", ".", ".."):
        raise ValueError(f"the id {str(run_id)[:80]!r} is no plain name of a folder")
    if method not in methods or task not in tasks:
        raise ValueError(
            f"run {run_id!r} is of method {method!r} on task {task!r}, which the plan does not have"
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"run {run_id!r} has the seed {str(seed)[:80]!r}, no whole number")
    return RunKey(id=run_id, method=method, task=task, seed=seed)
