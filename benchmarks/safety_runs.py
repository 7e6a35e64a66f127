"""One run of `safety.py`: training, evaluation of the frozen team, exact risk."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safety_methods import COMMON, DEPLOYED, METHODS, TASKS

from marl_tools.core.logging import configure_logging
from marl_tools.core.types import EpisodeLog
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.native import native_envs
from marl_tools.experiment.run import train
from marl_tools.experiment.team import certify_run, evaluate_run, load_team
from marl_tools.training.exact_play import exact_violations
from marl_tools.training.policy import RandomPolicy


class Timed:
    """A policy, and the CPU time that its decisions took."""

    def __init__(self, policy: Any) -> None:
        self._policy, self.seconds = policy, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def seed(self, seed: int) -> None:
        self._policy.seed(seed)

    def __call__(self, observations: Mapping[str, Any], infos: Mapping[str, Any] | None = None) -> Any:
        started = time.process_time()
        actions = self._policy(observations, infos)
        self.seconds += time.process_time() - started
        return actions


def run_one(task: str, method: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Train and evaluate; the plain figures of one row of the results file."""
    configure_logging(min_level="ERROR")
    comparison = TASKS[task]
    folder = scratch / f"{task}-{method}-{seed}"
    # What a stopped run left behind.
    shutil.rmtree(folder, ignore_errors=True)
    settings = (
        COMMON
        | {"env": comparison.env, "env_kwargs": comparison.env_kwargs, "timesteps": comparison.timesteps}
        | {"seed": seed, "out": folder}
        | METHODS[method][1]
    )
    plain = RunConfig.from_flat(settings | DEPLOYED.get(method, {}))
    row: dict[str, Any] = {"task": task, "method": method, "seed": seed}
    started = time.process_time()
    if method == "random":
        policy: Any = RandomPolicy(native_envs(plain.factory(), 1).groups)
    else:
        config = RunConfig.from_flat(settings)
        if method == "penalty":
            kwargs = {"task": comparison.env, **comparison.env_kwargs}
            config = dataclasses.replace(config, env="safety_methods:penalised", env_kwargs=kwargs)
        train(config)
        row |= _training(folder) | {"train_seconds": time.process_time() - started}
        policy = load_team(folder, plain if method in DEPLOYED else config)
    timed = Timed(policy)
    evaluation = evaluate_run(plain, timed, episodes=comparison.episodes)
    certificate = certify_run(plain, evaluation, policy)
    assert certificate is not None
    last = certificate["horizons"][-1]["subjects"]
    row |= _play(evaluation.episodes, together=comparison.env == "stag_hunt")
    decisions = sum(sum(log.lengths.values()) for log in evaluation.episodes)
    row |= {
        "milliseconds": 1000 * timed.seconds / decisions,
        "measured": last,
        "bound_note": certificate["bound_note"],
    }
    if comparison.exact:
        env = plain.factory()()
        row["exact"] = exact_violations(env, policy, horizon=env.max_cycles)
    shutil.rmtree(folder, ignore_errors=True)
    return row


def _training(folder: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    logs = [log for log in map(EpisodeLog.from_json, rows) if not log.interrupted]
    return {
        "train_episodes": len(logs),
        "train_violating": sum(log.violated for log in logs),
        "train_overrides": _share(logs, "overrides"),
        "train_unverified": _share(logs, "unverified"),
    }


def _play(logs: Sequence[EpisodeLog], *, together: bool) -> dict[str, Any]:
    """Figures of evaluation episodes; ``together``: the goal is the team's, and anyone's violation spoils it."""
    reached = [
        log.ends[agent] == "terminated"
        and not (log.violated if together else log.first_violation[agent] is not None)
        for log in logs
        for agent in log.ends
    ]
    return {
        "return": float(np.mean([log.mean_return for log in logs])),
        "goal": float(np.mean(reached)),
        "length": float(np.mean([log.length for log in logs])),
        "overrides": _share(logs, "overrides"),
        "fallbacks": _share(logs, "fallbacks"),
    }


def _share(logs: Sequence[EpisodeLog], what: str) -> float:
    """Share of all agents' decisions that were noted as ``what``."""
    noted = sum(sum(getattr(log, what).values()) for log in logs)
    return noted / max(1, sum(sum(log.lengths.values()) for log in logs))
