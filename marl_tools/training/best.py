"""The best team of a run so far, and whether the task is solved."""

from __future__ import annotations

import math
from typing import Any


class BestCheckpoint:
    """Remembers the best average return so far, over restarts too.

    The average is the moving one over ``window`` training episodes or, where the run evaluates on the way, that of an
    evaluation; both are means over agents, as everywhere. An average over fewer episodes than the last one is no rival to
    it, however lucky: until the window is full the latest average is the best.

    Args:
        window: training episodes in a full average.
        solved_at: an average over a full window that is at least this solves the task; None: nothing does.
    """

    def __init__(self, window: int = 100, solved_at: float | None = None) -> None:
        self.window, self.solved_at = window, solved_at
        self.average = -math.inf
        self.episodes = 0
        self.update: int | None = None

    @property
    def solved(self) -> bool:
        """Whether the best average solves the task."""
        return self.solves(self.average, episodes=self.episodes)

    def solves(self, average: float, *, episodes: int) -> bool:
        """Whether an average over so many episodes is over a full window and high enough."""
        return self.solved_at is not None and episodes >= self.window and average >= self.solved_at

    def offer(self, average: float, *, episodes: int, update: int) -> bool:
        """Take in an average over so many episodes after an update; True if it is the best so far."""
        if math.isnan(average) or not episodes:
            return False
        episodes = min(episodes, self.window)
        if (episodes, average) <= (self.episodes, self.average) and self.update is not None:
            return False
        self.average, self.episodes, self.update = average, episodes, update
        return True

    def state(self) -> dict[str, Any]:
        """Plain values from which `load` goes on exactly."""
        return {"average": self.average, "episodes": self.episodes, "update": self.update}

    def load(self, state: dict[str, Any]) -> None:
        self.average, self.episodes, self.update = state["average"], state["episodes"], state["update"]
