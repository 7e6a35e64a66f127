"""The figures of a run over its env steps: returns and costs, violations, shield, multipliers, losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marl_tools.bench.report.curves import BINS, CONFIDENCE, Curve, thinned
from marl_tools.bench.report.figures import MOST_LINES, Figure, Lines
from marl_tools.bench.report.gather import Reading
from marl_tools.bench.report.methods import is_costed
from marl_tools.bench.report.wording import is_number, mapping
from marl_tools.training.evaluate import mean_interval

_LOSSES = {
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "entropy": "entropy",
    "approx_kl": "KL divergence of an update",
    "clip_fraction": "share of clipped ratios",
    "explained_variance": "explained variance of the returns",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
}


def run_figures(run: Reading, *, points: int = BINS) -> dict[str, list[Figure]]:
    """All figures of a run by the section that they belong to, with at most ``points`` points a line."""
    sections = {
        "returns": [_returns(run, points), _costs(run, points)],
        "violations": [_violation_rate(run, points), _violation_count(run, points)],
        "shield": [_interventions(run, points), _overrides(run, points), _model(run, points)],
        "multipliers": [_multipliers(run, points), _cost_seen(run, points)],
        "learning": [*_losses(run, points), _speed(run, points)],
    }
    return {name: [figure for figure in figures if figure] for name, figures in sections.items()}


def _returns(run: Reading, points: int) -> Figure | None:
    curves, agents = run.curves, list(run.curves.agents)
    note = "Mean over the training episodes that ended in the same part of the run, with its 95 % interval. They explore."
    lines = Lines("returns", "Return", "return per episode", note=note)
    if 1 < len(agents) <= MOST_LINES:
        for place, agent in enumerate(agents):
            lines.add(agent, curves.mean("return", agent, points=points), place)
    elif len(agents) > MOST_LINES:
        lines.note += f" {len(agents)} agents are too many for a line each: the tables have them."
    name = "mean over agents" if len(agents) != 1 else agents[0]
    lines.add(name, curves.mean("return", points=points), -1, band=len(lines.traces) == 0, width=2.6)
    if run.curves.evaluations:
        lines.add("evaluations, without exploration", _evaluations(run), -2, mode="markers", error=True)
    returns = run.notes.get("evaluation-random", {}).get("returns")
    if isinstance(returns, dict) and isinstance(baseline := returns.get("mean_over_agents"), dict):
        lines.level(baseline.get("mean"), "random play")
    return lines.done()


def _evaluations(run: Reading) -> Curve:
    frames = sorted(run.curves.evaluations)
    rows = []
    for frame in frames:
        row = mean_interval(run.curves.evaluations[frame], CONFIDENCE)
        rows.append((row["mean"], *(row["interval"] or (math.nan, math.nan))))
    return Curve(np.asarray(frames, np.float64), *np.asarray(rows).T)


def _costs(run: Reading, points: int) -> Figure | None:
    if not is_costed(run):
        return None
    lines = Lines(
        "costs", "Cost", "cost per episode", note="As above; what the env charged, training episodes alone."
    )
    for place, agent in enumerate(list(run.curves.agents)[:MOST_LINES]):
        curve = run.curves.mean("cost", agent, points=points)
        lines.add(agent, curve._replace(lo=np.maximum(curve.lo, 0.0)), place)
    if run.config.get("constraint", "none") != "none":
        lines.level(run.config.get("cost_limit"), "cost limit")
    return lines.done()


def _violation_rate(run: Reading, points: int) -> Figure | None:
    if not is_costed(run):
        return None
    lines = Lines(
        "violation-rate",
        "Episodes with a violation",
        "share of training episodes",
        percent=True,
        note="Anyone's first step with a cost, with the exact 95 % interval of each part.",
    )
    lines.add("anyone", run.curves.rate(points=points), -1, width=2.6)
    agents = list(run.curves.agents)
    if 1 < len(agents) <= MOST_LINES:
        for place, agent in enumerate(agents):
            lines.add(agent, run.curves.rate(agent, points=points), place, band=False)
    if run.config.get("shield", "none") != "none":
        lines.level(run.config.get("max_risk"), "rho, per agent")
    return lines.done()


def _violation_count(run: Reading, points: int) -> Figure | None:
    if not is_costed(run):
        return None
    lines = Lines("violation-count", "Violations so far", "training episodes with a violation")
    lines.add("anyone", run.curves.violations_so_far(points=points), -1, width=2.6)
    return lines.done()


def _interventions(run: Reading, points: int) -> Figure | None:
    if run.config.get("shield", "none") == "none":
        return None
    lines = Lines(
        "interventions",
        "What the shield did",
        "share of agent steps",
        percent=True,
        note="Overrides: another action was played than proposed. Fallbacks: the safest one. Unverified: an action of "
        "unknown risk was tried, which training alone allows.",
    )
    for place, event in enumerate(("overrides", "fallbacks", "unverified")):
        lines.add(event, run.curves.share_of_steps(event, points=points), place)
    return lines.done()


def _overrides(run: Reading, points: int) -> Figure | None:
    agents = list(run.curves.agents)
    if run.config.get("shield", "none") == "none" or not 1 < len(agents) <= MOST_LINES:
        return None
    lines = Lines("overrides", "Overrides by agent", "share of its steps", percent=True)
    for place, agent in enumerate(agents):
        lines.add(agent, run.curves.share_of_steps("overrides", agent, points=points), place)
    return lines.done()


def _model(run: Reading, points: int) -> Figure | None:
    lines = Lines("model", "What the shield has met", "number")
    for place, (name, words) in enumerate((("keys", "states"), ("rows", "states with joint actions"))):
        lines.add(words, _of_updates(run, points, "shield", name), place)
    return lines.done()


def _multipliers(run: Reading, points: int) -> Figure | None:
    lines = Lines("multipliers", "Multipliers", "weight of cost against reward")
    for place, agent in enumerate(list(run.curves.agents)[:MOST_LINES]):
        lines.add(agent, _of_updates(run, points, "constraint", "multipliers", agent), place)
    return lines.done()


def _cost_seen(run: Reading, points: int) -> Figure | None:
    lines = Lines("cost-seen", "Cost that the multipliers answer", "mean cost per episode")
    for place, agent in enumerate(list(run.curves.agents)[:MOST_LINES]):
        lines.add(agent, _of_updates(run, points, "constraint", "costs", agent), place)
    lines.level(run.config.get("cost_limit"), "cost limit")
    return lines.done()


def _losses(run: Reading, points: int) -> list[Figure | None]:
    groups = list(dict.fromkeys(name for row in run.updates[-1:] for name in mapping(row.get("groups"))))
    figures = []
    for key, words in _LOSSES.items():
        lines = Lines(key.replace("_", "-"), words[0].upper() + words[1:], words)
        for place, group in enumerate(groups[:MOST_LINES]):
            lines.add(group, _of_updates(run, points, "groups", group, key), place)
        figures.append(lines.done())
    return figures


def _speed(run: Reading, points: int) -> Figure | None:
    lines, before, frames, rates = Lines("speed", "Speed", "env steps per second"), 0, [], []
    for row in run.updates:
        frame, times = row.get("frames"), (row.get("collect_seconds"), row.get("update_seconds"))
        seconds = sum(time for time in times if is_number(time))
        if is_number(frame) and seconds > 0:
            frames.append(frame)
            rates.append((frame - before) / seconds)
            before = frame
    lines.add("collecting and learning", _line(frames, rates, points), -1)
    return lines.done()


def _of_updates(run: Reading, points: int, *path: str) -> Curve:
    """A figure of the updates' log over env steps; rows without it count for nothing."""
    frames, values = [], []
    for row in run.updates:
        value: Any = row
        for name in path:
            value = mapping(value).get(name)
        if is_number(value) and is_number(row.get("frames")):
            frames.append(row["frames"])
            values.append(value)
    return _line(frames, values, points)


def _line(x: list[float], y: list[float], points: int) -> Curve:
    centres, means = thinned(x, y, points)
    return Curve(centres, means, means, means)
