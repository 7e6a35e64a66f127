"""What one finished run of a plan says in numbers: returns, violations, and how it came to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from marl_tools.bench.statistics import evaluated_return, session_of_logs
from marl_tools.core.errors import CorruptFileError
from marl_tools.core.io import load_from_file
from marl_tools.core.run_logs import EPISODES, UPDATES, read_episodes, read_updates
from marl_tools.core.types import EpisodeLog
from marl_tools.experiment.folder import load_config
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


def figures_of_run(folder: Path, *, id: str, method: str, task: str, seed: int) -> RunFigures:
    """The figures in a run folder that is done.

    Raises:
        FileNotFoundError: it lacks its logs.
        CorruptFileError: a file is damaged.
        ConfigError: it is no run folder.
    """
    config = load_config(folder)
    updates = list(read_updates(folder / UPDATES))
    episodes = [
        log for log in read_episodes(folder / EPISODES) if log.split == "train" and not log.interrupted
    ]
    random_return, final_return = (_evaluated(folder, policy) for policy in ("random", "trained"))
    baseline = 0.0 if random_return is None else random_return
    session = session_of_logs(updates, episodes, window=config.ma_window, random_return=baseline)
    # They are of what a run has over random play: without that they are unknown.
    metrics = {} if random_return is None else asdict(session.metrics())
    certified = _certified(folder, config.safety.max_risk)
    costed = bool(certified) or any(log.violated for log in episodes)
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
        training_episodes=len(episodes),
        training_violations=_share(sum(log.violated for log in episodes), len(episodes)) if costed else None,
        overrides=_overridden(episodes) if config.safety.shield != "none" else None,
        **{name: _finite(metrics.get(name)) for name in _METRICS},
        **certified,
    )


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
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFileError(
            f"{folder / _CERTIFICATE}: no violation estimates in it ({error!r})"
        ) from error


def _overridden(episodes: Sequence[EpisodeLog]) -> float | None:
    overrides = sum(sum(log.overrides.values()) for log in episodes)
    return _share(overrides, sum(sum(log.lengths.values()) for log in episodes))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _finite(value: float | None) -> float | None:
    """Strict JSON knows neither NaN nor infinity."""
    return float(value) if value is not None and math.isfinite(value) else None
