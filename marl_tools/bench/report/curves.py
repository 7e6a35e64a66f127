"""Curves of a run, folded from its log row by row: means over equal parts of its env steps, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.bounds import clopper_pearson
from marl_tools.core.errors import CorruptFileError

Floats = NDArray[np.float64]

BINS = 256
"""Parts that a run is folded into. A power of two: parts are joined in pairs when a run goes on for longer, or to draw fewer."""

EVERYONE = ""
"""The agent's place for what is said of all agents together; no agent of an env has this name."""

_MOST_AGENTS = 64
_FEWEST_EPISODES = 20  # a part, on average: fewer make a curve of noise
CONFIDENCE = 0.95

_EACH = ("return", "cost", "violation", "steps")
_EVENTS = ("overrides", "fallbacks", "unverified")
_BAD_ROW = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


class Curve(NamedTuple):
    """Centres ``x`` of the parts (n,), the mean ``y`` in each and its interval; NaN where there was nothing."""

    x: Floats
    y: Floats
    lo: Floats
    hi: Floats


class Bins:
    """Count, sum and sum of squares of a figure in each part of a run."""

    __slots__ = ("count", "squares", "total")

    def __init__(self) -> None:
        self.count: list[float] = [0] * BINS
        self.total: list[float] = [0] * BINS
        self.squares: list[float] = [0] * BINS

    def add(self, part: int, value: float) -> None:
        self.count[part] += 1
        self.total[part] += value
        self.squares[part] += value * value

    def join_pairs(self) -> None:
        """Two neighbouring parts become one, and the second half is free."""
        for values in (self.count, self.total, self.squares):
            values[:] = [values[i] + values[i + 1] for i in range(0, BINS, 2)] + [0] * (BINS // 2)


class EpisodeCurves:
    """What the episodes of one run come to so far, however many they are.

    Args:
        timesteps: env steps that the run is expected to take.
    """

    def __init__(self, timesteps: int) -> None:
        self.width = max(1.0, timesteps / BINS)
        self.agents: dict[str, tuple[Bins, ...]] = {}
        self.evaluations: dict[int, list[float]] = {}
        """Mean returns of the episodes of each evaluation on the way, by the env step that it came after."""
        self._bins: dict[tuple[str, str], Bins] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in a line of ``episodes.jsonl``.

        Raises:
            CorruptFileError: it is no episode.
        """
        try:
            self._add(row)
        except _BAD_ROW as error:
            raise CorruptFileError(f"not an episode log: {error!r}") from error

    def _add(self, row: Mapping[str, Any]) -> None:
        returns, violations = row["returns"], row["first_violation"]
        if not returns or "interrupted" in row["ends"].values():
            return
        mean, frames = sum(returns.values()) / len(returns), int(row["t_end"])
        if row["split"] == "eval":
            self.evaluations.setdefault(frames, []).append(mean)
            return
        part = self._part(frames)
        self._at("return", EVERYONE).add(part, mean)
        self._at("violation", EVERYONE).add(part, any(step is not None for step in violations.values()))
        for agent, earned in returns.items():
            if agent not in self.agents:
                if len(self.agents) == _MOST_AGENTS:
                    continue
                self.agents[agent] = tuple(self._at(name, agent) for name in _EACH)
            figures = (earned, row["costs"][agent], violations.get(agent) is not None, row["lengths"][agent])
            for bins, figure in zip(self.agents[agent], figures, strict=True):
                bins.add(part, float(figure))
            for event in _EVENTS:
                if count := row[event].get(agent, 0):
                    self._at(event, agent).add(part, int(count))

    def _at(self, name: str, agent: str) -> Bins:
        bins = self._bins.get((name, agent))
        if bins is None:
            bins = self._bins[name, agent] = Bins()
        return bins

    def _part(self, frames: int) -> int:
        # An episode's last step belongs to the part that it completes.
        part = int((max(1, frames) - 1) / self.width)
        while part >= BINS:
            for bins in self._bins.values():
                bins.join_pairs()
            self.width *= 2
            part = int((max(1, frames) - 1) / self.width)
        return part

    def mean(self, name: str, agent: str = EVERYONE, *, points: int = BINS) -> Curve:
        """Mean of an episode's "return" or "cost" with its Student-t interval, in at most ``points`` parts."""
        count, total, squares = self._parts(name, agent, points)
        y = _quotient(total, count)
        variance = _quotient(np.maximum(0.0, squares - total * np.nan_to_num(y)), count - 1)
        half = _t_quantiles(count) * np.sqrt(_quotient(variance, count))
        return Curve(self._centres(points), y, y - half, y + half)

    def rate(self, agent: str = EVERYONE, *, points: int = BINS) -> Curve:
        """Share of episodes with a violation, with the exact Clopper-Pearson interval."""
        count, total, _ = self._parts("violation", agent, points)
        lo, hi = clopper_pearson(total, count, 1 - CONFIDENCE)
        known = np.where(count > 0, 1.0, np.nan)
        return Curve(self._centres(points), _quotient(total, count), lo * known, hi * known)

    def violations_so_far(self, *, points: int = BINS) -> Curve:
        """Episodes with a violation up to the end of each part."""
        y = np.cumsum(self._parts("violation", EVERYONE, points)[1])
        x = self._centres(points)
        return Curve(x + x[:1] if len(x) else x, y, y, y)

    def share_of_steps(self, event: str, agent: str = EVERYONE, *, points: int = BINS) -> Curve:
        """Steps with an "overrides", "fallbacks" or "unverified" event over all steps of an agent, or of everyone."""
        agents = list(self.agents) if agent == EVERYONE else [agent]
        events = np.sum([self._parts(event, name, points)[1] for name in agents], axis=0)
        steps = np.sum([self._parts("steps", name, points)[1] for name in agents], axis=0)
        y = _quotient(events, steps)
        return Curve(self._centres(points), y, y, y)

    def total(self, name: str) -> float:
        """Sum over all agents and the whole run."""
        return sum(sum(bins.total) for (known, agent), bins in self._bins.items() if known == name and agent)

    def _parts(self, name: str, agent: str, points: int) -> tuple[Floats, Floats, Floats]:
        """Count, sum and squares (n,) of the parts that were reached."""
        bins = self._bins.get((name, agent)) or Bins()
        size, reached = self._layout(points)
        rows = np.array([bins.count, bins.total, bins.squares], np.float64)
        count, total, squares = rows.reshape(3, -1, size).sum(2)[:, :reached]
        return count, total, squares

    def _layout(self, points: int) -> tuple[int, int]:
        """How many parts are joined to one, so that each holds enough episodes, and how many of those were reached."""
        counts = self._at("return", EVERYONE).count
        reached = 1 + max((part for part, count in enumerate(counts) if count), default=-1)
        episodes, size = sum(counts), 1
        while size < BINS // 16 and (
            -(-reached // size) > points or episodes * size < _FEWEST_EPISODES * reached
        ):
            size *= 2
        return size, -(-reached // size)

    def _centres(self, points: int) -> Floats:
        size, reached = self._layout(points)
        return (np.arange(reached, dtype=np.float64) + 0.5) * (self.width * size)


def thinned(x: Sequence[float], y: Sequence[float], points: int) -> tuple[Floats, Floats]:
    """A long series (n,) as at most ``points`` means of equally many neighbours; a short one as it is. NaN counts for nothing."""
    size = -(-len(x) // points)
    if size <= 1:
        return np.asarray(x, np.float64), np.asarray(y, np.float64)
    # The last part is made full by NaN.
    missing = -len(x) % size
    places, values = (
        np.pad(np.asarray(row, np.float64), (0, missing), constant_values=np.nan).reshape(-1, size)
        for row in (x, y)
    )
    return (
        _quotient(np.nansum(places, 1), np.sum(~np.isnan(places), 1)),
        _quotient(np.nansum(values, 1), np.sum(~np.isnan(values), 1)),
    )


def _quotient(total: Any, count: Any) -> Any:
    """NaN where the count is 0 or less."""
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=np.asarray(count) > 0)


def _t_quantiles(count: Floats) -> Any:
    """Of Student's t with count - 1 degrees of freedom; NaN for fewer than two."""
    from scipy.stats import t

    freedom, places = np.unique(np.where(count > 1, count - 1, np.nan), return_inverse=True)
    return np.asarray(t.ppf((1 + CONFIDENCE) / 2, freedom), np.float64)[places]


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean over several runs of one curve, with its Student-t interval, as far as all of them go."""
    if not curves or not all(len(curve.x) for curve in curves):
        nothing = np.empty(0)
        return Curve(nothing, nothing, nothing, nothing)
    coarsest = min(curves, key=lambda curve: len(curve.x))
    end = min(float(curve.x[-1]) for curve in curves)
    x = coarsest.x[coarsest.x <= end * (1 + 1e-9)]
    rows = np.stack([_at_places(x, curve) for curve in curves])
    count = np.full(len(x), float(len(rows)))
    y = rows.mean(0)
    half = _t_quantiles(count) * np.sqrt(_quotient(((rows - y) ** 2).sum(0), count - 1) / count)
    return Curve(x, y, y - half, y + half)


def _at_places(x: Floats, curve: Curve) -> Floats:
    """By linear interpolation, also over parts in which no episode ended; NaN for a curve without a number."""
    known = np.isfinite(curve.y)
    return np.interp(x, curve.x[known], curve.y[known]) if known.any() else np.full(len(x), np.nan)
