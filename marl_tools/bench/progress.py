"""One display for a whole plan: counts, the runs that are playing, and the time left; a line an event where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from marl_tools.bench.executors import Event, Retrying, Started
from marl_tools.bench.jobs import Job, frames_of
from marl_tools.core.logging import console, log

if TYPE_CHECKING:
    from rich.table import Table

_REFRESHES_PER_SECOND = 2
_BAR_WIDTH = 24


@dataclass(frozen=True)
class _Playing:
    """A run that is under way; ``begun_at``: the env steps that it goes on from."""

    job: Job
    begun_at: int
    where: str


class PlanProgress:
    """Follows the runs of a plan by the events of an executor and by their logs; a context manager.

    Args:
        title: the plan's name.
        jobs: those that are to be run.
        total: how many runs there are with those that were done before.
    """

    def __init__(self, title: str, jobs: Sequence[Job], total: int) -> None:
        self._title, self._total = title, total
        self._jobs: Mapping[str, Job] = {job.id: job for job in jobs}
        self._left = {job.id: max(0, _timesteps(job) - frames_of(job.folder)) for job in jobs}
        self._work = max(1, sum(self._left.values()))
        self._done, self._failed = total - len(jobs), 0
        self._playing: dict[str, _Playing] = {}
        self._begun: float | None = None
        self._live: Any = None
        if console().is_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._table, console=console(), refresh_per_second=_REFRESHES_PER_SECOND
            )

    def tell(self, event: Event) -> None:
        """Show what an executor reports."""
        if isinstance(event, Started):
            # Before that an executor gets ready, which says nothing about the time left.
            self._begun = self._begun or time.monotonic()
            job = self._jobs[event.id]
            begun_at = frames_of(job.folder)
            self._playing[event.id] = _Playing(job, begun_at, event.where)
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            from_there = f" from step {begun_at:,}" if begun_at else ""
            self._say(f"started {event.id} in {event.where}{from_there}{again}")
            return
        result = event.result
        self._playing.pop(result.id, None)
        if isinstance(event, Retrying):
            self._say(f"attempt {event.attempt} failed {result.id}  {result.error}", always=True)
            return
        left = self._left.pop(result.id, 0)
        if not result.finished:
            # What nobody will play says nothing about how quickly the rest goes.
            self._work = max(1, self._work - left)
        self._done += result.finished
        failed = result.state in ("failed", "damaged")
        self._failed += failed
        steps = f"{result.frames:,} steps in {result.seconds:.1f} s"
        self._say(f"{result.state} {result.id}  {result.error if failed else steps}", always=failed)

    def __enter__(self) -> PlanProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def _say(self, text: str, *, always: bool = False) -> None:
        """A line; on a terminal, where the table says the rest, only what must not scroll away with it."""
        if self._live:
            if always:
                log(text, type="plan")
            return
        log(f"{text}  [{self._counts()}{self._eta()}]", type="plan")

    def _counts(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done} of {self._total} runs done{failed}, {len(self._playing)} running"

    def _steps_left(self) -> int:
        left = sum(self._left.values())
        # A copy: the table is drawn in a thread of its own.
        for playing in tuple(self._playing.values()):
            left -= min(
                self._left.get(playing.job.id, 0), max(0, frames_of(playing.job.folder) - playing.begun_at)
            )
        return left

    def _eta(self) -> str:
        left = self._steps_left()
        played = self._work - left
        if not (self._begun and played and left):
            return ""
        return f", about {_duration((time.monotonic() - self._begun) * left / played)} left"

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        whole = ProgressBar(total=self._work, completed=self._work - self._steps_left(), width=_BAR_WIDTH)
        table.add_row(self._title, whole, f"{self._counts()}{self._eta()}")
        for playing in tuple(self._playing.values()):
            steps, total = frames_of(playing.job.folder), _timesteps(playing.job)
            bar = ProgressBar(total=total, completed=min(steps, total), width=_BAR_WIDTH)
            table.add_row(f"  {playing.job.id}", bar, f"{steps:,} of {total:,} steps, {playing.where}")
        return table


def _timesteps(job: Job) -> int:
    return int(job.config["timesteps"])


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
