"""The certificate of a frozen team: how probable a violation within h steps is, from whole evaluation episodes.

Counts are binomial with exact Clopper-Pearson intervals, so the statement needs independent episodes and nothing else:
no model, no key. It is about the one team that was evaluated; never pool training runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from marl_tools.core.bounds import clopper_pearson
from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID, EpisodeLog

TEAM = "team"
Censored = Literal["refuse", "worst_case"]


def certify(
    episodes: Sequence[EpisodeLog],
    *,
    horizons: Sequence[int],
    cap: int | None,
    confidence: float = 0.95,
    bonferroni: bool = False,
    censored: Censored = "refuse",
    bounds: Mapping[AgentID, float] | None = None,
    bound_horizon: int | None = None,
) -> dict[str, Any]:
    """Violation probability within each horizon, for each agent and for the team, as plain values.

    Args:
        episodes: whole episodes of one frozen team with independent seeds.
        horizons: numbers of steps h; one beyond ``cap`` is reported as h = cap.
        cap: the length at which the env's episodes are cut off, None if they are not.
        confidence: of each two-sided interval; with ``bonferroni`` of all horizons together.
        censored: an episode that was cut off before h without a violation says nothing about h.
            "refuse": the horizon gets no interval and the reason. "worst_case": it counts as a violation.
        bounds: the shield's own bound per agent, the mean over start keys of max(rho, V_T(key_0)).
        bound_horizon: the T of ``bounds``; they are shown for h <= T.

    Raises:
        ConfigError: there are no episodes.
    """
    if not episodes:
        raise ConfigError("episodes is empty: a certificate needs at least one evaluation episode")
    agents = list(dict.fromkeys(agent for log in episodes for agent in log.costs))
    reported = [horizon if cap is None else min(horizon, cap) for horizon in horizons]
    level = (1 - confidence) / (len(set(reported)) if bonferroni else 1)
    rows = []
    for horizon, h in zip(horizons, reported, strict=True):
        subjects = {}
        for subject in (*agents, TEAM):
            shown = bounds is not None and bound_horizon is not None and h <= bound_horizon
            bound = _bound(bounds, subject) if shown and bounds is not None else None
            subjects[subject] = _row(episodes, subject, h, cap, level, censored, bound)
        rows.append({"horizon": horizon, "h": h, "subjects": subjects})
    return {
        "episodes": len(episodes),
        "confidence": confidence,
        "bonferroni": bonferroni,
        "censored": censored,
        "cap": cap,
        "bound_horizon": bound_horizon,
        "horizons": rows,
        "assumes": [
            "the evaluation episodes are independent draws of the same env and the same frozen team",
            "a violation is the first step at which a cost is above 0",
        ],
    }


def violation_step(log: EpisodeLog, subject: AgentID) -> int | None:
    """The step of the first violation of an agent, or of anyone for `TEAM`."""
    if subject != TEAM:
        return log.first_violation.get(subject)
    steps = [step for step in log.first_violation.values() if step is not None]
    return min(steps, default=None)


def _row(
    episodes: Sequence[EpisodeLog],
    subject: AgentID,
    h: int,
    cap: int | None,
    level: float,
    censored: Censored,
    bound: float | None,
) -> dict[str, Any]:
    violations = unknown = 0
    for log in episodes:
        step = violation_step(log, subject)
        if step is not None and step <= h:
            violations += 1
        elif _cut_off(log, subject, h, cap):
            unknown += 1
    row: dict[str, Any] = {"episodes": len(episodes), "violations": violations, "censored": unknown}
    if unknown and censored == "refuse":
        row["refused"] = (
            f"{unknown} of {len(episodes)} episodes were cut off before step {h} without a violation"
        )
        return row
    count = violations + unknown
    lo, hi = clopper_pearson(count, len(episodes), level)
    row |= {"estimate": count / len(episodes), "interval": [float(lo), float(hi)]}
    if bound is not None:
        row |= {"bound": bound, "below_bound": bool(hi <= bound)}
    return row


def _cut_off(log: EpisodeLog, subject: AgentID, h: int, cap: int | None) -> bool:
    """Whether an agent, or any agent for the team, left before step h in a way that hides what would have come."""
    ends = log.ends if subject == TEAM else {subject: log.ends[subject]} if subject in log.ends else {}
    left = {agent: log.joined.get(agent, 0) + log.lengths[agent] for agent in ends}
    return any(end != "terminated" and left[agent] < h and left[agent] != cap for agent, end in ends.items())


def _bound(bounds: Mapping[AgentID, float], subject: AgentID) -> float | None:
    if subject == TEAM:
        return min(1.0, math.fsum(bounds.values()))
    return bounds.get(subject)
