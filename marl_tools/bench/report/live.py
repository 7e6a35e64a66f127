"""What a served report says of a run or a plan that goes on: the whole page once, and news since then."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from marl_tools.bench.plan_folder import FINISHED
from marl_tools.bench.report.clips import Clip, Film, Videos
from marl_tools.bench.report.gather import Reading, open_folder
from marl_tools.bench.report.page import Figures, detail, plan_body, run_body, whole_page
from marl_tools.bench.report.plan_view import compared


class LiveReport:
    """The report of a folder as it is now; any number of threads may ask.

    The page looks for news every ``seconds``. Drawing it up takes the share ``work`` of one core at most: what is
    watched needs the machine more.

    Raises:
        ConfigError: no such folder, or neither run nor plan in it.
    """

    seconds = 2.0
    work = 0.1

    def __init__(self, folder: Path, *, videos: Videos = "link") -> None:
        self._source, self._page = open_folder(folder), folder / "report.html"
        self._videos: Videos = videos
        self._lock = threading.Lock()
        self._version = 0
        self._finished: list[str] | None = None
        self._render()

    @property
    def title(self) -> str:
        source = self._source
        return source.name if not isinstance(source, Reading) else source.summary.env or source.id

    def page(self) -> str:
        """The whole page."""
        with self._lock:
            self._look()
            return whole_page(self.title, self._body, self._figures, live=self.seconds, number=self._version)

    def news(self, since: str) -> dict[str, Any]:
        """The body and its figures, if they have changed since that version."""
        with self._lock:
            self._look()
            if since == str(self._version):
                return {"version": self._version}
            return {"version": self._version, "body": self._body, "figures": self._figures}

    def run(self, number: str) -> dict[str, Any] | None:
        """The details of one of many runs; None if there is none of that number."""
        with self._lock:
            runs = [] if isinstance(self._source, Reading) else list(self._source.runs.values())
            if not (number.isascii() and number.isdigit() and len(number) < 9 and int(number) < len(runs)):
                return None
            body, figures = detail(runs[int(number)], self._film(), int(number))
            return {"version": self._version, "body": body, "figures": figures}

    def clip(self, path: str) -> Clip | None:
        """The film that the page finds under a path; no other file is ever given out."""
        with self._lock:
            runs = [self._source] if isinstance(self._source, Reading) else self._source.runs.values()
            film = self._film()
            return next(
                (clip for run in runs for clip in run.clips if unquote(film.source(clip)) == path), None
            )

    def _film(self) -> Film:
        return Film(self._videos, self._page)

    def _look(self) -> None:
        """Read on and draw up the body anew, if something changed and it is time to."""
        if time.monotonic() - self._drawn_at < self._took / self.work:
            return
        if self._source.refresh():
            self._render()

    def _render(self) -> None:
        began = time.monotonic()
        self._body, self._figures = self._bodies()
        self._version += 1
        self._drawn_at = time.monotonic()
        self._took = self._drawn_at - began

    def _bodies(self) -> tuple[str, Figures]:
        source = self._source
        if isinstance(source, Reading):
            return run_body(source, self._film())
        finished = [run.id for run in source.runs.values() if run.state in FINISHED]
        if finished != self._finished:
            # Only finished runs are compared.
            self._finished, self._compared = finished, compared(source)
        return plan_body(source, self._film(), *self._compared, details=False)
