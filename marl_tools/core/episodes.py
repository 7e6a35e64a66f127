"""`EpisodeBatch`: the episodes of many worlds in arrays, closed into the logs that an `EpisodeBuilder` each would give."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.history import add_note
from marl_tools.core.types import AgentID, End, EpisodeLog, Split

_ARRAYS = (
    "live",
    "_numbers",
    "_t_start",
    "_length",
    "_returns",
    "_costs",
    "_lengths",
    "_first_violation",
    "_ends",
)
_ENDS: tuple[End, ...] = ("interrupted", "terminated", "truncated")


class EpisodeBatch:
    """The running episodes of E worlds of one env, all with the same A agents, who are there from the start.

    Call `start` for the worlds that are reset and `step` after each step of all. No Python is spent on a world before its
    episode ends. Figures are those of `EpisodeBuilder`, to the bit. In the logs world 0 has the ``env_index`` ``first``.
    """

    def __init__(
        self,
        env_name: str,
        agents: Sequence[AgentID],
        num_envs: int,
        *,
        split: Split = "train",
        first: int = 0,
    ) -> None:
        self.env_name, self.agents, self._first = env_name, tuple(agents), first
        self.split: Split = split
        shape = (num_envs, len(self.agents))
        self.live = np.zeros(shape, bool)
        """Whose episode goes on, (E, A)."""
        self._numbers = np.full(num_envs, -1)
        self._seeds: list[int | None] = [None] * num_envs
        self._t_start, self._started = np.zeros(num_envs, np.int64), np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._returns, self._costs = np.zeros(shape), np.zeros(shape)
        self._lengths, self._first_violation = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._ends = np.zeros(shape, np.int8)
        self._notes: list[dict[str, dict[AgentID, Any]]] = [{} for _ in range(num_envs)]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Number of each world's current or last episode, counted from 0 (E,); -1 before the first."""
        return self._numbers

    @property
    def length(self) -> NDArray[np.int64]:
        """Steps of each world's current episode so far, (E,)."""
        return self._length

    def resume(self, episodes: int) -> None:
        """Number each world's next episode ``episodes``; see `EpisodeBuilder.resume`."""
        self._numbers[:] = episodes - 1

    def start(self, worlds: NDArray[np.int64], seeds: Sequence[int], *, t: int) -> list[EpisodeLog]:
        """Open an episode in each of ``worlds`` (n,); those that were still running are returned as interrupted."""
        interrupted = self.interrupt(worlds, t=t)
        self._numbers[worlds] += 1
        for world, seed in zip(worlds.tolist(), seeds, strict=True):
            self._seeds[world] = seed
            self._notes[world] = {}
        self._t_start[worlds], self._started[worlds], self._length[worlds] = t, time.monotonic(), 0
        for array in (self._returns, self._costs, self._lengths, self._first_violation, self._ends):
            array[worlds] = 0
        self.live[worlds] = True
        return interrupted

    def note(self, notes: Sequence[Mapping[str, Mapping[AgentID, Any]]]) -> None:
        """Take in what a step's ``notes[world]`` say of its agents; see `EpisodeBuilder.note`."""
        for kept, of_world in zip(self._notes, notes, strict=True):
            for key, values in of_world.items():
                for agent, value in values.items():
                    add_note(kept, key, agent, value)

    def step(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        *,
        t: int,
        costs: NDArray[np.float64] | None = None,
    ) -> list[EpisodeLog]:
        """Add a step of all worlds; returns the episodes that it closed, in the order of the worlds.

        Args:
            rewards, costs: (E, A), 0 for agents that are not `live`; without costs they stay 0.
            terminated, truncated: (E, A), of live agents only.
            t: the clock after the step.
        """
        self._length += 1
        self._returns += rewards
        if costs is not None:
            self._costs += costs
            first = (costs > 0) & (self._first_violation == 0)
            np.copyto(self._first_violation, self._length[:, None], where=first)
        ended = terminated | truncated
        if not ended.any():
            return []
        self._ends += terminated
        self._ends += 2 * (truncated & ~terminated)
        self._leave(ended)
        over = ended.any(axis=1) & ~self.live.any(axis=1)
        return self._close(np.flatnonzero(over), t)

    def interrupt(self, worlds: NDArray[np.int64] | None = None, *, t: int) -> list[EpisodeLog]:
        """Close what still runs in ``worlds``, all by default; an episode without a step is as if never started."""
        running = np.logical_or.reduce(self.live, axis=1)
        if worlds is not None:
            among = np.zeros_like(running)
            among[worlds] = True
            running &= among
        self._leave(self.live & running[:, None])
        self._numbers[running & (self._length == 0)] -= 1
        return self._close(np.flatnonzero(running & (self._length > 0)), t)

    def state(self) -> dict[str, Any]:
        """The running episodes as arrays and plain values, from which `load` goes on."""
        return {
            **{name.removeprefix("_"): getattr(self, name).copy() for name in _ARRAYS},
            "elapsed": time.monotonic() - self._started,
            "seeds": list(self._seeds),
            "notes": copy.deepcopy(self._notes),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on with the episodes that `state` describes."""
        for name in _ARRAYS:
            getattr(self, name)[...] = state[name.removeprefix("_")]
        self._started[:] = time.monotonic() - state["elapsed"]
        self._seeds, self._notes = list(state["seeds"]), copy.deepcopy(list(state["notes"]))

    def _leave(self, agents: NDArray[np.bool_]) -> None:
        """Some agents' (E, A) last step was this one."""
        np.copyto(self._lengths, self._length[:, None], where=agents)
        self.live &= ~agents

    def _close(self, worlds: NDArray[np.int64], t: int) -> list[EpisodeLog]:
        """The logs of some worlds' episodes; whoever has no end by now was interrupted."""
        if not len(worlds):
            return []
        now, agents = time.monotonic(), self.agents
        columns = (
            worlds,
            self._numbers[worlds],
            self._t_start[worlds],
            now - self._started[worlds],
            self._length[worlds],
            self._returns[worlds],
            self._costs[worlds],
            self._lengths[worlds],
            self._ends[worlds],
            self._first_violation[worlds],
        )
        return [
            EpisodeLog(
                env_name=self.env_name,
                env_index=self._first + world,
                episode=number,
                split=self.split,
                seed=self._seeds[world],
                t_start=t_start,
                t_end=t,
                wall_time=wall_time,
                length=length,
                returns=dict(zip(agents, returns, strict=True)),
                costs=dict(zip(agents, costs, strict=True)),
                lengths=dict(zip(agents, lengths, strict=True)),
                ends={agent: _ENDS[end] for agent, end in zip(agents, ends, strict=True)},
                first_violation={agent: step or None for agent, step in zip(agents, first, strict=True)},
                **self._notes[world],
            )
            for world, number, t_start, wall_time, length, returns, costs, lengths, ends, first in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
