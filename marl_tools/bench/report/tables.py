"""The tables of a run, from its notes: returns before and after, and the certificate against rho."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from marl_tools.bench.report.gather import Reading
from marl_tools.bench.report.wording import is_number, mapping, pair, text
from marl_tools.training.certificate import TEAM

Policy = Literal["random", "trained"]


class Certified(NamedTuple):
    """The longest certified horizon: steps, the team's row and the agents' rows."""

    h: Any
    row: Mapping[str, Any]
    agents: Mapping[str, Mapping[str, Any]]


class ReturnRow(NamedTuple):
    """One line of the table of returns; empty where there was no such evaluation."""

    who: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


class RiskRow(NamedTuple):
    """One line of the certificate: who, what was counted, and what it is held against.

    ``allowed`` is rho of an agent, or the sum of the agents' for the team, and None without a shield. ``verdict`` is
    "within", "above", "open" or "" where there is nothing to compare; ``span`` the figures in percent of the bar's length.
    """

    horizon: Any
    who: str
    row: Mapping[str, Any]
    allowed: float | None
    verdict: str
    span: Mapping[str, float] | None


def mean_return(run: Reading, policy: Policy) -> Mapping[str, Any] | None:
    """Mean over agents of an evaluation's returns, with its interval."""
    returns = mapping(run.notes.get(f"evaluation-{policy}", {}).get("returns"))
    row = mapping(returns.get("mean_over_agents"))
    return row if is_number(row.get("mean")) else None


def evaluation_table(run: Reading, figure: Literal["returns", "costs"]) -> list[ReturnRow]:
    """Mean over agents first, then agent by agent."""
    tables = [
        mapping(run.notes.get(f"evaluation-{policy}", {}).get(figure)) for policy in ("random", "trained")
    ]
    if not any(tables):
        return []
    agents = list(dict.fromkeys(agent for table in tables for agent in mapping(table.get("agents"))))
    rows = [ReturnRow("mean over agents", *(mapping(table.get("mean_over_agents")) for table in tables))]
    if len(agents) == 1:
        rows = []
    return rows + [
        ReturnRow(agent, *(mapping(mapping(table.get("agents")).get(agent)) for table in tables))
        for agent in agents
    ]


def certified(run: Reading) -> Certified | None:
    """What the certificate says of the longest horizon that it does not refuse."""
    best = None
    for h, subjects in _horizons(run):
        team = mapping(subjects.get(TEAM))
        if is_number(h) and "interval" in team and (best is None or h > best.h):
            agents = {name: mapping(row) for name, row in subjects.items() if name != TEAM}
            best = Certified(h, team, agents)
    return best


def risk_table(run: Reading) -> list[RiskRow]:
    """The certificate, horizon by horizon; those cut to the same length once."""
    shielded = run.config.get("shield", "none") != "none"
    rho = run.config.get("max_risk") if shielded else None
    rows, shown = [], set[str]()
    for h, subjects in _horizons(run):
        if str(h) in shown:
            continue
        shown.add(str(h))
        for who, row in subjects.items():
            row = mapping(row)
            share = len(subjects) - 1 if who == TEAM else 1
            allowed = None if not is_number(rho) else min(1.0, share * rho)
            rows.append(RiskRow(h, who, row, allowed, _verdict(row, allowed), None))
    longest = max((value for row in rows for value in _figures(row)), default=0.0) or 1.0
    return [row._replace(span=_span(row, longest)) for row in rows]


def setting_rows(run: Reading) -> list[tuple[str, str]]:
    """Settings by name, as they would be typed; long ones cut."""
    return [(str(name), text(value)) for name, value in run.config.items()]


def version_rows(run: Reading) -> list[tuple[str, str]]:
    return [(str(name), text(value)) for name, value in run.notes.get("versions", {}).items()]


def _horizons(run: Reading) -> list[tuple[Any, Mapping[str, Any]]]:
    rows = run.notes.get("certificate", {}).get("horizons")
    return [
        (row.get("h"), row["subjects"])
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and isinstance(row.get("subjects"), dict)
    ]


def _verdict(row: Mapping[str, Any], allowed: float | None) -> str:
    between = pair(row.get("interval"))
    if allowed is None or between is None:
        return ""
    return "within" if between[1] <= allowed else "above" if between[0] > allowed else "open"


def _figures(row: RiskRow) -> list[float]:
    between = pair(row.row.get("interval")) or ()
    values = [*between, row.row.get("bound"), row.allowed]
    return [float(value) for value in values if is_number(value)]


def _span(row: RiskRow, longest: float) -> dict[str, float] | None:
    between = pair(row.row.get("interval"))
    if between is None:
        return None
    places = {"lo": between[0], "hi": between[1], "estimate": row.row.get("estimate"), "allowed": row.allowed}
    places["bound"] = row.row.get("bound")
    return {name: round(100 * value / longest, 2) for name, value in places.items() if is_number(value)}
