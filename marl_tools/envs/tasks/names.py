"""Tasks by name: the short one, those of the packages themselves, and references to anyone's function."""

from __future__ import annotations

import re

from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.envs.tasks.catalogue import CATALOGUE
from marl_tools.envs.tasks.task import Task

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_TASKS = {task.name: task for task in CATALOGUE}


def _spellings(task: Task) -> tuple[str, ...]:
    family, versioned = task.id.split("/")
    # mpe2's environments were PettingZoo's `mpe` family until they moved out.
    prefixes = ("", f"{family}/", *(["mpe/"] if family == "mpe2" else []))
    return tuple(prefix + name for prefix in prefixes for name in (task.name, versioned))


_SPELLED = {spelling: task for task in CATALOGUE for spelling in _spellings(task)}
_SPELLED["kaz"] = _TASKS["knights_archers_zombies"]


def task_names() -> list[str]:
    """The short names, sorted."""
    return sorted(_TASKS)


def find_task(name: str) -> Task:
    """The task of that name.

    Besides the short name, the names used by the packages themselves are understood (``simple_spread_v3``,
    ``mpe2.simple_spread_v3``, ``butterfly/pistonball-v6``), ``kaz``, and ``package.module:function`` for any
    other environment. Another version than the one known here is refused: its results would not compare.

    Raises:
        ConfigError: no such task; the message holds the nearest name.
    """
    if _REFERENCE.fullmatch(name):
        return Task(name=name, make_env=name, description="an environment of your own")
    if ":" in name:
        raise ConfigError(f"{name!r} is no reference to a function. Write package.module:function.")
    spelling = re.sub(r"_v(\d+)$", r"-v\1", name.replace(".", "/")).removeprefix("pettingzoo/")
    if spelling in _SPELLED:
        return _SPELLED[spelling]
    stem = re.sub(r"-v\d+$", "", spelling.rsplit("/", 1)[-1])
    raise ConfigError(
        f"No task is named {name!r}.{did_you_mean(stem, _TASKS)} "
        "An environment of your own is given as package.module:function."
    )
