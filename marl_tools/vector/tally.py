"""`Tally`: what the parent knows of the episodes that run in its workers, so that none goes unlogged when one dies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_tools.core.history import add_note
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import AgentID, End, EpisodeLog, GroupStep, Split

_ENDS: tuple[End, ...] = ("interrupted", "terminated", "truncated")
_CODES = {end: code for code, end in enumerate(_ENDS)}


class Tally:
    """The running episode of each of E copies, added up from the arrays of every step.

    Call `start` for each copy that was reset and `step` after each step. The figures are those of the copy's own
    `EpisodeBuilder`; only the metrics that an env puts into its infos are not known here.
    """

    def __init__(
        self, env_name: str, groups: Sequence[AgentGroup], num_envs: int, *, split: Split = "train"
    ) -> None:
        self.env_name = env_name
        self.split: Split = split
        self.numbers = np.zeros(num_envs, np.int64)
        """Number of each copy's running or next episode, (E,)."""
        self.length = np.zeros(num_envs, np.int64)
        """Steps of each running episode so far, (E,)."""
        self._seeds, self._t_start, self._began = [0] * num_envs, [0] * num_envs, [0.0] * num_envs
        self._notes: list[dict[str, dict[AgentID, Any]]] = [{} for _ in range(num_envs)]
        self._groups = {group.name: _GroupTally(group, num_envs) for group in groups}

    def start(
        self, copy: int, groups: Mapping[str, GroupStep], row: int, *, number: int, seed: int, t: int
    ) -> None:
        """An episode begins; whoever is active in ``row`` of the arrays is there from the start."""
        self.numbers[copy], self.length[copy] = number, 0
        self._seeds[copy], self._t_start[copy], self._began[copy] = seed, t, time.monotonic()
        self._notes[copy] = {}
        for name, tally in self._groups.items():
            tally.start(copy, groups[name], row)

    def load(self, copy: int, told: Mapping[str, Any], groups: Mapping[str, GroupStep]) -> None:
        """Go on with the episode that the state of the copy's `EpisodeBuilder` describes."""
        self.start(copy, groups, copy, number=told["episode"], seed=told["seed"], t=told["t_start"])
        self.length[copy] = told["length"]
        self._began[copy] -= told["elapsed"]
        self._notes[copy] = {key: dict(values) for key, values in told["notes"].items()}
        for tally in self._groups.values():
            tally.load(copy, told)

    def note(self, first: int, notes: Sequence[Mapping[str, Mapping[AgentID, Any]]]) -> None:
        """Take in what a step's notes say of the agents in the copies from ``first`` on."""
        for kept, of_copy in zip(self._notes[first:], notes, strict=False):
            for key, values in of_copy.items():
                for agent, value in values.items():
                    add_note(kept, key, agent, value)

    def step(self, copies: slice, groups: Mapping[str, GroupStep]) -> None:
        """Add a step of ``copies``, whose arrays ``groups`` holds."""
        self.length[copies] += 1
        for name, tally in self._groups.items():
            tally.step(copies, groups[name], self.length[copies])

    def active(self, group: str, copies: slice) -> np.ndarray:
        """Who acts next, as of the last step that arrived."""
        return self._groups[group].active[copies]

    def close(self, copy: int) -> None:
        """The episode is over, and logged by the copy itself."""
        self.numbers[copy] += 1
        self.length[copy] = 0

    def interrupt(self, copy: int) -> EpisodeLog | None:
        """Close an episode that nobody else can log; None if it had no step yet, and then its number is free again."""
        if self.length[copy] == 0:
            return None
        log = self._log(copy)
        self.close(copy)
        return log

    def _log(self, copy: int) -> EpisodeLog:
        notes: dict[str, Any] = dict(self._notes[copy])
        rows = {agent: figures for tally in self._groups.values() for agent, *figures in tally.figures(copy)}

        def column(index: int) -> dict[AgentID, Any]:
            return {agent: figures[index] for agent, figures in rows.items()}

        return EpisodeLog(
            env_name=self.env_name,
            env_index=copy,
            episode=int(self.numbers[copy]),
            split=self.split,
            seed=self._seeds[copy],
            t_start=self._t_start[copy],
            # The copy's clock counts the steps of all copies.
            t_end=self._t_start[copy] + int(self.length[copy]) * len(self.length),
            wall_time=time.monotonic() - self._began[copy],
            length=int(self.length[copy]),
            returns=column(0),
            costs=column(1),
            lengths=column(2),
            ends={agent: _ENDS[end] for agent, end in column(3).items()},
            first_violation={agent: step or None for agent, step in column(4).items()},
            joined={agent: step for agent, step in column(5).items() if step},
            **notes,
        )


class _GroupTally:
    """Sums per copy and agent, all arrays (E, A)."""

    def __init__(self, group: AgentGroup, num_envs: int) -> None:
        shape = (num_envs, len(group.agents))
        self.agents = group.agents
        self.active, self.present = np.zeros(shape, bool), np.zeros(shape, bool)
        self.returns, self.costs = np.zeros(shape), np.zeros(shape)
        self.lengths, self.ends = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.first_violation, self.joined = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._sums = (self.returns, self.costs, self.lengths, self.ends, self.first_violation, self.joined)

    def start(self, copy: int, step: GroupStep, row: int) -> None:
        for array in self._sums:
            array[copy] = 0
        self.active[copy] = self.present[copy] = step.active[row]

    def load(self, copy: int, told: Mapping[str, Any]) -> None:
        """Take the figures of an `EpisodeBuilder`'s state."""
        for place, agent in enumerate(self.agents):
            if agent in told["returns"]:
                self.present[copy, place] = True
                self.returns[copy, place], self.costs[copy, place] = (
                    told["returns"][agent],
                    told["costs"][agent],
                )
                self.lengths[copy, place] = told["lengths"][agent]
                self.ends[copy, place] = _CODES.get(told["ends"].get(agent, "interrupted"), 2)
                self.first_violation[copy, place] = told["first_violation"][agent] or 0
                self.joined[copy, place] = told["joined"].get(agent, 0)

    def step(self, copies: slice, step: GroupStep, length: np.ndarray) -> None:
        self.returns[copies] += step.rewards
        self.lengths[copies] += self.active[copies]
        violating = step.costs > 0
        if violating.any():
            self.costs[copies] += np.where(violating, step.costs, 0.0)
            first = self.first_violation[copies]
            np.copyto(first, length[:, None], where=violating & (first == 0))
        if len(step.final_env):
            self.ends[copies] += np.where(step.terminated, 1, 2 * step.truncated)
        if not np.array_equal(step.active, self.active[copies]):
            born = step.active & ~self.present[copies]
            np.copyto(self.joined[copies], length[:, None], where=born)
            self.present[copies] |= born
            self.active[copies] = step.active

    def figures(self, copy: int) -> list[tuple[Any, ...]]:
        """Of each agent that was there: its name, then its sums in the order of `_sums`."""
        columns = zip(*(array[copy].tolist() for array in self._sums), strict=True)
        there = self.present[copy].tolist()
        return [(a, *sums) for a, here, sums in zip(self.agents, there, columns, strict=True) if here]
