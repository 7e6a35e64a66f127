"""The seam between a run and the programs that show it while it goes on: what a `Tracker` is told, and several as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from marl_tools.core.logging import log
from marl_tools.core.types import EpisodeLog


class Tracker(Protocol):
    """Something that draws a run. All that it is told is a copy: the files in the run folder are the record."""

    def points(self, rows: Sequence[Mapping[str, Any]], prefix: str, step_metric: str) -> None:
        """One point a row on the curves ``prefix/<name>``, at ``row[step_metric]``."""
        ...

    def history(self, episodes: Sequence[EpisodeLog], prefix: str) -> None:
        """One point an episode, at its ``t_end`` on the run's clock."""
        ...

    def evaluation(self, episodes: Sequence[EpisodeLog], name: str) -> None:
        """One point an episode of a whole evaluation, whose clock is its own. The same ``name`` again is the same one anew."""
        ...

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], t: int) -> None:
        """A table as it stands at env step ``t``; None in a cell that has no value."""
        ...

    def video(self, path: Path, name: str, t: int) -> None:
        """A finished clip, at step ``t``."""
        ...

    def finish(self, exit_code: int) -> None:
        """Nothing more comes; a nonzero ``exit_code`` says that the run failed."""
        ...


class Trackers:
    """All trackers of a run, by name. None of them can stop it: what they raise is logged, once for each kind of error.

    As a context manager it ends by `finish`.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._told: set[tuple[str, type[Exception]]] = set()

    def points(self, rows: Sequence[Mapping[str, Any]], prefix: str, step_metric: str) -> None:
        self._each(lambda tracker: tracker.points(rows, prefix, step_metric))

    def history(self, episodes: Sequence[EpisodeLog], prefix: str) -> None:
        self._each(lambda tracker: tracker.history(episodes, prefix))

    def evaluation(self, episodes: Sequence[EpisodeLog], name: str) -> None:
        self._each(lambda tracker: tracker.evaluation(episodes, name))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], t: int) -> None:
        self._each(lambda tracker: tracker.table(name, columns, rows, t))

    def video(self, path: Path, name: str, t: int) -> None:
        self._each(lambda tracker: tracker.video(path, name, t))

    def finish(self, exit_code: int = 0) -> None:
        self._each(lambda tracker: tracker.finish(exit_code))

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.finish(0 if kind is None else 1)

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in self._trackers.items():
            try:
                tell(tracker)
            # A copy for looking at must not cost the run, whatever a tracker's service, network or disk comes up with.
            except Exception as error:
                if (name, type(error)) not in self._told:
                    self._told.add((name, type(error)))
                    log(
                        f"{name} misses something: {type(error).__name__}: {error}. The run goes on, and its own logs are whole",
                        type="track",
                        priority="WARNING",
                    )
