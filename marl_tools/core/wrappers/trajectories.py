"""`TrajectoryRecorder`: saves what every agent saw, did and got, in segments of random length."""

from __future__ import annotations

import atexit
import copy
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_tools.core.checks import at_least, one_of
from marl_tools.core.errors import ConfigError
from marl_tools.core.npz import MAX_BYTES
from marl_tools.core.segment_files import SegmentWriter
from marl_tools.core.segments import LateSegment, Segment
from marl_tools.core.team_tracks import TeamTracks
from marl_tools.core.types import AgentID, EpisodeLog
from marl_tools.core.wrappers.base import ParallelWrapper, env_layers, env_title
from marl_tools.core.wrappers.recorder import EpisodeRecorder


@dataclass(frozen=True, slots=True)
class AgentStep:
    """Where an agent is: ``t`` steps into the episode, what it sees, what it played last (None: nothing yet) and got for it."""

    obs: Any
    prev_action: Any
    reward: float
    t: int
    terminated: bool
    truncated: bool


class TrajectoryRecorder(ParallelWrapper):
    """Save every transition to ``<save_to>/<env>/<writer>-<counter>.npz``; changes nothing that it passes on.

    Put it outside the `EpisodeRecorder`, whose env name and episode numbers go into the files, and inside the video; where
    there is no recorder, one is put in. ``docs/trajectories.md`` describes the files, `read_segment` reads them.

    Args:
        env: any parallel env whose spaces have a fixed size.
        save_to: folder for the files; any number of recorders and processes may share one.
        segment: least and greatest length of a segment in env steps. Each length is drawn between the two, both included;
            the end of the episode ends a segment as well. A cut segment ends with the observation that the next begins with.
        format: "npz" or "npz-compressed".
        writer: begins the files' names; a later recorder of this name numbers on. By default a name of its own.
        rng: draws the lengths; by default a fresh generator.

    Files are written in the background, by at most 64 MiB behind. A fault of the disk is raised by the next call, before it
    does anything, and no finished segment is given up: it is written as soon as that is possible.

    Raises:
        ConfigError: settings that cannot work: "traj" among them, an AMAGO pickle, and segments above 1 GiB.
        EnvError: from `reset` and `step`: the env gives a live agent no reward or observation, or one of another shape
            than its space, or takes a step in which a live agent plays nothing.
        OSError: from every method: the disk is full, say.
    """

    def __init__(
        self,
        env: Any,
        save_to: str | os.PathLike[str],
        segment: tuple[int, int] = (100, 200),
        format: str = "npz",
        *,
        writer: str | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        if format == "traj":
            raise ConfigError(
                "format='traj' is a pickle, which runs the code that it holds when it is loaded: use 'npz' or 'npz-compressed'"
            )
        one_of("npz", "npz-compressed")("format", format)
        low, high = check_segment("segment", segment)
        recorder = next((layer for layer in env_layers(env) if isinstance(layer, EpisodeRecorder)), None)
        if recorder is None:
            env = recorder = EpisodeRecorder(env)
        super().__init__(env)
        self._recorder, self._builder = recorder, recorder.builder
        self._low, self._high = low, high
        self._rng = rng or np.random.default_rng()
        self._writer = SegmentWriter(save_to, writer, compress=format == "npz-compressed")
        self._team = TeamTracks(recorder, high)
        most = self._team.step_bytes * (high + 1)
        if most > MAX_BYTES:
            raise ConfigError(
                f"segment=({low}, {high}): so many steps of {env_title(env)} take up to {most / 2**30:.1f} GiB; "
                f"at most {max(1, MAX_BYTES // self._team.step_bytes - 1)} fit into a file"
            )
        # Whom the last `step` or `reset` concerned, the actions, and the five dicts that came back.
        self._latest: tuple[Any, ...] = ((), {}, {}, {}, {}, {}, {})
        self._t = self._start = self._segment = self._frame = 0
        self._length: int | None = None
        _recorders.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_start": self._t}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _recorders.add(self)

    @property
    def on_episode(self) -> Callable[[EpisodeLog], None] | None:
        """The recorder's: called with each finished log."""
        return self._recorder.on_episode

    @on_episode.setter
    def on_episode(self, call: Callable[[EpisodeLog], None] | None) -> None:
        self._recorder.on_episode = call

    @property
    def segments_saved(self) -> int:
        """Files that this recorder has written."""
        return self._writer.saved

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env; an episode that was still open is saved as interrupted."""
        self._writer.check()
        _recorders.add(self)
        self._interrupt()
        observations, infos = self.env.reset(seed=seed, options=options)
        self._team.begin(0, observations, infos)
        self._latest = (tuple(self._team.live), {}, observations, {}, {}, {}, {})
        self._t = self._start = self._segment = 0
        self._begin_segment()
        return observations, infos

    def step(self, actions: dict[AgentID, Any]) -> Any:
        """Step the env. If it raises, Ctrl-C included, what was recorded is saved first."""
        self._writer.check()
        playing = self._builder.open
        try:
            if playing:
                self._team.act(actions)
            result = self.env.step(actions)
            if playing:
                self._record(actions, result)
        except BaseException as error:
            self._save_before(error)
            raise
        return result

    def current(self) -> dict[AgentID, AgentStep]:
        """Where everyone is who was there in the last step (or is, after a reset); copies."""
        agents, actions, observations, rewards, terminations, truncations, _ = self._latest
        return {
            agent: AgentStep(
                obs=copy.deepcopy(observations.get(agent)),
                prev_action=copy.deepcopy(actions.get(agent)),
                reward=float(rewards.get(agent, 0.0)),
                t=self._t,
                terminated=bool(terminations.get(agent, False)),
                truncated=bool(truncations.get(agent, False)),
            )
            for agent in agents
        }

    def cut(self) -> None:
        """End the open segment here; the next one begins with the observation that this one ends with."""
        self._write(final=False)
        self._begin_segment()

    def flush(self) -> None:
        """Cut the open segment, and wait until everything is on disk.

        Raises:
            OSError: something could not be written. Nothing is given up: call again once the fault is mended.
        """
        self.cut()
        self._writer.flush()

    def sync(self) -> None:
        """Wait until every finished segment is on disk; the open one goes on.

        Raises:
            OSError: as `flush`.
        """
        self._writer.flush()

    def close(self) -> None:
        """Save what is open as interrupted, wait until everything is on disk, and close the env."""
        try:
            self._interrupt()
            self._writer.flush()
        finally:
            # Whoever could not save has been told, and need not be at exit again.
            _recorders.discard(self)
            self.env.close()

    def __del__(self) -> None:
        # A refused constructor has nothing to save, and at interpreter exit `_save_all` was called before.
        if "_latest" in self.__dict__ and not sys.is_finalizing():
            with suppress(Exception):
                self.flush()

    def _record(self, actions: Mapping[AgentID, Any], result: Any) -> None:
        team, length = self._team, self._builder.length
        if length == self._t + 1 and team.live:
            concerned = team.record(actions, result)
            self._t = length
            self._latest = (concerned, actions, *result)
        else:
            # An exception kept a step or a reset from us, and no transition can be made across it.
            self.cut()
            team.begin(length, result[0], result[4])
            self._t = self._start = length
            self._latest = (tuple(team.live), {}, *result)
        if not self._team.live:
            self._write(final=True)
        elif (steps := self._t - self._start) >= self._low and steps >= self._drawn():
            self.cut()

    def _interrupt(self) -> None:
        if self._team.live:
            self._team.interrupt()
            self._write(final=True)

    def _write(self, *, final: bool) -> None:
        """Hand the open segment over, unless nothing happened in it, and begin the next."""
        taken, start = self._team.take(), self._start
        self._start = self._t
        if taken is None:
            return
        agents, nbytes = taken
        described = {
            "env": self._recorder.env_name,
            "env_index": self._builder.env_index,
            "split": self._builder.split,
            "seed": None if (seed := self._builder.seed) is None else int(seed),
            "episode": self._builder.episode,
            "segment": self._segment,
            "t_start": start,
            "frame": self._frame,
            "final": final,
        }
        self._segment += 1
        self._writer.put(LateSegment(lambda: Segment(**described, agents=agents()), nbytes))

    def _begin_segment(self) -> None:
        self._frame, self._length = self._recorder.clock.frames, None

    def _drawn(self) -> int:
        """The length of this segment. Most episodes of many envs end before it has to be known."""
        if self._length is None:
            self._length = int(self._rng.integers(self._low, self._high, endpoint=True))
        return self._length

    def _save_before(self, error: BaseException) -> None:
        try:
            self.flush()
        except OSError as fault:
            error.add_note(str(fault))


def check_segment(key: str, value: Any) -> tuple[int, int]:
    """Least and greatest length of a segment.

    Raises:
        ConfigError: no pair of whole numbers from 1 on, the second at least the first.
    """
    try:
        low, high = value
    except (TypeError, ValueError):
        raise ConfigError(f"{key}={value!r}: must be two whole numbers, such as (100, 200)") from None
    return at_least(1)(f"the first of {key}", low), at_least(low)(f"the second of {key}", high)


_recorders: weakref.WeakSet[TrajectoryRecorder] = weakref.WeakSet()
# In a forked child, what is open here belongs to the parent.
os.register_at_fork(after_in_child=_recorders.clear)


@atexit.register
def _save_all() -> None:
    with ExitStack() as stack:
        for recorder in list(_recorders):
            stack.callback(recorder.flush)
