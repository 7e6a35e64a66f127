"""What the runs of a plan say in numbers: returns, violations, how they came to them; and which runs say nothing, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from marl_tools.bench.plan_folder import FINISHED, PlannedRuns, run_folder
from marl_tools.bench.statistics import evaluated_return, session_of_updates
from marl_tools.core.averages import MovingAverage
from marl_tools.core.durable import read_jsonl
from marl_tools.core.errors import CorruptFileError, MarlToolsError
from marl_tools.core.io import load_from_file
from marl_tools.core.run_logs import EPISODES, UPDATES, UpdateLog, read_updates
from marl_tools.experiment.folder import load_config
from marl_tools.experiment.runs import RunSummary, summarise_run
from marl_tools.training.certificate import TEAM

_METRICS = ("strength", "sample_efficiency", "training_efficiency", "stability")
_CERTIFICATE = "certificate.json"


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """The figures of one run; None where it does not say.

    Returns are means over agents and episodes: ``final_return`` of the evaluation of the trained team, ``random_return`` of
    that of random play, ``training_return`` the moving average at the end of training. ``violation`` is the measured
    probability that anyone violates within ``horizon`` steps, the longest that is certified, ``worst_violation`` that of the agent with
    most violations, ``bound`` the largest of the shield's own bounds. ``under_risk`` says whether every agent's interval lies
    below ``max_risk``. ``training_violations`` is the share of training episodes in which anyone violated, of ``training_episodes``, and
    ``overrides`` the share of decisions there that a shield overrode. The rest is as in `SessionMetrics`.
    """

    id: str
    method: str
    task: str
    seed: int
    frames: int
    max_risk: float
    final_return: float | None = None
    random_return: float | None = None
    training_return: float | None = None
    violation: float | None = None
    worst_violation: float | None = None
    horizon: int | None = None
    bound: float | None = None
    under_risk: bool | None = None
    training_episodes: int = 0
    training_violations: float | None = None
    overrides: float | None = None
    strength: float | None = None
    sample_efficiency: float | None = None
    training_efficiency: float | None = None
    stability: float | None = None


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A planned run without figures: ``state`` is that of `RunSummary`, or "missing" where there is no folder."""

    id: str
    method: str
    task: str
    seed: int
    state: str
    why: str


class TrainingTotals:
    """What a run's training episodes come to, folded from its log row by row; those that were interrupted do not count.

    Args:
        window: episodes of the moving average of returns, ``ma_window``.
    """

    def __init__(self, window: int) -> None:
        self.episodes = self.violated = self.overrides = self.decisions = 0
        self._average = MovingAverage(window)
        self._averages: dict[int | None, float] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in a line of ``episodes.jsonl``.

        Raises:
            CorruptFileError: it is no episode.
        """
        try:
            if row["split"] != "train" or "interrupted" in row["ends"].values():
                return
            returns = row["returns"].values()
            self.violated += any(step is not None for step in row["first_violation"].values())
            self.overrides += sum(row.get("overrides", {}).values())
            self.decisions += sum(row["lengths"].values())
            self._average.add(sum(returns) / max(1, len(returns)))
            self._averages[row["update"]] = self._average.value
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CorruptFileError(f"not an episode log: {error!r}") from error
        self.episodes += 1

    def averages(self, updates: Sequence[UpdateLog]) -> list[float]:
        """The moving average after each update; NaN before the first episode."""
        found, latest = [], math.nan
        for update in updates:
            latest = self._averages.get(update.update, latest)
            found.append(latest)
        return found


@dataclass(frozen=True)
class RunReading:
    """A run folder that was read before: its summary, and its log of episodes folded."""

    summary: RunSummary
    training: TrainingTotals


def figures_of_runs(
    folder: Path, plan: PlannedRuns, known: Mapping[str, RunReading] | None = None
) -> tuple[list[RunFigures], list[Missing]]:
    """The figures of a plan's runs that are done, and the others. What is ``known``, by id, is not read again."""
    figures, missing = [], []
    for run in plan.runs:
        place, reading = run_folder(folder, run), (known or {}).get(run.id)
        names = asdict(run)
        if not place.is_dir():
            missing.append(Missing(**names, state="missing", why="not started"))
            continue
        summary = reading.summary if reading else summarise_run(place)
        if summary.state not in FINISHED:
            why = summary.detail or f"{summary.frames} of {summary.timesteps} env steps played"
            missing.append(Missing(**names, state=summary.state, why=why))
            continue
        try:
            figures.append(figures_of_run(place, **names, training=reading.training if reading else None))
        except (MarlToolsError, OSError) as error:
            missing.append(Missing(**names, state="damaged", why=str(error)))
    return figures, missing


def figures_of_run(
    folder: Path, *, id: str, method: str, task: str, seed: int, training: TrainingTotals | None = None
) -> RunFigures:
    """The figures in a run folder that is done; its episodes are read unless their totals are given.

    Raises:
        FileNotFoundError: it lacks its logs.
        CorruptFileError: a file is damaged.
        ConfigError: it is no run folder.
    """
    config = load_config(folder)
    updates = list(read_updates(folder / UPDATES))
    training = training or _training(folder / EPISODES, config.ma_window)
    random_return, final_return = (_evaluated(folder, policy) for policy in ("random", "trained"))
    baseline = 0.0 if random_return is None else random_return
    session = session_of_updates(updates, training.averages(updates), random_return=baseline)
    # They are of what a run has over random play: without that they are unknown.
    metrics = {} if random_return is None else asdict(session.metrics())
    certified = _certified(folder, config.safety.max_risk)
    # Evaluations may count a cost that training did not.
    counted = config.task.counts_costs(config.cost, needed=config.safety.charged)
    costed = training.violated > 0 or (bool(certified) if counted is None else counted)
    return RunFigures(
        id=id,
        method=method,
        task=task,
        seed=seed,
        frames=updates[-1].frames if updates else 0,
        max_risk=config.safety.max_risk,
        final_return=final_return,
        random_return=random_return,
        training_return=_finite(session.strengths[-1] + baseline) if len(session.strengths) else None,
        training_episodes=training.episodes,
        training_violations=_share(training.violated, training.episodes) if costed else None,
        overrides=_share(training.overrides, training.decisions) if config.safety.shield != "none" else None,
        **{name: _finite(metrics.get(name)) for name in _METRICS},
        **certified,
    )


def _training(path: Path, window: int) -> TrainingTotals:
    totals = TrainingTotals(window)
    for number, row in enumerate(read_jsonl(path), start=1):
        try:
            totals.add(row)
        except CorruptFileError as error:
            raise CorruptFileError(f"{path}, row {number}: {error}") from error
    return totals


def _evaluated(folder: Path, policy: Literal["random", "trained"]) -> float | None:
    """None where the run evaluated nothing; a damaged file is no such run."""
    if not (folder / f"evaluation-{policy}.json").exists():
        return None
    return _finite(evaluated_return(folder, policy))


def _certified(folder: Path, max_risk: float) -> dict[str, Any]:
    """What the certificate says of the longest horizon that has intervals; empty without one."""
    try:
        certificate = load_from_file(folder, _CERTIFICATE)
    except FileNotFoundError:
        return {}
    try:
        rows = [row for row in certificate["horizons"] if "estimate" in row["subjects"][TEAM]]
        if not rows:
            return {}
        row = max(rows, key=lambda row: row["h"])
        agents = [subject for name, subject in row["subjects"].items() if name != TEAM]
        bounds = [float(agent["bound"]) for agent in agents if "bound" in agent]
        return {
            "horizon": int(row["h"]),
            "violation": float(row["subjects"][TEAM]["estimate"]),
            "worst_violation": max(float(agent["estimate"]) for agent in agents),
            "under_risk": all(float(agent["interval"][1]) <= max_risk for agent in agents),
            "bound": max(bounds, default=None),
        }
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptFileError(
            f"{folder / _CERTIFICATE}: no violation estimates in it ({error!r})"
        ) from error


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _finite(value: float | None) -> float | None:
    """Strict JSON knows neither NaN nor infinity."""
    return float(value) if value is not None and math.isfinite(value) else None
