"""What a run is of: names, one fixed colour for each method, on every page the same for the same kind, and whether it counts costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from marl_tools.bench.report.gather import Collection, Reading
from marl_tools.bench.report.wording import family, mapping, method_of
from marl_tools.core.errors import ConfigError
from marl_tools.envs.tasks import find_task

COLORS = 8


def method_name(run: Reading) -> str:
    """What its plan calls it; of other runs what its settings amount to."""
    return run.method or method_of(run.config)


def task_name(run: Reading) -> str:
    return run.task or str(run.summary.env or "unknown")


def is_costed(run: Reading) -> bool:
    """Whether training counted costs, as far as the run shows: without any, costs of 0 say nothing."""
    needed = family(run.config) > 0
    if run.curves.total("cost") > 0:
        return True
    # A task's own cost may be counted in evaluations alone, so that a certificate tells nothing of training.
    with suppress(ConfigError, TypeError):
        counted = find_task(run.config.get("env", "")).counts_costs(run.config.get("cost"), needed=needed)
        if counted is not None:
            return counted
    return needed or "certificate" in run.notes


def method_colors(collection: Collection) -> dict[str, int]:
    """A colour for each method: that of its kind if no other has it, else the next that is free."""
    settings: dict[str, Mapping[str, Any]] = {}
    common = mapping(collection.plan.get("settings"))
    for name, own in mapping(collection.plan.get("methods")).items():
        settings[str(name)] = {**common, **mapping(own)}
    for run in collection.runs.values():
        settings.setdefault(method_name(run), run.config)
    colors: dict[str, int] = {}
    free = list(range(COLORS))
    for name, own in settings.items():
        wanted = family(own)
        color = wanted if wanted in free else _next(free, len(colors))
        if color in free:
            free.remove(color)
        colors[name] = color
    return colors


def tasks_of(collection: Collection) -> list[str]:
    """In the order of the plan, then those of other runs."""
    planned = [str(name) for name in mapping(collection.plan.get("tasks"))]
    return list(dict.fromkeys([*planned, *map(task_name, collection.runs.values())]))


def _next(free: Sequence[int], taken: int) -> int:
    # The first three belong to kinds of methods that may still come.
    later = [color for color in free if color > 2]
    return (later or list(free) or [taken % COLORS])[0]
