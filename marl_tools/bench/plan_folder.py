"""The folder of a plan: ``plan.json``, one run folder a run, and what may be added when the plan is called again.

Two read ``plan.json``: `load_plan` to go on with the plan, settings and all, and `read_plan` for whoever only looks at its runs,
which may be those of another version of this package.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from marl_tools.bench.plan import Plan, PlannedRun
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import load_from_file, save_to_file
from marl_tools.experiment.folder import refuse_file

PLAN, SUMMARY, RUNS = "plan.json", "summary.json", "runs"
FINISHED = ("done", "solved")
"""States of runs that nothing is left to do for."""
_OWN = {"run.lock"}
_SHOWN = 5

_Key = tuple[str, str, int]


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """Which run of a plan it is; ``runs/<id>`` is its folder."""

    id: str
    method: str
    task: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class PlannedRuns:
    """What a plan consists of, without its settings; each of ``excluded`` has a method, a task and why it is left out."""

    name: str
    methods: Sequence[str]
    tasks: Sequence[str]
    runs: Sequence[RunKey]
    excluded: Sequence[Mapping[str, str]]


def run_folder(folder: Path, run: PlannedRun | RunKey) -> Path:
    """Where a run of the plan in ``folder`` lives."""
    return folder / RUNS / run.id


def load_plan(folder: Path) -> tuple[Plan, dict[_Key, str]] | None:
    """The plan of a folder and the ids of its runs by (method, task, seed); None where there is none.

    Raises:
        CorruptFileError: its plan.json is damaged; names the field.
    """
    path = folder / PLAN
    if (content := _content(path)) is None:
        return None
    runs = content.pop("runs", None)
    try:
        plan = Plan.from_definition(content)
    except ConfigError as error:
        raise CorruptFileError(f"{path}: {error}") from error
    return plan, _ids(path, runs)


def read_plan(folder: Path) -> PlannedRuns:
    """The runs that the plan in ``folder`` consists of.

    Raises:
        ConfigError: there is no plan.
        CorruptFileError: it is damaged, or a run's id is no plain name; names the field.
    """
    path = folder / PLAN
    if (content := _content(path)) is None:
        raise ConfigError(
            f"{folder} is no plan: it has no {PLAN}; name a folder that `marl-tools bench` wrote"
        )
    methods, tasks, rows = (
        _field(path, content, name, kind)
        for name, kind in (("methods", dict), ("tasks", dict), ("runs", list))
    )
    excluded = content.get("except") or []
    try:
        return PlannedRuns(
            name=str(content.get("name", folder.name)),
            methods=list(methods),
            tasks=list(tasks),
            runs=[_run_key(row, methods, tasks) for row in rows],
            excluded=[
                {key: str(row[key]) for key in ("method", "task", "why") if key in row} for row in excluded
            ],
        )
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{path}: field 'runs' or 'except': {error}") from error


def is_run_id(value: Any) -> TypeGuard[str]:
    """Whether it is a plain name: it becomes a path, and a stranger's plan must not lead elsewhere."""
    return isinstance(value, str) and Path(value).name == value and value not in ("", ".", "..")


def join_plan(plan: Plan, folder: Path) -> tuple[Plan, list[PlannedRun]]:
    """The plan that a folder holds when ``plan`` was asked for there, and all its runs; nothing is written.

    Seeds, methods and tasks may be added to those that are there. Runs that are there keep their ids: these also depend on the
    settings that a version of this package knows.

    Raises:
        ConfigError: the folder holds another plan, and in what it differs; or something else than a plan.
        CorruptFileError: its plan.json is damaged.
    """
    refuse_file(folder)
    stored = load_plan(folder)
    if stored is None:
        if folder.is_dir() and {path.name for path in folder.iterdir()} - _OWN:
            raise ConfigError(f"{folder} is not empty and holds no plan: give another --out")
        return plan, plan.runs()
    earlier, ids = stored
    if differences := _differences(earlier, plan):
        listed = "; ".join(differences[:_SHOWN])
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise ConfigError(
            f"{folder} holds another plan: {listed}{more}. Give another --out; in a plan that has begun, seeds, methods and "
            "tasks can only be added"
        )
    joined = dataclasses.replace(plan, seeds=tuple(dict.fromkeys((*earlier.seeds, *plan.seeds))))
    runs = [
        dataclasses.replace(run, id=ids.get((run.method, run.task, run.seed), run.id))
        for run in joined.runs()
    ]
    return joined, runs


def save_plan(plan: Plan, runs: Sequence[PlannedRun], folder: Path) -> None:
    """Write ``plan.json``: the plan's definition and its runs."""
    listed = [{"id": run.id, "method": run.method, "task": run.task, "seed": run.seed} for run in runs]
    save_to_file({**plan.definition(), "runs": listed}, folder, PLAN)


def _content(path: Path) -> dict[str, Any] | None:
    """What a plan.json holds, by field; None where there is none."""
    try:
        content = load_from_file(path.parent, path.name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} holds a {type(content).__name__}, not a plan by field")
    return content


def _field(path: Path, content: Mapping[str, Any], name: str, kind: type) -> Any:
    value = content.get(name)
    if not isinstance(value, kind):
        raise CorruptFileError(f"{path}: field {name!r} is {str(value)[:80]!r}, no {kind.__name__}")
    return value


def _run_key(row: Mapping[str, Any], methods: Mapping[str, Any], tasks: Mapping[str, Any]) -> RunKey:
    """Raises ValueError or LookupError with what is wrong."""
    run_id, method, task, seed = (row[key] for key in ("id", "method", "task", "seed"))
    if not is_run_id(run_id):
        raise ValueError(f"the id {str(run_id)[:80]!r} is no plain name of a folder")
    if method not in methods or task not in tasks:
        raise ValueError(
            f"run {run_id!r} is of method {method!r} on task {task!r}, which the plan does not have"
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"run {run_id!r} has the seed {str(seed)[:80]!r}, no whole number")
    return RunKey(id=run_id, method=method, task=task, seed=seed)


def _ids(path: Path, runs: Any) -> dict[_Key, str]:
    """Ids from a file, which become names of folders: nothing but what a plan would have called them."""
    if not isinstance(runs, list):
        raise CorruptFileError(f"{path}: field 'runs' is no list")
    ids = {}
    for run in runs:
        parts = run if isinstance(run, dict) else {}
        method, task, seed, run_id = (parts.get(part) for part in ("method", "task", "seed", "id"))
        own = rf"{re.escape(f'{method}-{task}-s{seed}')}-[0-9a-f]{{8}}"
        if not (isinstance(run_id, str) and re.fullmatch(own, run_id)):
            raise CorruptFileError(
                f"{path}: field 'runs' names a run {str(run)[:120]} that is none of a plan"
            )
        ids[method, task, seed] = run_id
    return ids


def _differences(earlier: Plan, asked: Plan) -> list[str]:
    """In what a plan is not the earlier one with more seeds, methods and tasks, in words."""
    then, now = earlier.definition(), asked.definition()
    found = [] if then["name"] == now["name"] else [f"its name is {then['name']!r}, not {now['name']!r}"]
    found += _settings_differ("settings", then["settings"], now["settings"])
    for part in ("methods", "tasks"):
        for name, settings in then[part].items():
            where = f"{part}.{name}"
            if name in now[part]:
                found += _settings_differ(where, settings, now[part][name])
            else:
                found.append(f"{where} is missing now (--only picks runs)")
    left_out = {(one["method"], one["task"]) for one in then["except"]}
    for excluded in now["except"]:
        pair = (excluded["method"], excluded["task"])
        known = excluded["method"] in then["methods"] and excluded["task"] in then["tasks"]
        if known and pair not in left_out:
            found.append(f"{' on '.join(pair)} is excepted now and was not")
        left_out.discard(pair)
    return found + [f"{' on '.join(pair)} is no longer excepted" for pair in sorted(left_out)]


def _settings_differ(where: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{where}.{name} is {_shown(then, name)} there, {_shown(now, name)} now"
        for name in sorted({*then, *now})
        if then.get(name, ...) != now.get(name, ...)
    ]


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name])[:80] if name in settings else "not set"
