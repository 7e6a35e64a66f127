"""What the episode logs are told of a shield's decisions: events, and bound and slack where they changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.types import AgentID

Note = Mapping[str, Mapping[AgentID, Any]]

NOTHING: Note = {}
"""The note of every copy in which there is nothing to tell."""

_EVENTS = ("overrides", "fallbacks", "unverified")
_MOST = 20_000  # notes that are kept for copies that have the same to tell


class Notebook:
    """Makes the notes of E copies and A agents. Copies with the same to tell share one note: read notes only."""

    def __init__(self, agents: Sequence[AgentID], num_envs: int) -> None:
        self._agents = tuple(agents)
        self._told = np.full((num_envs, 2 * len(self._agents)), np.inf)
        self._notes: dict[bytes, Note] = {}

    def forget(self, envs: NDArray[np.intp]) -> None:
        """New episodes in the copies ``envs`` (m,): bound and slack are to be told again."""
        self._told[envs] = np.inf

    def write(
        self,
        events: Sequence[NDArray[np.bool_]],
        active: NDArray[np.bool_],
        bound: NDArray[np.float64],
        slack: NDArray[np.float64],
    ) -> list[Note]:
        """One note a copy. Overrides, fallbacks and unverified plays are ``events`` (E, A) each; NaN is told as None."""
        now = np.concatenate([bound, slack], axis=1)
        # Compared as bits, since NaN is not equal to itself.
        changed = now.view(np.int64) != self._told.view(np.int64)
        changed &= np.concatenate([active, active], axis=1)
        np.copyto(self._told, now, where=changed)
        flags = np.concatenate([*events, changed], axis=1)
        envs = np.flatnonzero(flags.any(1))
        notes = [NOTHING] * len(flags)
        if not len(envs):
            return notes
        # What is not told must not tell notes apart.
        marks, values = flags[envs], np.where(changed, now, 0.0)[envs]
        rows = np.concatenate([marks.view(np.uint8), values.view(np.uint8)], axis=1)
        codes = rows.view(np.dtype((np.void, rows.shape[1]))).ravel().tolist()
        if len(self._notes) > _MOST:
            self._notes.clear()
        for place, (env, code) in enumerate(zip(envs.tolist(), codes, strict=True)):
            note = self._notes.get(code)
            if note is None:
                note = self._notes[code] = self._note(marks[place], values[place])
            notes[env] = note
        return notes

    def _note(self, marks: NDArray[np.bool_], values: NDArray[np.float64]) -> Note:
        count = len(self._agents)
        note: dict[str, dict[AgentID, Any]] = {}
        for place in np.flatnonzero(marks).tolist():
            kind, agent = divmod(place, count)
            if kind < len(_EVENTS):
                note.setdefault(_EVENTS[kind], {})[self._agents[agent]] = 1
            else:
                value = float(values[(kind - len(_EVENTS)) * count + agent])
                name = "bound" if kind == len(_EVENTS) else "slack"
                note.setdefault(name, {})[self._agents[agent]] = None if np.isnan(value) else value
        return note
