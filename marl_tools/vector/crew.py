"""`Crew`: the worker processes of a vector env, their deaths and replacements, and every episode that they play."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.util import Finalize
from typing import Any, Literal

import numpy as np

from marl_tools.core.errors import WorkerError
from marl_tools.core.logging import log, logging_settings
from marl_tools.core.types import EpisodeLog
from marl_tools.vector.memory import SharedArrays
from marl_tools.vector.process import WorkerProcess
from marl_tools.vector.serving import Assignment, Report, request
from marl_tools.vector.tally import Tally

OnWorkerDeath = Literal["raise", "restart"]


class Crew:
    """Workers that each hold a share of the copies.

    Args:
        make_env: the pickled factory.
        shares: the copies of each worker.
        context: how processes are started.
        memory: the arrays that they share.
        tally: the episodes that are running.
        timeout: seconds that an answer may take.
        on_death: "raise", or "restart".
        infos: whether workers hand over infos.

    ``clock`` (E,) counts, for each copy, the env steps of all copies; ``seed`` is that of the run, None while none is on.

    Raises:
        WorkerError: a worker died while it built its envs.

    What an env raises as it is built is raised too.
    """

    def __init__(
        self,
        make_env: bytes,
        shares: Sequence[range],
        *,
        context: Any,
        memory: SharedArrays,
        tally: Tally,
        timeout: float,
        on_death: OnWorkerDeath,
        infos: bool,
    ) -> None:
        self._make_env, self._context, self._memory, self.tally = make_env, context, memory, tally
        self._timeout, self._on_death, self._infos = timeout, on_death, infos
        self.clock = np.zeros(shares[-1].stop, np.int64)
        self.seed: int | None = None
        self.workers: list[WorkerProcess] = []
        self._finished: list[EpisodeLog] = []
        # When nobody holds this any more, or before multiprocessing, at exit, waits for its children, which would wait for us.
        Finalize(self, _kill, (self.workers,), exitpriority=0)
        try:
            self.workers += [self._start(share) for share in shares]
            for worker in self.workers:
                _require(worker, worker.receive("start"))
        except BaseException:
            self.kill()
            raise

    def ask(self, name: str, **arguments: Any) -> None:
        """Send every worker one request."""
        message = request(name, **arguments)
        for worker in self.workers:
            worker.send(message)

    def collect(self, indices: Sequence[int], to: str = "step") -> list[Report]:
        """The answers of some workers to a request; one that replaced a dead worker has answered to "reset" instead.

        Raises:
            WorkerError: a worker died, and nobody said that it may be replaced.

        What an env raised is raised here, once everybody has answered; the run is over then.
        """
        reports: dict[int, Report] = {}
        errors: list[Exception] = []
        deaths: dict[int, WorkerError] = {}
        for index in indices:
            worker = self.workers[index]
            try:
                reports[index] = report = worker.receive(to)
            except WorkerError as death:
                deaths[index] = death
                self._bury(worker)
                if self._on_death == "raise" or self.seed is None:
                    errors.append(death)
                continue
            self._absorb(report.episodes)
            if report.failure:
                errors.append(report.failure.error(worker.title))
        if errors:
            self.seed = None
            raise errors[0]
        for index, death in deaths.items():
            reports[index] = self._replace(index, death)
        return [reports[index] for index in indices]

    def _replace(self, index: int, death: WorkerError) -> Report:
        """Go on with fresh copies; returns what the new worker reports on their reset."""
        log(f"{death}; its copies start afresh", type="worker", priority="WARNING")
        assert self.seed is not None
        worker = self.workers[index] = self._start(self.workers[index].copies)
        try:
            _require(worker, worker.receive("start"))
            worker.send(request("reset", seed=self.seed))
            report = worker.receive("reset")
            _require(worker, report)
        except Exception as error:
            # A second death so soon would be followed by a third.
            self.seed = None
            error.add_note(f"right after it took the place of a dead one: {death}")
            raise
        return report

    def close(self, seconds: float) -> list[Exception]:
        """Close every copy and end the workers, those by force that take longer; returns what went wrong in the envs."""
        self.seed, failures = None, []
        deadline = time.monotonic() + seconds
        try:
            self.ask("close")
            for worker in self.workers:
                try:
                    report = worker.receive("close", deadline=deadline)
                except WorkerError as death:
                    log(str(death), type="worker", priority="WARNING")
                    self._bury(worker)
                    continue
                self._absorb(report.episodes)
                if report.failure:
                    failures.append(report.failure.error(worker.title))
            deadline = time.monotonic() + seconds
            for worker in self.workers:
                worker.join(deadline - time.monotonic())
        finally:
            self.kill()
        return failures

    def _absorb(self, episodes: Sequence[EpisodeLog]) -> None:
        for episode in episodes:
            # One of an earlier number was told before.
            if episode.episode >= self.tally.numbers[episode.env_index]:
                self._finished.append(episode)
                self.tally.close(episode.env_index)

    def _bury(self, worker: WorkerProcess) -> None:
        """Log the episodes that a dead worker was playing."""
        interrupted = [self.tally.interrupt(copy) for copy in worker.copies]
        self._finished += [episode for episode in interrupted if episode]

    def take_episodes(self) -> list[EpisodeLog]:
        """Episodes that ended and were not handed over yet."""
        episodes, self._finished = self._finished, []
        return episodes

    def kill(self) -> None:
        """End every worker now."""
        _kill(self.workers)

    def _start(self, copies: range) -> WorkerProcess:
        assignment = Assignment(
            make_env=self._make_env,
            copies=copies,
            total=len(self.clock),
            memory=self._memory,
            frames=int(self.clock[copies.start]),
            episodes=tuple(self.tally.numbers[copies.start : copies.stop].tolist()),
            infos=self._infos,
            logging=logging_settings(),
        )
        return WorkerProcess(self._context, assignment, env_name=self.tally.env_name, timeout=self._timeout)


def _require(worker: WorkerProcess, report: Report) -> None:
    if report.failure:
        raise report.failure.error(worker.title)


def _kill(workers: list[WorkerProcess]) -> None:
    while workers:
        workers.pop().kill()
