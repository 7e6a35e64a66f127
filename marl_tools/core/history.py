"""Episodes: the builder that closes one into an `EpisodeLog`, the clock it is stamped with, and the `History` of recent ones."""

from __future__ import annotations

import copy
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from marl_tools.core.averages import History
from marl_tools.core.errors import EnvError
from marl_tools.core.metrics import METRIC_PREFIXES, metric_name, reduce_metrics
from marl_tools.core.types import AgentID, End, EpisodeLog, Split

__all__ = ["METRIC_PREFIXES", "Clock", "EpisodeBuilder", "History", "add_note"]

_COUNTS = ("overrides", "fallbacks", "unverified")


_FIGURES = (
    "env_name",
    "seed",
    "t_start",
    "length",
    "costed",
    "returns",
    "costs",
    "_lengths",
    "ends",
    "_first_violation",
    "_joined",
    "_notes",
    "_metrics",
)
"""What an `EpisodeBuilder` knows of a running episode, beside its number, who is there and since when."""


class Clock:
    """Counts env steps, in total and per env name. ``stride`` is what one step of this env adds.

    Copies stepped side by side use ``stride=num_envs``: each then reads the run's total without sharing state.
    """

    def __init__(self, frames: int = 0, stride: int = 1) -> None:
        self.frames = frames
        self.stride = stride
        self.frames_by_env: dict[str, int] = {}

    def tick(self, env_name: str) -> None:
        self.frames += self.stride
        self.frames_by_env[env_name] = self.frames_by_env.get(env_name, 0) + self.stride


class EpisodeBuilder:
    """Turns the steps of one env into `EpisodeLog`s.

    Call `start` at each reset and `step` after each step. `step` returns the log once no agent is left; what
    comes after that is ignored until the next `start`, so stepping past the end logs nothing twice. ``live`` holds the
    agents that are there, ``ends`` how the others of this episode ended.
    """

    def __init__(self, *, env_index: int = 0, split: Split = "train") -> None:
        self.env_index = env_index
        self.split: Split = split
        self.update: int | None = None
        self.open = False
        self.costed = False
        """Whether any info has held a cost so far: without one, costs of 0 say nothing."""
        self._episode = -1

    @property
    def episode(self) -> int:
        """Number of the current episode, counted from 0; -1 before the first."""
        return self._episode

    def resume(self, episodes: int) -> None:
        """Number the next episode ``episodes``: more than any that an earlier run of this env can have had."""
        self._episode = episodes - 1

    def start(
        self, env_name: str, agents: Iterable[AgentID], *, seed: int | None, t: int
    ) -> EpisodeLog | None:
        """Open an episode; an episode that was still open is returned as interrupted."""
        interrupted = self.interrupt(t)
        self._episode += 1
        self.open = True
        self.env_name, self.seed, self.t_start, self.length = env_name, seed, t, 0
        self._started = time.monotonic()
        self.live: dict[AgentID, None] = dict.fromkeys(agents)
        self.returns: dict[AgentID, float] = dict.fromkeys(self.live, 0.0)
        self.costs: dict[AgentID, float] = dict.fromkeys(self.live, 0.0)
        self._lengths: dict[AgentID, int] = dict.fromkeys(self.live, 0)
        self.ends: dict[AgentID, End] = {}
        self._first_violation: dict[AgentID, int | None] = dict.fromkeys(self.live)
        self._joined: dict[AgentID, int] = {}
        self._notes: dict[str, dict[AgentID, Any]] = {}
        self._metrics: dict[AgentID, dict[str, list[float]]] = {}
        return interrupted

    def step(
        self,
        rewards: Mapping[AgentID, float],
        terminations: Mapping[AgentID, bool],
        truncations: Mapping[AgentID, bool],
        infos: Mapping[AgentID, Mapping[str, Any]],
        agents: Iterable[AgentID],
        *,
        t: int,
    ) -> EpisodeLog | None:
        """Add one step; ``agents`` are those left after it, ``t`` the clock. Returns the log at the last one's end."""
        if not self.open:
            return None
        self.length += 1
        live = self.live
        for agent, reward in rewards.items():
            # A death and a birth in one step: whoever is not known yet and is alive now joins here.
            if agent not in live:
                if agent in self.ends or agent not in agents:
                    continue
                self._join(agent, self.length - 1)
            self.returns[agent] += float(reward)
            self._lengths[agent] += 1
            info = infos.get(agent)
            if info:
                self._read_info(agent, info)
            terminated = terminations.get(agent, False)
            if terminated or truncations.get(agent, False):
                capped = info is not None and info.get("capped", False)
                self.ends[agent] = "terminated" if terminated else "capped" if capped else "truncated"
                del live[agent]
        remaining = set(agents)
        if live.keys() != remaining:
            for agent in [agent for agent in live if agent not in remaining]:
                # It left without a flag: nothing says that its future is worth nothing.
                self.ends[agent] = "truncated"
                del live[agent]
            for agent in agents:
                if agent not in live and agent not in self.ends:
                    self._join(agent, self.length)
        return None if live else self._close(t)

    def note(self, key: str, agent: AgentID, value: float | None) -> None:
        """Count up ``overrides``, ``fallbacks`` or ``unverified`` of an agent, or set its ``bound`` or ``slack``."""
        add_note(self._notes, key, agent, value)

    def interrupt(self, t: int) -> EpisodeLog | None:
        """Close an open episode that was abandoned midway. Returns None if it had no step yet, or none was open."""
        if not self.open:
            return None
        if self.length == 0:
            self.open = False
            self._episode -= 1
            return None
        for agent in self.live:
            self.ends[agent] = "interrupted"
        return self._close(t)

    def snapshot(self, t: int) -> EpisodeLog:
        """The current episode as if abandoned now, without closing it: for overlays and sidecar files."""
        ends: dict[AgentID, End] = {**self.ends, **dict.fromkeys(self.live, "interrupted")}
        return self._make(t, ends)

    def state(self) -> dict[str, Any]:
        """The running episode as plain values, from which `load` goes on; only the number where none is running."""
        if not self.open:
            return {"episode": self._episode, "open": False}
        state = {name: getattr(self, name) for name in _FIGURES}
        # Each a copy, down to the numbers: the episode goes on.
        return copy.deepcopy(
            {
                "episode": self._episode,
                "open": True,
                "elapsed": time.monotonic() - self._started,
                "live": list(self.live),
                **{name.removeprefix("_"): value for name, value in state.items()},
            }
        )

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on with the episode that `state` describes."""
        self._episode, self.open = state["episode"], state["open"]
        if self.open:
            self._started = time.monotonic() - state["elapsed"]
            self.live = dict.fromkeys(state["live"])
            for name in _FIGURES:
                setattr(self, name, copy.deepcopy(state[name.removeprefix("_")]))

    def agrees(self, state: Mapping[str, Any]) -> bool:
        """Whether this episode has come to what `state` says, apart from the time it took and from notes."""
        # As text: NaN is no other NaN's equal, and the state may have been JSON.
        ours, theirs = (
            json.dumps(
                {key: value for key, value in one.items() if key not in ("elapsed", "notes", "costed")}
            )
            for one in (self.state(), state)
        )
        return ours == theirs

    def _join(self, agent: AgentID, step: int) -> None:
        self.live[agent] = None
        self._joined[agent] = step
        self.returns[agent] = self.costs[agent] = 0.0
        self._lengths[agent] = 0
        self._first_violation[agent] = None

    def _read_info(self, agent: AgentID, info: Mapping[str, Any]) -> None:
        for key, value in info.items():
            if key == "cost":
                cost = self._number(agent, key, value)
                if not 0.0 <= cost < math.inf:
                    raise EnvError(
                        f"{self.env_name}: infos[{agent!r}]['cost'] must be finite and >= 0, got {cost}."
                    )
                self.costed = True
                self.costs[agent] += cost
                if cost > 0 and self._first_violation[agent] is None:
                    self._first_violation[agent] = self.length
            elif isinstance(key, str) and key.startswith(METRIC_PREFIXES):
                self._metrics.setdefault(agent, {}).setdefault(metric_name(key), []).append(
                    self._number(agent, key, value)
                )

    def _number(self, agent: AgentID, key: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise EnvError(
                f"{self.env_name}: infos[{agent!r}][{key!r}] must be a number, got {value!r}."
            ) from error

    def _close(self, t: int) -> EpisodeLog:
        self.open = False
        return self._make(t, self.ends)

    def _make(self, t: int, ends: Mapping[AgentID, End]) -> EpisodeLog:
        agent_metrics = {agent: reduce_metrics(rows) for agent, rows in self._metrics.items()}
        by_name: defaultdict[str, list[float]] = defaultdict(list)
        for metrics in agent_metrics.values():
            for name, value in metrics.items():
                by_name[name].append(value)
        return EpisodeLog(
            env_name=self.env_name,
            env_index=self.env_index,
            episode=self._episode,
            split=self.split,
            seed=self.seed,
            t_start=self.t_start,
            t_end=t,
            update=self.update,
            wall_time=time.monotonic() - self._started,
            length=self.length,
            capped="capped" in ends.values(),
            returns=dict(self.returns),
            costs=dict(self.costs),
            lengths=dict(self._lengths),
            ends={agent: ends[agent] for agent in self.returns},
            first_violation=dict(self._first_violation),
            joined=dict(self._joined),
            metrics={name: math.fsum(values) / len(values) for name, values in by_name.items()},
            agent_metrics=agent_metrics,
            **{key: dict(values) for key, values in self._notes.items()},
        )


def add_note(notes: dict[str, dict[AgentID, Any]], key: str, agent: AgentID, value: float | None) -> None:
    """Take a note into those of an episode: counts add up, of all else the last one stays."""
    values = notes.setdefault(key, {})
    values[agent] = values.get(agent, 0) + value if key in _COUNTS else value
