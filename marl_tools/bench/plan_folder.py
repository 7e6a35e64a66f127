"""The folder of a plan: ``plan.json``, one run folder a run, and what may be added when the plan is called again."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_tools.bench.plan import Plan, PlannedRun
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import load_from_file, save_to_file
from marl_tools.experiment.folder import refuse_file

PLAN, SUMMARY, RUNS = "plan.json", "summary.json", "runs"
_OWN = {"run.lock"}
_SHOWN = 5

_Key = tuple[str, str, int]


def run_folder(folder: Path, run: PlannedRun) -> Path:
    """Where a run of the plan in ``folder`` lives."""
    return folder / RUNS / run.id


def load_plan(folder: Path) -> tuple[Plan, dict[_Key, str]] | None:
    """The plan of a folder and the ids of its runs by (method, task, seed); None where there is none.

    Raises:
        CorruptFileError: its plan.json is damaged; names the field.
    """
    path = folder / PLAN
    try:
        content = load_from_file(folder, PLAN)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} holds a {type(content).__name__}, not a plan")
    runs = content.pop("runs", None)
    try:
        plan = Plan.from_definition(content)
    except ConfigError as error:
        raise CorruptFileError(f"{path}: {error}") from error
    return plan, _ids(path, runs)


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
