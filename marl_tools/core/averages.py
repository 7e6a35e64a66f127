"""The recent past of episodes, and moving averages over it that are exact, whatever order of events led to them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from marl_tools.core.types import AgentID, EpisodeLog, Split


class MovingAverage:
    """Mean of the last ``window`` values; None takes a place in the window but no part in the mean.

    Adding costs the same however long the window is. The sum is kept as a few floats that do not overlap, and is exact:
    rounded once, it is `math.fsum` of the window. So a run that is resumed has the very averages of one that was not.

    References:
        Shewchuk 1997, Adaptive precision floating-point arithmetic and fast robust geometric predicates.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self._values: deque[float | None] = deque()
        self._sum: list[float] = []
        self._count = 0
        self._wild: list[float] = []

    def add(self, value: float | None) -> None:
        self._values.append(value)
        self._count += value is not None
        if value is not None:
            self._take(value, 1.0)
        if len(self._values) > self.window:
            oldest = self._values.popleft()
            if oldest is not None:
                self._count -= 1
                self._take(oldest, -1.0)

    @property
    def value(self) -> float:
        """NaN for an empty window."""
        return (math.fsum(self._sum) + sum(self._wild)) / self._count if self._count else math.nan

    def _take(self, value: float, sign: float) -> None:
        """Add a value to the sum or take it out again, without rounding."""
        if not math.isfinite(value):
            # NaN and infinities cannot be taken out by subtraction.
            if sign > 0:
                self._wild.append(value)
            else:
                self._wild.pop(0)
            return
        x, kept = sign * value, []
        for part in self._sum:
            large, small = (x, part) if abs(x) >= abs(part) else (part, x)
            x = large + small
            if rest := small - (x - large):
                kept.append(rest)
        self._sum = [*kept, x] if x else kept


class History:
    """The last ``maxlen`` whole episodes of each (env name, split), for moving averages; the full past is on disk.

    Interrupted episodes are kept beside them, as many, and take no part in averages.
    """

    def __init__(self, maxlen: int = 1000) -> None:
        self.maxlen = maxlen
        self._logs: dict[tuple[str, Split, bool], deque[EpisodeLog]] = {}
        self._averages: dict[tuple[int, AgentID | None, Split, str | None], MovingAverage] = {}
        self._last: dict[Split, tuple[int, str]] = {}

    def add(self, log: EpisodeLog) -> None:
        """Take in an episode, at a cost that does not depend on how many there are."""
        key = (log.env_name, log.split, log.interrupted)
        if key not in self._logs:
            self._logs[key] = deque(maxlen=self.maxlen)
        self._logs[key].append(log)
        if log.interrupted:
            return
        last_t, last_env = self._last.get(log.split, (-1, ""))
        if log.t_end < last_t or (log.t_end == last_t and log.env_name != last_env):
            # Windows are in order of time: they are filled anew when they are next asked for.
            self._averages = {key: average for key, average in self._averages.items() if key[2] != log.split}
        else:
            self._last[log.split] = (log.t_end, log.env_name)
        for (_, agent, split, env_name), average in self._averages.items():
            if split == log.split and env_name in (None, log.env_name):
                average.add(_return_of(log, agent))

    def extend(self, logs: Iterable[EpisodeLog]) -> None:
        for log in logs:
            self.add(log)

    def __len__(self) -> int:
        return sum(map(len, self._logs.values()))

    def __iter__(self) -> Iterator[EpisodeLog]:
        for logs in self._logs.values():
            yield from logs

    def recent(
        self, window: int | None = None, *, split: Split = "train", env_name: str | None = None
    ) -> list[EpisodeLog]:
        """The last ``window`` whole episodes (interrupted ones left out), oldest first."""
        logs = [
            log
            for (name, of_split, interrupted), group in self._logs.items()
            if of_split == split and env_name in (None, name) and not interrupted
            for log in group
        ]
        logs.sort(key=lambda log: log.t_end)
        return logs if window is None else logs[max(0, len(logs) - window) :]

    def ma(
        self,
        window: int = 100,
        agent: AgentID | None = None,
        split: Split = "train",
        env_name: str | None = None,
    ) -> float:
        """Moving average of the return over the last ``window`` episodes (at most ``maxlen``): of one agent, or the
        mean over agents.

        The first call for a window sorts what is kept; from then on each episode updates the average in constant time. NaN
        while there is no whole episode.
        """
        key = (min(window, self.maxlen), agent, split, env_name)
        if key not in self._averages:
            average = self._averages[key] = MovingAverage(key[0])
            for log in self.recent(key[0], split=split, env_name=env_name):
                average.add(_return_of(log, agent))
        return self._averages[key].value

    def clear(self) -> None:
        """Forget all episodes."""
        self._logs.clear()
        self._averages.clear()
        self._last.clear()


def _return_of(log: EpisodeLog, agent: AgentID | None) -> float | None:
    """One agent's return, None if it took no part; without an agent the mean over all."""
    return log.mean_return if agent is None else log.returns.get(agent)
