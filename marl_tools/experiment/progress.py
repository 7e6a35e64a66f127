"""Progress of a run: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from marl_tools.core.logging import console, log

_SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Shows env steps, steps per second, the mean return of the last 100 episodes and the time left."""

    def __init__(self, title: str, total: int, *, start: int = 0) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._total, self._start = total, start
        self._begun = self._last_line = time.monotonic()
        self._bar = None
        if console().is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} steps  {task.fields[figures]}"),
                TimeRemainingColumn(),
                console=console(),
            )
            self._task = self._bar.add_task(title, total=total, completed=start, figures="")

    def update(self, frames: int, mean_return: float) -> None:
        now = time.monotonic()
        rate = (frames - self._start) / max(now - self._begun, 1e-9)
        figures = f"{rate:,.0f} steps/s  return {mean_return:.2f}"
        if self._bar:
            self._bar.update(self._task, completed=min(frames, self._total), figures=figures)
        elif now - self._last_line > _SECONDS_BETWEEN_LINES or frames >= self._total:
            self._last_line = now
            left = max(0, self._total - frames) / rate
            log(f"{min(frames, self._total)}/{self._total} steps  {figures}  {left:.0f} s left", type="train")

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
