"""`TeamRows`: the steps of a whole team as bytes, while nothing out of the ordinary happens in it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.segments import AgentSegment
from marl_tools.core.tracks import Track
from marl_tools.core.types import AgentID, End

Values = Mapping[AgentID, Any]

_CODES = {
    (kind, np.dtype(f"{kind}{size}").itemsize): code if kind == "i" else code.upper()
    for kind in "iu"
    for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
}
"""What `struct` calls a whole number of so many bytes."""

Taken = tuple[Callable[[], dict[AgentID, AgentSegment]], int]
"""What makes the segments of those to whom anything happened, at leisure, and how much memory it holds."""

_Row = tuple[bytes, bytes, bytes, bytes]
"""Actions, rewards, costs and observations of one step."""

_UNUSUAL = (KeyError, TypeError, AttributeError, ValueError, BufferError, struct.error)
"""What a value that is missing, or not of the type that its space says, leads to."""


class TeamRows:
    """What `Track` keeps for one agent, for all of them together, in a few calls into C a step.

    It takes only what it can keep to the bit: steps in which everybody acts and is given an observation, all values being of
    exactly the spaces' types. Of anything else `begin`, `act` and `add` say False; `hand_over` then brings the `Track`s up to
    where it stands, and those go on.

    Args:
        tracks: of the agents that are there, in the order of the files.
    """

    def __init__(self, tracks: Mapping[AgentID, Track]) -> None:
        self.tracks = dict(tracks)
        agents = list(tracks)
        # With one key `itemgetter` gives no tuple.
        self._pick: Callable[[Values], tuple[Any, ...]] = (
            itemgetter(*agents) if len(agents) > 1 else lambda values: (values[agents[0]],)
        )
        self._able = all(track.plain for track in tracks.values())
        self._obs = _Columns([track.obs for track in tracks.values()])
        self._act = _Columns([track.actions for track in tracks.values()])
        self._floats = struct.Struct(f"{len(agents)}d")
        self._no_costs = self._floats.pack(*[math.nan] * len(agents))
        self._step_bytes = self._obs.row_bytes + self._act.row_bytes + 2 * self._floats.size
        self._t = 0
        self._first = self._played = b""
        self._rows: list[_Row] = []

    def begin(self, t: int, observations: Values, infos: Mapping[AgentID, Any]) -> bool:
        """Start anew, ``t`` steps into the episode."""
        if not self._able:
            return False
        try:
            if any(infos.values()):
                self._costs(infos)
            self._first = self._obs.pack(self._pick(observations))
        except _UNUSUAL:
            return False
        self._t, self._rows, self._played = t, [], b""
        return True

    def act(self, actions: Values) -> bool:
        """Note what everybody plays next. To be called before the env can change it."""
        try:
            self._played = self._act.pack(self._pick(actions))
        except _UNUSUAL:
            return False
        return True

    def add(self, rewards: Values, observations: Values, infos: Mapping[AgentID, Any]) -> bool:
        """What came of the actions noted before."""
        try:
            gained = self._floats.pack(*self._pick(rewards))
            costs = self._costs(infos) if any(infos.values()) else self._no_costs
            seen = self._obs.pack(self._pick(observations))
        except _UNUSUAL:
            return False
        played, self._played = self._played, b""
        # All of a step at once, so that a Ctrl-C at any moment leaves whole transitions.
        self._rows.append((played, gained, costs, seen))
        return True

    def take(self, ends: Mapping[AgentID, End]) -> Taken | None:
        """What was recorded, if anything was; the next segment begins with the last observations."""
        if not (rows := self._rows):
            return None
        first, t, steps = self._first, self._t, len(rows)
        self._t, self._first, self._rows = t + steps, rows[-1][-1], []

        def segments() -> dict[AgentID, AgentSegment]:
            act, rew, cost, obs = self._arrays(first, rows)
            clock = np.arange(t, t + steps)
            return {
                agent: track.segment(
                    obs[place], act[place], rew[:, place], cost[:, place], clock, end=ends.get(agent)
                )
                for place, (agent, track) in enumerate(self.tracks.items())
            }

        return segments, steps * self._step_bytes

    def hand_over(self) -> None:
        """Bring the tracks to where this stands."""
        act, rew, cost, obs = self._arrays(self._first, self._rows)
        pending = self._act.arrays([self._played]) if self._played else None
        for place, track in enumerate(self.tracks.values()):
            track.fill(self._t, obs[place], act[place], rew[:, place], cost[:, place])
            if pending:
                track.act(pending[place][0])

    def _costs(self, infos: Mapping[AgentID, Any]) -> bytes:
        costs = []
        for agent in self.tracks:
            info = infos.get(agent) or {}
            if "action_mask" in info:
                raise KeyError("the tracks keep masks")
            costs.append(info.get("cost", math.nan))
        return self._floats.pack(*costs)

    def _arrays(
        self, first: bytes, rows: list[_Row]
    ) -> tuple[list[NDArray[Any]], NDArray[np.float64], NDArray[np.float64], list[NDArray[Any]]]:
        """Actions of each agent; rewards and costs (T, A); observations of each agent."""
        act, rew, cost, obs = zip(*rows, strict=True) if rows else ((), (), (), ())
        rewards, costs = (
            np.frombuffer(b"".join(numbers)).reshape(-1, len(self.tracks)) for numbers in (rew, cost)
        )
        return self._act.arrays(act), rewards, costs, self._obs.arrays((first, *obs))


class _Columns:
    """Values of one kind of all agents, packed side by side; ``examples`` are arrays of such values, one per agent."""

    def __init__(self, examples: Sequence[NDArray[Any]]) -> None:
        self._kinds = [(array.dtype, array.shape[1:]) for array in examples]
        self._row = np.dtype([(f"{place}", *kind) for place, kind in enumerate(self._kinds)])
        numbers = all(not shape and dtype.kind in "iu" for dtype, shape in self._kinds)
        # As NumPy lays them out: native, without gaps.
        codes = "=" + "".join(_CODES[dtype.kind, dtype.itemsize] for dtype, _ in self._kinds if numbers)
        self._numbers = struct.Struct(codes) if numbers else None

    @property
    def row_bytes(self) -> int:
        return self._row.itemsize

    def pack(self, values: tuple[Any, ...]) -> bytes:
        """One row. Raises what `_UNUSUAL` lists for a value that is of another type."""
        if self._numbers:
            return self._numbers.pack(*values)
        for value, (dtype, shape) in zip(values, self._kinds, strict=True):
            # Nearly always the very same object, which is quicker to see.
            if (value.dtype is not dtype and value.dtype != dtype) or value.shape != shape:
                raise TypeError("the tracks convert")
        return b"".join(values)

    def arrays(self, rows: Sequence[bytes]) -> list[NDArray[Any]]:
        """What was packed in ``rows``, (T, ...) for each agent; views of one memory."""
        content = b"".join(rows)
        table = np.frombuffer(content, self._row) if content else np.empty(0, self._row)
        return [table[name] for name in self._row.names or ()]
