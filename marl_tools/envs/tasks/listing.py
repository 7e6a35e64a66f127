"""The catalogue as a table for people and as rows for programs; nothing third-party is imported for it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from marl_tools.envs.tasks.names import find_task, task_names
from marl_tools.envs.tasks.task import Task

_WIDE = 150
"""Columns from which on a table is easier to read than a paragraph a task."""


def task_rows() -> list[dict[str, Any]]:
    """What `marl-tools tasks --json` prints: a plain mapping a task, sorted by name.

    ``cost`` says in words what an agent is charged for, None if nothing; ``missing`` names packages that are not installed.
    """
    return [_row(find_task(name)) for name in task_names()]


def print_tasks(console: Console) -> None:
    """All tasks: one line each on a wide terminal, otherwise a short paragraph each."""
    tasks = [find_task(name) for name in task_names()]
    if console.width >= _WIDE:
        console.print(_table(tasks))
    else:
        for task in tasks:
            console.print(f"[bold]{task.name}[/]  {task.description}")
            console.print(Padding(_paragraph(task), (0, 0, 0, 4)), highlight=False)
    console.print(
        "An environment of your own is named package.module:function. Costs of third-party tasks are counted in "
        "evaluations and where a run has a constraint or a shield; always with --cost default.",
        highlight=False,
    )


def _row(task: Task) -> dict[str, Any]:
    return {
        "name": task.name,
        "id": task.id,
        "description": task.description,
        "agents": task.agents,
        "n_agents_can_be_set": task.n_agents_kwarg is not None,
        "observations": task.observations,
        "actions": task.actions,
        "cost": task.violation or None,
        "cap": task.cap,
        "native": task.native,
        "missing": task.missing(),
        "install": task.install,
    }


def _table(tasks: list[Task]) -> Table:
    table = Table("task", box=None, pad_edge=False)
    for heading in ("agents", "cap"):
        table.add_column(heading, justify="right")
    for heading in ("native", "observations", "actions", "cost", "installed"):
        table.add_column(heading, no_wrap=heading == "native")
    for task in tasks:
        table.add_row(
            task.name,
            str(task.agents),
            str(task.cap or ""),
            "yes" if task.native else "",
            task.observations,
            task.actions,
            task.violation,
            escape(task.install) if task.missing() else "yes",
        )
    return table


def _paragraph(task: Task) -> str:
    facts = [
        f"{task.agents} agent{'s' if task.agents != 1 else ''}",
        f"sees {task.observations}",
        f"acts by {task.actions}",
        f"cap {task.cap}" if task.cap else "",
        "native" if task.native else "",
    ]
    lines = [
        " · ".join(fact for fact in facts if fact),
        f"cost: {task.violation}" if task.violation else "",
        f"not installed: {task.install}" if task.missing() else "",
    ]
    # Brackets of an extra are no markup.
    return escape("\n".join(line for line in lines if line))
