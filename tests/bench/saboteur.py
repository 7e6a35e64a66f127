"""A team whose env does harm to its own run, once or always, and a small plan with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from marl_tools.bench.executors import Finished, Started
from marl_tools.bench.jobs import run_job
from tests.envs_for_tests import Team

TINY = {
    "env_kwargs": {"max_cycles": 9},
    "timesteps": 96,
    "num_envs": 2,
    "rollouts": 8,
    "hidden": [8],
    "learning_epochs": 1,
    "checkpoint_every": 1,
    "ma_window": 5,
    "final_policy_eval_episodes": 0,
    "video_episodes": 0,
}
"""Settings of a run of six updates."""

TEAM = "tests.envs_for_tests:Team"
SABOTEUR = "tests.bench.saboteur:Saboteur"


class Saboteur(Team):
    """At step ``at`` of its process ``harm`` is done: "raise", "kill" (SIGKILL), or the parent ``pid`` is told to stop.

    Args:
        marker: a file; with it the harm is done only while the file is not there, and it is made then.
    """

    steps = 0

    def __init__(self, *, harm: str, at: int = 40, marker: str = "", pid: int = 0, **kwargs) -> None:
        super().__init__(**kwargs)
        self._harm, self._at, self._marker, self._pid = harm, at, marker, pid

    def step(self, actions):
        Saboteur.steps += 1
        if Saboteur.steps >= self._at and not (self._marker and Path(self._marker).exists()):
            if self._marker:
                Path(self._marker).touch()
            self._do_harm()
        return super().step(actions)

    def _do_harm(self) -> None:
        if self._harm == "raise":
            raise ZeroDivisionError("a bug in the env")
        if self._harm == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(self._pid, signal.SIGTERM)


class HereExecutor:
    """Carries out jobs in this very process, one after the other; ``stop_at`` is the place of one at which it is told to stop."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.started: list[str] = []
        self._stop_at = stop_at

    def run(self, jobs, on_event) -> None:
        for place, job in enumerate(jobs):
            if place == self._stop_at:
                raise KeyboardInterrupt
            self.started.append(job.id)
            Saboteur.steps = 0
            on_event(Started(id=job.id, attempt=1, where="here"))
            on_event(Finished(result=run_job(job.config, job.folder, job.trusted), attempts=1))
