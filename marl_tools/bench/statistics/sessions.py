"""Figures of merit of a training run (a session) and of several runs of one setting (a trial), over random play.

A session is a list of log points: mean return R_i after frame_i env steps and step_i optimiser steps. All figures are of its
strengths s_i = R_i - R_random. What is undefined is NaN.

References:
    Keng and Graesser 2019, Foundations of deep reinforcement learning; the analysis of SLM-Lab.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marl_tools.core.averages import History
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import PathLike, load_from_file
from marl_tools.core.run_logs import (
    EPISODES,
    UPDATES,
    UpdateLog,
    check_run_folder,
    read_episodes,
    read_updates,
)
from marl_tools.core.types import AgentID, EpisodeLog, Split

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SessionMetrics:
    """One run's figures.

    strength: mean of s_i, and max_strength and final_strength the greatest and the last one.
    sample_efficiency: sum_i(s_i / frame_i) / sum_i(s_i): high for strength that came early.
    training_efficiency: the same over optimiser steps.
    stability: 1 - |sum of the falls of s| / sum |s_i| over all but the last; 1 for a run that never fell.
    """

    strength: float
    max_strength: float
    final_strength: float
    sample_efficiency: float
    training_efficiency: float
    stability: float


@dataclass(frozen=True, kw_only=True)
class TrialMetrics(SessionMetrics):
    """Means of the sessions' figures, each over the sessions where it is defined, and what only several sessions have.

    consistency: 1 - 2 sum_i std_j(s_ij) / sum_i |mean_j(s_ij)| over sessions j; 1 for sessions that are alike.
    """

    sessions: int
    consistency: float


class Session:
    """The log points of one run. Points without a return, NaN, are left out.

    Args:
        returns: mean return at each point.
        frames: env steps until then, increasing.
        optimiser_steps: gradient steps until then.
        random_return: mean return of uniformly random play.

    Raises:
        ConfigError: lists of unequal length, or frames that do not increase.
    """

    def __init__(
        self, returns: ArrayLike, frames: ArrayLike, optimiser_steps: ArrayLike, *, random_return: float
    ) -> None:
        points = [np.asarray(values, np.float64).reshape(-1) for values in (returns, frames, optimiser_steps)]
        if len({len(values) for values in points}) > 1:
            raise ConfigError(
                f"a session of {', '.join(str(len(values)) for values in points)} returns, frames and optimiser steps: "
                "give one of each a log point"
            )
        defined = ~np.isnan(points[0])
        earned, self.frames, self.optimiser_steps = (values[defined] for values in points)
        if (np.diff(self.frames) <= 0).any():
            raise ConfigError(
                f"frames {self.frames.tolist()[:8]} do not increase from log point to log point"
            )
        self.strengths = earned - random_return

    def metrics(self) -> SessionMetrics:
        """All figures of this session."""
        s = self.strengths
        return SessionMetrics(
            strength=float(s.mean()) if len(s) else math.nan,
            max_strength=float(s.max()) if len(s) else math.nan,
            final_strength=float(s[-1]) if len(s) else math.nan,
            sample_efficiency=efficiency(s, self.frames),
            training_efficiency=efficiency(s, self.optimiser_steps),
            stability=stability(s),
        )


def efficiency(strengths: Floats, costs: Floats) -> float:
    """sum(s_i / cost_i) / sum(s_i); NaN where a cost is 0 or unknown, or the strengths add up to 0."""
    total = strengths.sum()
    if not len(strengths) or total == 0 or not (costs > 0).all():
        return math.nan
    return float((strengths / costs).sum() / total)


def stability(strengths: Floats) -> float:
    """1 - |sum of falls| / sum |s_i| over all but the last point; NaN for fewer than two points, or only zeros."""
    before = np.abs(strengths[:-1]).sum()
    if before == 0:
        return math.nan
    falls = np.minimum(np.diff(strengths), 0.0).sum()
    return float(1 - abs(falls) / before)


def consistency(strengths: Floats) -> float:
    """1 - 2 sum_i std_j(s_ij) / sum_i |mean_j(s_ij)| of strengths (sessions, points), std being that of the sessions at hand.

    NaN for fewer than two sessions, no points, or means of only zeros.
    """
    if len(strengths) < 2 or not strengths.size:
        return math.nan
    middle = np.abs(strengths.mean(0)).sum()
    return float(1 - 2 * strengths.std(0).sum() / middle) if middle else math.nan


def trial_metrics(sessions: Sequence[Session]) -> TrialMetrics:
    """The figures of several runs of one setting.

    For the consistency, sessions whose log points differ are compared at those of the one with the fewest, as far as all
    go, by linear interpolation.

    Raises:
        ConfigError: no session.
    """
    if not sessions:
        raise ConfigError("sessions=[]: a trial needs at least one")
    rows = [asdict(session.metrics()) for session in sessions]
    means = {name: _mean([row[name] for row in rows]) for name in rows[0]}
    return TrialMetrics(**means, sessions=len(sessions), consistency=consistency(_aligned(sessions)))


def session_of_run(
    folder: PathLike,
    agent: AgentID | None = None,
    *,
    split: Split = "train",
    window: int = 100,
    random_return: float | None = None,
) -> Session:
    """The session in a run folder.

    Args:
        folder: of the run.
        agent: whose returns; None: the mean over agents.
        split: "train": a log point an update, with the moving average over ``window`` episodes; "eval": one an evaluation
            on the way (``eval_every``), with its mean.
        window: of the moving average.
        random_return: the baseline; None: that of the run's own evaluation of random play.

    Raises:
        FileNotFoundError: the folder has no logs.
        CorruptFileError: a log is damaged.
        ConfigError: no run folder, no baseline, no such agent, or no evaluations where split is "eval".
    """
    folder = Path(folder)
    check_run_folder(folder)
    if random_return is None:
        random_return = random_baseline(folder, agent)
    updates = list(read_updates(folder / UPDATES))
    episodes = list(read_episodes(folder / EPISODES))
    try:
        return session_of_logs(
            updates, episodes, agent, split=split, window=window, random_return=random_return
        )
    except ConfigError as error:
        raise ConfigError(f"{folder} {error}") from error


def session_of_logs(
    updates: Sequence[UpdateLog],
    episodes: Iterable[EpisodeLog],
    agent: AgentID | None = None,
    *,
    split: Split = "train",
    window: int = 100,
    random_return: float,
) -> Session:
    """The session in logs that have been read already; see `session_of_run`.

    Raises:
        ConfigError: no episode of that agent, or no evaluations where split is "eval".
    """
    episodes = [log for log in episodes if log.split == split]
    if split == "eval" and not episodes:
        raise ConfigError(
            "has no evaluations on the way: train with eval_every (--eval-every N), or take split='train'"
        )
    if agent is not None and episodes and not any(agent in log.returns for log in episodes):
        raise ConfigError(f"has no {split} episode of agent {agent!r}")
    by_update: dict[int | None, list[EpisodeLog]] = {}
    for log in episodes:
        by_update.setdefault(log.update, []).append(log)
    if split == "eval":
        updates = [update for update in updates if update.update in by_update]
    history, returns = History(window), []
    for update in updates:
        fresh = by_update.get(update.update, [])
        if split == "eval":
            history, window = History(len(fresh)), len(fresh)
        history.extend(fresh)
        returns.append(history.ma(window, agent, split))
    return session_of_updates(updates, returns, random_return=random_return)


def session_of_updates(
    updates: Sequence[UpdateLog], returns: Sequence[float], *, random_return: float
) -> Session:
    """The session whose log points are updates, with a mean return at each; NaN before the first episode."""
    frames, steps = [update.frames for update in updates], [_steps(update) for update in updates]
    return Session(returns, frames, steps, random_return=random_return)


def random_baseline(folder: PathLike, agent: AgentID | None = None) -> float:
    """Mean return of random play, as the run evaluated it before it trained; see `evaluated_return`."""
    return evaluated_return(folder, "random", agent)


def evaluated_return(
    folder: PathLike, policy: Literal["random", "trained"], agent: AgentID | None = None
) -> float:
    """Mean return in a run's evaluation of random play, or of its trained team: of an agent, or the mean over agents.

    Raises:
        ConfigError: the run has no such evaluation, or no such agent.
        CorruptFileError: its file is damaged.
    """
    name = f"evaluation-{policy}.json"
    try:
        summary = load_from_file(folder, name)
    except FileNotFoundError:
        or_give = ", or give random_return" if policy == "random" else ""
        raise ConfigError(
            f"{folder} has no {name}: train with final_policy_eval_episodes above 0{or_give}"
        ) from None
    try:
        table = summary["returns"]
        if agent is not None and agent not in table["agents"]:
            raise ConfigError(
                f"{folder} has no {policy} baseline of agent {agent!r}: there are {', '.join(table['agents'])}"
            )
        row = table["mean_over_agents"] if agent is None else table["agents"][agent]
        return float(row["mean"])
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise CorruptFileError(f"{Path(folder) / name}: no mean returns in it ({error!r})") from error


def _steps(update: UpdateLog) -> float:
    """Optimiser steps so far of the group that took most."""
    return max(update.optimiser_steps.values(), default=math.nan)


def _mean(values: Sequence[Any]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


def _aligned(sessions: Sequence[Session]) -> Floats:
    """Strengths (sessions, points) at common frames."""
    if not all(len(session.frames) for session in sessions):
        return np.empty((len(sessions), 0))
    start = max(session.frames[0] for session in sessions)
    end = min(session.frames[-1] for session in sessions)
    frames = min((session.frames for session in sessions), key=len)
    frames = frames[(frames >= start) & (frames <= end)]
    return np.stack([np.interp(frames, session.frames, session.strengths) for session in sessions])
