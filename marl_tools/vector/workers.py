"""Many copies of one env in worker processes, which share arrays with this one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.checks import at_least, one_of
from marl_tools.core.copies import slices
from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.seeding import episode_seed
from marl_tools.core.types import EpisodeLog, GroupStep, VectorStep
from marl_tools.core.wrappers.direct import steps_directly
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.vector.buffers import GroupBuffer
from marl_tools.vector.crew import Crew, OnWorkerDeath
from marl_tools.vector.memory import SharedArrays
from marl_tools.vector.pickling import pickle_factory
from marl_tools.vector.serial import env_groups
from marl_tools.vector.serving import STEP, Report, request
from marl_tools.vector.tally import Tally

StartMethod = Literal["spawn", "forkserver"]

_CLOSING_SECONDS = 10.0
"""For the step that is on and the envs to close, and again for the processes to end; neither takes long as a rule."""


@dataclass(frozen=True)
class _Part:
    """Copies that are stepped together: their rows, the positions of their workers, and their arrays."""

    rows: slice
    workers: range
    buffers: dict[str, GroupBuffer]


class WorkerVectorEnv:
    """The `VectorEnv` that plays the episodes of `SerialVectorEnv`, to the bit, on several cores.

    Each worker runs a `SerialVectorEnv` over its share of the copies. Observations, rewards, costs, masks, flags and actions
    lie in shared memory; a byte a step goes to and fro, and pickles only for finished episodes, notes and state keys.
    As a `SplitVectorEnv` it has one part, or two that take turns in a pipeline.

    Args:
        make_env: builds one copy, an `EpisodeRecorder` outermost; called with ``env_index``. It must be picklable.
        num_envs: copies in all workers together.
        workers: how many processes.
        start_method: "spawn", or "forkserver", which does not see changes of the environment variables after its first use.
        timeout: seconds that a reset or a step may take, for all copies of a worker together.
        on_worker_death: "raise", or "restart": log the worker's open episodes as interrupted and go on with fresh ones.
        infos: hand over the infos too, pickled at every step; without it they are empty.
        pipeline: make each half of the workers a part.

    Raises:
        ConfigError: at construction, a factory that cannot be pickled, more workers than copies, or what the env refuses.
        WorkerError: a worker died, or hung and was killed.

    What an env raises is raised here, of the same type where that can be pickled, else as `EnvError`; notes name the copy
    and hold the worker's traceback.
    """

    def __init__(
        self,
        make_env: Callable[..., EpisodeRecorder],
        num_envs: int,
        workers: int,
        *,
        start_method: StartMethod = "spawn",
        timeout: float = 120.0,
        on_worker_death: OnWorkerDeath = "raise",
        infos: bool = False,
        pipeline: bool = False,
    ) -> None:
        self.num_envs = at_least(1)("num_envs", num_envs)
        if at_least(1)("workers", workers) > num_envs:
            raise ConfigError(f"workers={workers}, but num_envs={num_envs}: a worker needs a copy of its own")
        if not timeout > 0:
            raise ConfigError(f"timeout={timeout}: must be a positive number of seconds")
        context: Any = multiprocessing.get_context(
            one_of("spawn", "forkserver")("start_method", start_method)
        )
        on_death: Any = one_of("raise", "restart")("on_worker_death", on_worker_death)
        factory = pickle_factory(make_env)
        probe = make_env(env_index=0)
        try:
            self.groups, self.env_name = env_groups(probe), probe.env_name
            self.direct = steps_directly(probe)
            tally = Tally(self.env_name, self.groups, num_envs, split=probe.builder.split)
        finally:
            probe.close()
        self.episodes_started = 0
        self._memory = SharedArrays(self.groups, num_envs, context)
        shares = slices(num_envs, workers)
        half = -(-workers // 2) if pipeline else workers
        self._whole = self._part(shares, range(workers))
        self._parts = [self._part(shares, part) for part in (range(half), range(half, workers)) if part]
        self._crew = Crew(
            factory,
            shares,
            context=context,
            memory=self._memory,
            tally=tally,
            timeout=timeout,
            on_death=on_death,
            infos=infos,
        )

    @property
    def frames(self) -> int:
        """Env steps so far, all copies together."""
        # A copy's clock counts num_envs a step, so their mean is the sum of all steps.
        return int(self._crew.clock.sum()) // self.num_envs

    @property
    def parts(self) -> tuple[slice, ...]:
        """The copies of each part."""
        return tuple(part.rows for part in self._parts)

    def resume(self, *, frames: int, episodes_started: int) -> None:
        """Count on from an earlier run's figures; call it before `reset`."""
        self.episodes_started = episodes_started
        self._crew.clock[:], self._crew.tally.numbers[:] = frames, episodes_started
        self._crew.ask("resume", frames=frames, episodes_started=episodes_started)
        self._crew.collect(self._whole.workers, "resume")

    def reset(self, seed: int) -> VectorStep:
        """Start every copy afresh; what was running is logged as interrupted. Episodes are numbered on."""
        if not self._crew.workers:
            raise EnvError(f"{self.env_name} was closed and cannot be reset: build the vector env anew")
        crew = self._crew
        crew.seed = seed
        crew.ask("reset", seed=seed)
        reports = crew.collect(self._whole.workers, "reset")
        groups = {name: buffer.result() for name, buffer in self._whole.buffers.items()}
        for worker, report in zip(crew.workers, reports, strict=True):
            self._begin(worker.copies, report.value, groups, first=0)
        return self._step_of(self._whole, groups, reports)

    def state(self) -> dict[str, Any]:
        """See `VectorEnv.state`; it is that of a `SerialVectorEnv`, which can be restored from it as well."""
        crew, copies = self._crew, []
        crew.ask("state")
        for worker, report in zip(crew.workers, crew.collect(self._whole.workers, "state"), strict=True):
            if report.to == "reset":
                # It has just taken the place of one that died since the last step.
                groups = {name: buffer.result() for name, buffer in self._whole.buffers.items()}
                self._begin(worker.copies, report.value, groups, first=0)
                worker.send(request("state"))
                report = worker.receive("state")
            copies += report.value["copies"]
        return {"frames": self.frames, "episodes_started": self.episodes_started, "copies": copies}

    def restore(self, seed: int, state: Mapping[str, Any]) -> VectorStep:
        """See `VectorEnv.restore`; every worker plays its own running episodes again."""
        crew, told = self._crew, state["copies"]
        crew.seed = seed
        crew.tally.numbers[:] = [of_copy["builder"]["episode"] for of_copy in told]
        for worker in crew.workers:
            worker.send(request("restore", seed=seed, state={**state, "copies": told[worker.rows]}))
        reports = crew.collect(self._whole.workers, "restore")
        crew.clock[:], self.episodes_started = state["frames"], state["episodes_started"]
        groups = {name: buffer.result() for name, buffer in self._whole.buffers.items()}
        lost = np.concatenate([report.value for report in reports])
        for copy, of_copy in enumerate(told):
            builder = of_copy["builder"]
            crew.tally.load(copy, builder, groups)
            if lost[copy]:
                self._begin([copy], [builder["episode"] + (builder["length"] > 0)], groups, first=0)
        return self._step_of(self._whole, groups, reports, lost if lost.any() else None)

    def step(
        self, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None = None
    ) -> VectorStep:
        """Play one step in every copy; see `VectorEnv.step`."""
        self._send(self._whole, actions, notes)
        return self._receive(self._whole)

    def send(
        self,
        part: int,
        actions: Mapping[str, NDArray[Any]],
        notes: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin a step of one part; see `SplitVectorEnv.send`."""
        self._send(self._parts[part], actions, notes)

    def receive(self, part: int) -> VectorStep:
        """The result of the step begun last; see `SplitVectorEnv.receive`."""
        return self._receive(self._parts[part])

    def close(self) -> list[EpisodeLog]:
        """Close every copy and end the workers, by force after some seconds; returns the episodes not yet handed over."""
        failures = self._crew.close(_CLOSING_SECONDS)
        if failures:
            raise failures[0]
        return self._crew.take_episodes()

    def _part(self, shares: Sequence[range], workers: range) -> _Part:
        rows = slice(shares[workers.start].start, shares[workers.stop - 1].stop)
        buffers = {group.name: GroupBuffer(group, self._memory.of(group.name, rows)) for group in self.groups}
        return _Part(rows, workers, buffers)

    def _send(
        self, part: _Part, actions: Mapping[str, NDArray[Any]], notes: Sequence[Mapping[str, Any]] | None
    ) -> None:
        if self._crew.seed is None:
            raise EnvError(f"{self.env_name} is not running: call reset(seed) before step")
        workers = [self._crew.workers[index] for index in part.workers]
        if any(worker.waiting for worker in workers):
            raise EnvError(f"{self.env_name} was not done with the step before: call reset(seed) to go on")
        for name, buffer in part.buffers.items():
            buffer.arrays["actions"][...] = actions[name]
        noted = notes if notes is not None and any(notes) else None
        if noted:
            self._crew.tally.note(part.rows.start, noted)
        for worker in workers:
            if noted:
                own = noted[worker.copies.start - part.rows.start :][: len(worker.copies)]
                worker.send(request("step", notes=own))
            else:
                worker.send(STEP)

    def _receive(self, part: _Part) -> VectorStep:
        self._crew.clock[part.rows] += self.num_envs
        reports = self._crew.collect(part.workers)
        lost = self._lose(part, reports)
        groups = {name: buffer.result() for name, buffer in part.buffers.items()}
        self._crew.tally.step(part.rows, groups)
        first = part.rows.start
        for index, report in zip(part.workers, reports, strict=True):
            for episode in report.episodes:
                self._begin([episode.env_index], [episode.episode + 1], groups, first)
            if report.value:
                self._begin(self._crew.workers[index].copies, report.value, groups, first)
        return self._step_of(part, groups, reports, lost)

    def _lose(self, part: _Part, reports: Sequence[Report]) -> NDArray[np.bool_] | None:
        """Cut off, in the arrays, whoever was about to act in a copy that started afresh; returns which copies those are."""
        if not any(report.value for report in reports):
            return None
        lost = np.zeros(part.rows.stop - part.rows.start, bool)
        for index, report in zip(part.workers, reports, strict=True):
            if report.value:
                copies = self._crew.workers[index].rows
                lost[copies.start - part.rows.start : copies.stop - part.rows.start] = True
                for name in part.buffers:
                    arrays = self._memory.of(name, copies)
                    arrays["truncated"][...] = self._crew.tally.active(name, copies)
                    arrays["final_obs"][...] = arrays["obs"]
        return lost

    def _begin(
        self, copies: Iterable[int], numbers: Iterable[int], groups: Mapping[str, GroupStep], first: int
    ) -> None:
        """Note that episodes have begun; ``groups`` holds the rows of the copies from ``first`` on."""
        assert self._crew.seed is not None
        for copy, number in zip(copies, numbers, strict=True):
            self.episodes_started += 1
            seed = episode_seed(self._crew.seed, number * self.num_envs + copy)
            t = int(self._crew.clock[copy])
            self._crew.tally.start(copy, groups, copy - first, number=number, seed=seed, t=t)

    def _step_of(
        self,
        part: _Part,
        groups: dict[str, GroupStep],
        reports: Sequence[Report],
        lost: NDArray[np.bool_] | None = None,
    ) -> VectorStep:
        shares = [
            (report, len(self._crew.workers[i].copies))
            for i, report in zip(part.workers, reports, strict=True)
        ]
        keys = final_keys = None
        if reports[0].keys is not None:
            keys = [key for report in reports for key in report.keys or ()]
        if any(report.final_keys is not None for report in reports):
            final_keys = [key for report, count in shares for key in report.final_keys or [None] * count]
        return VectorStep(
            groups=groups,
            episodes=self._crew.take_episodes(),
            infos=[infos for report, count in shares for infos in report.infos or [{}] * count],
            final_infos=[last for report, count in shares for last in report.final_infos or [None] * count],
            keys=keys,
            final_keys=final_keys,
            lost=lost,
        )
