"""What a run prints: tables of returns, of the certificate, and of what the shield knows and decided."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from marl_tools.core.types import AgentID
from marl_tools.experiment.runs import RunSummary

_WIDE = 10_000
"""Columns of a console that cuts nothing: a name or a figure that is cut is worth nothing, a line that wraps is."""


def _console() -> Console:
    """As wide as the terminal; into a pipe or a file as wide as the table."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)


def print_returns(evaluations: Mapping[str, Mapping[str, Any]]) -> None:
    """Mean returns, agent by agent; a column for each of the summaries of evaluations, by their titles."""
    if not evaluations:
        return
    columns = {
        title: {
            name: row["mean"]
            for name, row in {"mean over agents": returns["mean_over_agents"], **returns["agents"]}.items()
        }
        for title, summary in evaluations.items()
        if (returns := summary["returns"])
    }
    played = " and ".join(dict.fromkeys(str(summary["episodes"]) for summary in evaluations.values()))
    table = Table(title=f"mean return over {played} episodes")
    table.add_column("")
    for title in columns:
        table.add_column(title, justify="right")
    for row in dict.fromkeys(name for column in columns.values() for name in column):
        table.add_row(
            str(row), *(f"{column[row]:.3f}" if row in column else "" for column in columns.values())
        )
    _console().print(table)


def print_evaluation(title: str, summary: Mapping[str, Any]) -> None:
    """A summary's mean returns with their intervals."""
    table = Table(title=f"{title}: return over {summary['episodes']} episodes")
    table.add_column("")
    for column in ("mean", f"{summary['confidence']:.0%} interval"):
        table.add_column(column, justify="right")
    returns = summary["returns"]
    for name, row in {"mean over agents": returns["mean_over_agents"], **returns["agents"]}.items():
        interval = "-" if row["interval"] is None else "{:.3f} to {:.3f}".format(*row["interval"])
        table.add_row(str(name), f"{row['mean']:.3f}", interval)
    _console().print(table)


def print_certificate(certificate: Mapping[str, Any]) -> None:
    """Violation probability per horizon, agent and team, with the shield's own bound beside it."""
    table = Table(title=f"violation probability, from {certificate['episodes']} episodes")
    table.add_column("steps", justify="right")
    for title in ("who", "violations", f"{certificate['confidence']:.0%} interval", "shield's bound"):
        table.add_column(title, justify="left" if title == "who" else "right")
    shown: set[int] = set()
    for horizon in certificate["horizons"]:
        if horizon["h"] in shown:
            continue
        shown.add(horizon["h"])
        for position, (subject, row) in enumerate(horizon["subjects"].items()):
            interval = row.get("refused") or "{:.4f} to {:.4f}".format(*row["interval"])
            bound = f"{row['bound']:.4f}" if "bound" in row else ""
            table.add_row(
                str(horizon["h"]) if position == 0 else "",
                str(subject),
                str(row["violations"]),
                interval,
                bound,
            )
        table.add_section()
    _console().print(table)
    _console().print(certificate["bound_note"], markup=False, highlight=False)
    for contradiction in certificate["contradictions"][1:]:
        print(f"and {contradiction}")


def print_explanation(title: str, rows: Sequence[Mapping[str, Any]], agents: Sequence[AgentID]) -> None:
    """What the shield saw and decided, a column an agent; which of all ``agents`` had ended."""
    table = Table(title=title)
    table.add_column("")
    for row in rows:
        table.add_column(str(row["agent"]))
    for name in list(rows[0])[1:]:
        values = [row[name] for row in rows]
        table.add_row(name, *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    _console().print(table)
    acted = [row["agent"] for row in rows]
    if ended := [str(agent) for agent in agents if agent not in acted]:
        print(f"ended before this step: {', '.join(ended)}")


def print_coverage(report: Mapping[str, Any]) -> None:
    """How much of the env the shield knows; see `training.coverage.coverage`."""
    table = Table(title=f"what the shield knows of {report['env']}", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    known = "declared" if report["declared"] else "met so far"
    table.add_row(f"keys {known}", str(report["keys"]))
    table.add_row("keys visited", f"{report['keys_visited']:.1%}")
    table.add_row(f"rows {known}", str(report["rows"]))
    table.add_row("rows visited", f"{report['rows_visited']:.1%}")
    needed = report["visits_needed"]
    table.add_row(f"rows known well ({needed} visits)", f"{report['rows_known_well']:.1%}")
    table.add_row("visits still needed for that", str(report["visits_missing"]))
    for agent, share in report["keys_within_risk"].items():
        table.add_row(f"keys of risk up to {report['max_risk']:g}, {agent}", f"{share:.1%}")
    _console().print(table)


def print_runs(runs: Sequence[RunSummary]) -> None:
    """Run folders, one a line; see `experiment.runs.RunSummary`."""
    if not runs:
        print("no run folders here")
        return
    table = Table("run", "env", "state", box=None)
    for heading in ("steps", "train return", "best checkpoint", "age"):
        table.add_column(heading, justify="right")
    for run in runs:
        steps = f"{run.frames:,}" if run.timesteps is None else f"{run.frames:,}/{run.timesteps:,}"
        mean = "" if run.mean_return is None else f"{run.mean_return:.2f}"
        best = "" if run.best_return is None else f"{run.best_return:.2f} ({run.best_split or '?'})"
        # Names come from folders that anyone may have made: brackets in them are no markup.
        table.add_row(escape(run.folder), escape(run.env or ""), run.state, steps, mean, best, _age(run.age))
    Console(width=_WIDE).print(table)
    if any(run.best_split == "eval" for run in runs):
        print(
            "(train): average of training episodes, which explore; (eval): of evaluations without exploration"
        )
    for run in runs:
        if run.detail and run.state in ("failed", "damaged"):
            print(f"{run.folder}: {run.detail}")


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
