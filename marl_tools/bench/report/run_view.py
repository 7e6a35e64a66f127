"""What the templates show of a run: all that is said of it, worked out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from marl_tools.bench.report.clips import Clip, Film
from marl_tools.bench.report.curves import BINS
from marl_tools.bench.report.figures import Figure
from marl_tools.bench.report.findings import Finding, remedy, run_findings
from marl_tools.bench.report.gather import Reading
from marl_tools.bench.report.learning_figures import run_figures
from marl_tools.bench.report.tables import (
    ReturnRow,
    RiskRow,
    certified,
    evaluation_table,
    mean_return,
    risk_table,
    setting_rows,
    version_rows,
)
from marl_tools.bench.report.wording import duration, family, interval, is_number, method_of, number, text


class Tile(NamedTuple):
    """One figure of the headline."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run as its page shows it."""

    method: str
    family: int
    shielded: bool
    tiles: list[Tile]
    progress: float | None
    remedy: str
    findings: list[Finding]
    films: list[tuple[Clip, str]]
    returns: list[ReturnRow]
    costs: list[ReturnRow]
    risks: list[tuple[Any, list[RiskRow]]]
    bound_note: str
    assumes: list[str]
    contradictions: list[str]
    figures: Mapping[str, list[Figure]]
    settings: list[tuple[str, str]]
    versions: list[tuple[str, str]]


def run_view(run: Reading, film: Film, *, points: int = BINS) -> RunView:
    """All that is said of a run; figures have at most ``points`` points a line."""
    certificate = run.notes.get("certificate", {})
    costed = bool(certificate)
    films = [] if film.videos == "none" else [(clip, film.source(clip)) for clip in run.clips]
    return RunView(
        method=method_of(run.config),
        family=family(run.config),
        shielded=run.config.get("shield", "none") != "none",
        tiles=_tiles(run),
        progress=_progress(run),
        remedy=remedy(run),
        findings=run_findings(run),
        films=films,
        returns=evaluation_table(run, "returns"),
        costs=evaluation_table(run, "costs") if costed else [],
        risks=[(key, list(rows)) for key, rows in groupby(risk_table(run), key=lambda row: row.horizon)],
        bound_note=text(certificate.get("bound_note", ""), 1000),
        assumes=_sentences(certificate.get("assumes")),
        contradictions=_sentences(certificate.get("contradictions")),
        figures=run_figures(run, points=points),
        settings=setting_rows(run),
        versions=version_rows(run),
    )


def _tiles(run: Reading) -> list[Tile]:
    before, after = mean_return(run, "random"), mean_return(run, "trained")
    tiles = []
    if after:
        was = f"random play {number(before['mean'])}" if before else ""
        tiles.append(Tile("Return, trained team", number(after["mean"]), was))
    elif is_number(run.summary.mean_return):
        tiles.append(Tile("Return in training", number(run.summary.mean_return), "moving average"))
    if team := certified(run):
        count = f"{number(team.row.get('violations'))} of {number(team.row.get('episodes'))}"
        tiles.append(Tile("Violations, evaluated", count, interval(team.row.get("interval"), percent=True)))
        bounds = [row["bound"] for row in team.agents.values() if is_number(row.get("bound"))]
        if bounds:
            rho = f"rho = {number(run.config.get('max_risk'), percent=True)}"
            tiles.append(Tile("Bound per agent", number(max(bounds), percent=True), rho))
    planned = f"of {run.summary.timesteps:,}" if run.summary.timesteps else ""
    tiles.append(Tile("Env steps", f"{run.summary.frames:,}", planned))
    worked = sum(
        seconds
        for row in run.updates
        for seconds in (row.get("collect_seconds"), row.get("update_seconds"))
        if is_number(seconds)
    )
    if worked:
        tiles.append(Tile("Time at work", duration(worked), f"{number(run.summary.frames / worked)} steps/s"))
    return tiles


def _progress(run: Reading) -> float | None:
    planned = run.summary.timesteps
    return round(min(100.0, 100 * run.summary.frames / planned), 1) if planned else None


def _sentences(rows: Any) -> list[str]:
    return [text(row, 1000) for row in rows] if isinstance(rows, list) else []
