"""The executor that makes every run of a plan a task of a Ray cluster, and sends it elsewhere when its worker or node is lost."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_tools.bench.executors import Event, Finished, Retrying, Started, another, lost
from marl_tools.bench.jobs import Job, JobResult, frames_of
from marl_tools.bench.ray_job import Begun, Surroundings, attempt
from marl_tools.core.checks import at_least
from marl_tools.core.cluster import CancelledError, Cluster, Resources, WorkerLostError, connect
from marl_tools.core.errors import ConfigError, WorkerError
from marl_tools.experiment.stopping import terminate_like_ctrl_c

_LOOK_SECONDS = 5.0
_ITEM_SECONDS = 60.0
_SAVING_SECONDS = 60.0


class RayExecutor:
    """Runs on a cluster, as many at a time as it has room for.

    All nodes share the plan's folder, under one path: a run whose worker or node was lost goes on from its last checkpoint
    wherever there is room next. Ctrl-C lets running ones save their state, for at most a minute; a second one does not wait.

    Args:
        address: ``host:port`` of the head, or "auto"; None: ``RAY_ADDRESS``, or else a cluster of this machine alone, for as
            long as the plan takes.
        resources: what each run takes from its node.
        retries: further attempts at a run whose process was lost.
        cpus: of this machine, where the cluster is its own; by default all.
        patience: seconds after which to give up if no run is going on and none can begin.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        resources: Resources = Resources(),  # noqa: B008 - frozen
        retries: int = 2,
        cpus: int | None = None,
        patience: float = 600.0,
    ) -> None:
        self.address, self.resources, self.cpus = address, resources, cpus
        self.retries, self.patience = at_least(0)("retries", retries), patience

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        """See `Executor`.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigError: there is no such cluster, or one of its nodes does not see the plan's folder.
            WorkerError: no run was going on for ``patience`` seconds and the rest could not begin.
        """
        if not jobs:
            return
        jobs = [dataclasses.replace(job, folder=job.folder.absolute()) for job in jobs]
        with (
            terminate_like_ctrl_c(),
            _mark(jobs[0].folder.parent.parent) as mark,
            connect(self.address, cpus=self.cpus) as cluster,
        ):
            _Tasks(self, cluster, Surroundings.here(mark), on_event).carry_out(jobs)


@contextmanager
def _mark(folder: Path) -> Iterator[tuple[Path, str]]:
    """A file by which a node sees that the ``folder`` is this one, not just one that is called so; and its text."""
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / ".cluster", secrets.token_hex(16)
    path.write_text(text, "ascii")
    try:
        yield path, text
    finally:
        path.unlink(missing_ok=True)


@dataclasses.dataclass
class _Task:
    job: Job
    number: int
    stream: Any
    begun: Begun | None = None
    begun_at: float = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun_at if self.begun else 0.0


class _Tasks:
    """The attempts of one call that are running or wait for room."""

    def __init__(
        self,
        executor: RayExecutor,
        cluster: Cluster,
        surroundings: Surroundings,
        on_event: Callable[[Event], None],
    ) -> None:
        self._executor, self._cluster = executor, cluster
        self._surroundings, self._on_event = surroundings, on_event
        self._tasks: list[_Task] = []
        self._idle_since: float | None = None
        self._lost_before = ""

    def carry_out(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._submit(job, 1)
        try:
            while self._tasks:
                self._lost_before = ""
                for task in self._ready(_LOOK_SECONDS):
                    self._hear(task)
                self._check_that_something_runs()
                if self._lost_before:
                    time.sleep(_LOOK_SECONDS)
        except BaseException:
            self._stop()
            raise

    def _submit(self, job: Job, number: int) -> None:
        stream = self._cluster.stream(
            attempt, job, self._surroundings, resources=self._executor.resources, name=job.id
        )
        self._tasks.append(_Task(job, number, stream))

    def _ready(self, timeout: float) -> list[_Task]:
        streams = self._cluster.ready([task.stream for task in self._tasks], timeout=timeout)
        return [task for task in self._tasks if any(task.stream is stream for stream in streams)]

    def _hear(self, task: _Task) -> None:
        """Take in what a task has to say, or what has become of it."""
        try:
            item = self._cluster.item(task.stream, timeout=_ITEM_SECONDS)
        except (WorkerLostError, CancelledError, TimeoutError, StopIteration) as error:
            self._lose(task, str(error))
            return
        except ConfigError:
            # Not the run is to blame.
            self._tasks.remove(task)
            raise
        # Before or beside the run itself, such as a node where the package is not installed.
        except Exception as error:
            self._end(task, _failed(task, error))
            return
        if isinstance(item, Begun):
            task.begun, task.begun_at = item, time.perf_counter()
            self._on_event(Started(id=task.job.id, attempt=task.number, where=str(item)))
        elif item.state == "interrupted":
            self._lose(task, "its node told it to stop")
        else:
            self._end(task, item)

    def _lose(self, task: _Task, how: str) -> None:
        if task.begun:
            self._end(task, lost(task.job, f"{task.begun} was lost: {how}", task.seconds))
            return
        # No attempt at all; but the next may be lost at once, too.
        self._tasks.remove(task)
        self._submit(task.job, task.number)
        self._lost_before = f"; some were lost before they began: {how}"

    def _end(self, task: _Task, result: JobResult) -> None:
        self._tasks.remove(task)
        if another(result, task.number, self._executor.retries):
            self._on_event(Retrying(result=result, attempt=task.number))
            self._submit(task.job, task.number + 1)
        else:
            self._on_event(Finished(result=result, attempts=task.number))

    def _check_that_something_runs(self) -> None:
        """Ray itself waits for ever for a node that is big enough.

        Raises:
            WorkerError: nothing ran for so long, although no others hold what the runs wait for.
        """
        if not self._tasks or any(task.begun for task in self._tasks) or self._taken_by_others():
            self._idle_since = None
            return
        now = time.monotonic()
        self._idle_since = self._idle_since or now
        if now - self._idle_since < self._executor.patience:
            return
        nodes = self._cluster.nodes()
        alive = [f"{node.host} with {node.resources.get('CPU', 0):g} CPU" for node in nodes if node.alive]
        raise WorkerError(
            f"no run could begin for {self._executor.patience:g} s: {len(self._tasks)} wait for {self._executor.resources} "
            f"each, and {len(nodes) - len(alive)} of {len(nodes)} nodes are gone; there are {', '.join(alive) or 'none'}"
            f"{self._lost_before}. Add nodes or ask for less; the same call goes on with what is missing"
        )

    def _taken_by_others(self) -> bool:
        """Whether some node would be big enough, if only all of it were free."""
        wanted, free = self._executor.resources, self._cluster.free()
        possible = any(node.fits(wanted) for node in self._cluster.nodes())
        return possible and any(free.get(name, 0) < amount for name, amount in wanted.amounts().items())

    def _stop(self) -> None:
        """Let those that run save their state, and report them; the others will not begin."""
        give_up = time.monotonic() + _SAVING_SECONDS
        with terminate_like_ctrl_c():
            for task in self._tasks:
                self._cluster.cancel(task.stream)
            while self._tasks and time.monotonic() < give_up:
                for task in self._ready(1.0):
                    self._hear_last(task)

    def _hear_last(self, task: _Task) -> None:
        try:
            item = self._cluster.item(task.stream, timeout=_ITEM_SECONDS)
        # However it ended: its folder holds what it saved.
        except Exception:
            item = JobResult(
                id=task.job.id, state="interrupted", frames=frames_of(task.job.folder), seconds=task.seconds
            )
        if isinstance(item, Begun):
            task.begun, task.begun_at = item, time.perf_counter()
            return
        self._tasks.remove(task)
        if task.begun:
            self._on_event(Finished(result=item, attempts=task.number))


def _failed(task: _Task, error: Exception) -> JobResult:
    return JobResult(
        id=task.job.id, state="failed", seconds=task.seconds, error=f"{type(error).__name__}: {error}"[:2000]
    )
