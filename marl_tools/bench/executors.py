"""How the runs of a plan are carried out: the protocol of all executors, and the one that starts a process a run.

An executor is handed jobs and told whom to tell. For each job it reports `Started` at every attempt; `Retrying` after an attempt
that failed, if there will be another, which it decides alone by `another`; and `Finished` once. A result is what `jobs.run_job`
returned, or a "failed" one of the executor's own where the process was lost (`lost`). Progress within a run is read from its
folder, not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from marl_tools.bench.jobs import Job, JobResult, frames_of, keep_failure
from marl_tools.core.errors import WorkerError


@dataclass(frozen=True, kw_only=True)
class Started:
    """An attempt, counted from 1, at a job has begun; ``where`` names its process for people, as in "process 4711"."""

    id: str
    attempt: int
    where: str


@dataclass(frozen=True, kw_only=True)
class Retrying:
    """An attempt, counted from 1, has failed, and there will be another."""

    result: JobResult
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A job has ended, after so many attempts, and will not be tried again by this call."""

    result: JobResult
    attempts: int


Event = Started | Retrying | Finished


class Executor(Protocol):
    """Carries out jobs."""

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        """Carry out all jobs; returns when each has been reported as `Finished`.

        Events come one at a time and from the thread that called. A job that fails stops no other.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM came; the running jobs were told to stop, have saved their state, and were
                reported as "interrupted". Those that had not begun are not reported.
            ConfigError: nothing could be started at all, such as a cluster that is not there.
        """
        ...


def another(result: JobResult, attempt: int, retries: int) -> bool:
    """Whether a job is tried again after its ``attempt``-th attempt, counted from 1."""
    return result.state == "failed" and result.retryable and attempt <= retries


def lost(job: Job, how: str, seconds: float) -> JobResult:
    """The result of a job whose process is gone without an answer; ``how`` it went also goes to the run's ``error.json``."""
    error = WorkerError(how)
    keep_failure(error, job.folder)
    return JobResult(
        id=job.id,
        state="failed",
        frames=frames_of(job.folder),
        seconds=seconds,
        error=f"{type(error).__name__}: {how}",
        retryable=True,
    )
