"""What a run shows, in sentences with figures; and what to do about one that failed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from marl_tools.bench.plan_folder import PLAN, RUNS
from marl_tools.bench.report.gather import Reading
from marl_tools.bench.report.methods import is_costed
from marl_tools.bench.report.tables import certified, mean_return
from marl_tools.bench.report.wording import interval, is_number, number, pair
from marl_tools.core.errors import DiskFullError, EnvError, MissingExtraError, NonFiniteError, WorkerError

Tone = Literal["good", "bad", "plain"]

_REMEDIES = {
    NonFiniteError.__name__: "A number ran away: train anew with a lower learning rate, or look for the env's NaN.",
    DiskFullError.__name__: "Make room on the disk, then go on.",
    WorkerError.__name__: "A process was lost. If it happens again, let fewer run at a time, or use --on-worker-death restart.",
    EnvError.__name__: "The environment broke the rules of PettingZoo: mend it, then go on.",
    MissingExtraError.__name__: "Install the package that the message names, then go on.",
}


class Finding(NamedTuple):
    """One sentence, and whether it is good news."""

    tone: Tone
    text: str


def run_findings(run: Reading) -> list[Finding]:
    """The run's headline figures as sentences, the most important first."""
    found = [_of_returns(run), *_of_safety(run), _of_training(run)]
    return [finding for finding in found if finding]


def remedy(run: Reading) -> str:
    """What to do about a run that is not done; empty for others."""
    if run.state in ("done", "solved", "running", "waiting"):
        return ""
    if run.state == "damaged":
        mend = "Mend the file that is named above, from a copy if there is one; otherwise"
        if _plan_of(run) is None:
            return f"{mend} train anew in another --out."
        return f"{mend} move {run.folder} away. {go_on(run)}"
    words = _REMEDIES.get(str(run.notes.get("error", {}).get("error")), "")
    return f"{words} {go_on(run)}".strip()


def go_on(run: Reading) -> str:
    """The command with which a run goes on; that of a plan looks after all its runs."""
    trust = " --trust" if any(":" in str(run.config.get(name)) for name in ("env", "cost")) else ""
    if (plan := _plan_of(run)) is not None:
        return (
            f"The plan's command runs what is missing of it: marl-tools bench PLAN --out {shlex.quote(str(plan))}{trust}, "
            "where PLAN is the preset or the file that it was begun with."
        )
    if not run.config:
        return "It failed before it began: mend the cause, then begin it again."
    return f"Go on with: marl-tools train --resume {shlex.quote(str(run.folder))}{trust}"


def _plan_of(run: Reading) -> Path | None:
    """The folder of the plan that a run belongs to."""
    runs = run.folder.resolve().parent
    return runs.parent if runs.name == RUNS and (runs.parent / PLAN).exists() else None


def _of_returns(run: Reading) -> Finding | None:
    before, after = mean_return(run, "random"), mean_return(run, "trained")
    if not after:
        return None
    episodes = run.notes["evaluation-trained"].get("episodes")
    text = f"The trained team earns {_mean(after)} per episode and agent, over {number(episodes)} evaluation episodes"
    if not before:
        return Finding("plain", f"{text}.")
    text += f"; random play earned {_mean(before)}"
    apart = _apart(before.get("interval"), after.get("interval"))
    if apart is None:
        return Finding("plain", f"{text}.")
    if apart == 0:
        return Finding("plain", f"{text}. The intervals overlap: a difference is not shown.")
    better = apart > 0
    return Finding(
        "good" if better else "bad", f"{text}: {'better' if better else 'worse'}, beyond both intervals."
    )


def _of_safety(run: Reading) -> list[Finding]:
    team = certified(run)
    if team is None:
        return []
    rho = run.config.get("max_risk") if run.config.get("shield", "none") != "none" else None
    row, h = team.row, team.h
    text = (
        f"{number(row.get('violations'))} of {number(row.get('episodes'))} evaluation episodes had a violation within {number(h)} "
        f"steps: the probability is {interval(row.get('interval'), percent=True)}"
    )
    found = [Finding("good" if row.get("violations") == 0 else "plain", f"{text}.")]
    if not is_number(rho):
        return found
    limits = [pair(agent.get("interval")) for agent in team.agents.values()]
    if all(limit is not None and limit[1] <= rho for limit in limits):
        found.append(Finding("good", f"Measured alone, every agent stays within rho = {number(rho)}."))
    elif any(limit is not None and limit[0] > rho for limit in limits):
        found.append(Finding("bad", f"An agent violates more often than rho = {number(rho)} allows."))
    else:
        found.append(
            Finding(
                "plain", f"Too few episodes to measure that every agent stays within rho = {number(rho)}."
            )
        )
    bounds = [agent["bound"] for agent in team.agents.values() if is_number(agent.get("bound"))]
    if bounds:
        kept = max(bounds) <= rho + 1e-9
        found.append(
            Finding(
                "good" if kept else "bad",
                f"The shield's own bound is {number(max(bounds))} per agent within {number(h)} steps, where rho = {number(rho)} "
                f"was asked for; what it assumes is said below.",
            )
        )
    else:
        found.append(
            Finding(
                "plain", f"The shield has no bound of its own: {run.notes['certificate'].get('bound_note')}."
            )
        )
    return found


def _of_training(run: Reading) -> Finding | None:
    training = run.training
    if not (training.episodes and is_costed(run)):
        return None
    share = number(training.violated / training.episodes, percent=True)
    text = (
        f"While training, {training.violated:,} of {training.episodes:,} episodes ({share}) had a violation"
    )
    if run.config.get("shield", "none") != "none" and training.decisions:
        overridden = number(training.overrides / training.decisions, percent=True)
        text += f", and the shield replaced {overridden} of all actions"
    return Finding("plain", f"{text}.")


def _mean(row: Mapping[str, Any]) -> str:
    between = f" ({interval(row['interval'])})" if row.get("interval") else ""
    return f"{number(row.get('mean'))}{between}"


def _apart(before: Any, after: Any) -> int | None:
    """1 or -1 where two intervals do not meet, 0 where they do, None where one is missing."""
    one, other = pair(before), pair(after)
    if one is None or other is None:
        return None
    return 1 if other[0] > one[1] else -1 if other[1] < one[0] else 0
