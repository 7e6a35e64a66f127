"""One display for a whole plan: counts, the runs that are playing, and the time left; a line an event where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from marl_tools.bench.executors import Event, Started
from marl_tools.bench.jobs import Job, frames_of
from marl_tools.core.logging import console, log

if TYPE_CHECKING:
    from rich.progress import TaskID

_REFRESHES_PER_SECOND = 2


@dataclass
class _Playing:
    """A run that is under way; ``begun_at``: the env steps that it goes on from."""

    job: Job
    begun_at: int
    bar: TaskID | None = None


class PlanProgress:
    """Follows the runs of a plan by the events of an executor and by their logs; a context manager.

    Args:
        title: the plan's name.
        jobs: those that are to be run.
        total: runs of the plan in all, those that were done before among them.
    """

    def __init__(self, title: str, jobs: Sequence[Job], total: int) -> None:
        self._title, self._total = title, total
        self._jobs: Mapping[str, Job] = {job.id: job for job in jobs}
        self._left = {job.id: max(0, _timesteps(job) - frames_of(job.folder)) for job in jobs}
        self._work = max(1, sum(self._left.values()))
        self._done, self._failed = total - len(jobs), 0
        self._playing: dict[str, _Playing] = {}
        self._begun = time.monotonic()
        self._bars: Any = _bars(self) if console().is_terminal else None
        if self._bars:
            self._whole = self._bars.add_task(title, total=self._work, figures=self._counts())

    def tell(self, event: Event) -> None:
        """Show what an executor reports."""
        if isinstance(event, Started):
            self._start(event)
        else:
            result = event.result
            self._forget(result.id)
            self._left[result.id] = 0
            self._done += result.finished
            self._failed += result.state in ("failed", "damaged")
            if self._bars:
                return
            figures = (
                f"{result.frames:,} steps in {result.seconds:.1f} s" if result.finished else result.error
            )
            self._line(f"{result.state} {result.id}  {figures or ''}")

    def poll(self) -> None:
        """Move the bars to where the runs are by now."""
        for playing in tuple(self._playing.values()):
            self._bars.update(playing.bar, completed=frames_of(playing.job.folder))
        self._bars.update(self._whole, completed=self._work - self._steps_left(), figures=self._counts())

    def __enter__(self) -> PlanProgress:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def _start(self, event: Started) -> None:
        # A further attempt takes the place of the one before.
        self._forget(event.id)
        job = self._jobs[event.id]
        playing = self._playing[event.id] = _Playing(job, frames_of(job.folder))
        if self._bars:
            playing.bar = self._bars.add_task(
                f"  {event.id}", total=_timesteps(job), completed=playing.begun_at, figures=event.where
            )
            return
        again = f", attempt {event.attempt}" if event.attempt > 1 else ""
        from_there = f" from step {playing.begun_at:,}" if playing.begun_at else ""
        self._line(f"started {event.id} in {event.where}{from_there}{again}")

    def _forget(self, run_id: str) -> None:
        playing = self._playing.pop(run_id, None)
        if self._bars and playing:
            self._bars.remove_task(playing.bar)

    def _counts(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done} of {self._total} runs done{failed}, {len(self._playing)} running"

    def _steps_left(self) -> int:
        left = sum(self._left.values())
        for playing in tuple(self._playing.values()):
            left -= min(self._left[playing.job.id], max(0, frames_of(playing.job.folder) - playing.begun_at))
        return left

    def _line(self, text: str) -> None:
        left = self._steps_left()
        played, seconds = self._work - left, time.monotonic() - self._begun
        eta = f", about {_duration(seconds * left / played)} left" if played and left else ""
        log(f"{text}  [{self._counts()}{eta}]", type="plan")


def _bars(progress: PlanProgress) -> Any:
    """Bars that ask for the runs' steps whenever they are drawn."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    class Bars(Progress):
        def get_renderables(self) -> Any:
            # The first drawing is that of the constructor.
            if self.tasks:
                progress.poll()
            yield from super().get_renderables()

    return Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps  {task.fields[figures]}"),
        TimeRemainingColumn(),
        console=console(),
        refresh_per_second=_REFRESHES_PER_SECOND,
    )


def _timesteps(job: Job) -> int:
    return int(job.config["timesteps"])


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
