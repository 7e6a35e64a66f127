"""The default executor: every run in a process of its own, which starts quickly because it is forked from one that has all imported."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any

from marl_tools.bench.executors import Event, Finished, Retrying, Started, another, lost
from marl_tools.bench.jobs import Job, JobResult, frames_of, run_job
from marl_tools.core.checks import at_least
from marl_tools.experiment.stopping import terminate_like_ctrl_c
from marl_tools.vector.process import single_threaded, without_ctrl_c, without_main

_PRELOADED = ["marl_tools.bench.preload"]
_STDERR = 2


class LocalExecutor:
    """Runs on this machine, ``jobs`` of them side by side, one after the other by default.

    A run cannot take others with it: one that is killed, by a fault of native code or for want of memory, fails alone.
    Ctrl-C reaches this process only, which then tells its runs to save their state; a second one kills them.

    Args:
        jobs: how many runs at a time.
        retries: further attempts at a run whose process was lost.
    """

    def __init__(self, *, jobs: int = 1, retries: int = 2) -> None:
        self.jobs, self.retries = at_least(1)("jobs", jobs), at_least(0)("retries", retries)
        self._context = multiprocessing.get_context("forkserver")

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        """See `Executor`."""
        waiting = deque((job, 1) for job in jobs)
        running: list[_RunProcess] = []
        leaving: list[_RunProcess] = []
        spare: _RunProcess | None = None
        try:
            with terminate_like_ctrl_c():
                self._start_server()
                while waiting or running:
                    while waiting and len(running) < self.jobs:
                        job, attempt = waiting.popleft()
                        process, spare = spare or _RunProcess(self._context), None
                        running.append(process)
                        process.begin(job, attempt)
                        on_event(Started(id=job.id, attempt=attempt, where=f"process {process.pid}"))
                    if waiting:
                        # While the others run: the next has to wait for nothing then.
                        spare = spare or _RunProcess(self._context)
                    while len(leaving) > self.jobs:
                        leaving.pop(0).kill()
                    for process in _ended(running):
                        running.remove(process)
                        leaving.append(process)
                        result = process.result()
                        if another(result, process.attempt, self.retries):
                            on_event(Retrying(result=result, attempt=process.attempt))
                            # At the end: what killed it, as a want of memory, may have passed by then.
                            waiting.append((process.job, process.attempt + 1))
                        else:
                            on_event(Finished(result=result, attempts=process.attempt))
        except KeyboardInterrupt:
            self._stop(running, on_event)
            raise
        finally:
            for process in (*running, *leaving, *([spare] if spare else [])):
                process.kill()

    def _start_server(self) -> None:
        self._context.set_forkserver_preload(_PRELOADED)
        # Each run has a core to itself, and its results must not depend on how many there are.
        with without_main(unless=False), single_threaded():
            forkserver.ensure_running()

    @staticmethod
    def _stop(running: list[_RunProcess], on_event: Callable[[Event], None]) -> None:
        """Let all save their state, at the same time."""
        with terminate_like_ctrl_c():
            for process in running:
                process.stop()
            while running:
                for process in _ended(running):
                    running.remove(process)
                    on_event(Finished(result=process.result(), attempts=process.attempt))


class _RunProcess:
    """One attempt at a job, as its parent sees it."""

    job: Job
    attempt: int

    def __init__(self, context: Any) -> None:
        self._stopped = False
        self._connection, theirs = context.Pipe()
        try:
            self._process = context.Process(target=_serve, args=(theirs,))
            with without_main(unless=False), without_ctrl_c():
                self._process.start()
        finally:
            theirs.close()
        self.pid: int = self._process.pid

    def begin(self, job: Job, attempt: int) -> None:
        """Hand it its job; that it is gone already is found when it is waited for."""
        self.job, self.attempt = job, attempt
        self._started = time.perf_counter()
        with suppress(OSError):
            self._connection.send((dict(job.config), job.folder, job.trusted))

    @property
    def waited_for(self) -> list[Any]:
        """What becomes ready when the process has answered or is gone."""
        return [self._connection, self._process.sentinel]

    def result(self) -> JobResult:
        """Its answer, or what became of it."""
        with suppress(EOFError, OSError):
            if self._connection.poll():
                return self._connection.recv()
        self._process.join()
        seconds = time.perf_counter() - self._started
        if self._stopped:
            frames = frames_of(self.job.folder)
            return JobResult(id=self.job.id, state="interrupted", frames=frames, seconds=seconds)
        return lost(self.job, self._last_words(), seconds)

    def stop(self) -> None:
        """Tell it to save its state and end."""
        self._stopped = True
        # Not to a number that the system may have given to another process by now.
        if self._process.exitcode is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it now, if it has not ended by itself."""
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join()
        self._connection.close()

    def _last_words(self) -> str:
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"its process {self.pid} ended with exit code {code} before the run did"
        hint = "; perhaps the machine ran out of memory" if -code == signal.SIGKILL else ""
        return f"its process {self.pid} was killed by signal {-code} ({signal.strsignal(-code)}){hint}"


def _ended(running: Sequence[_RunProcess]) -> list[_RunProcess]:
    """Wait until some have ended, and return these."""
    ready = wait([one for process in running for one in process.waited_for])
    return [process for process in running if any(one in ready for one in process.waited_for)]


def _serve(connection: Connection) -> None:
    """What happens in the process of a run."""
    # Ctrl-C on the terminal is for the parent, which tells by SIGTERM to whom it matters.
    os.setsid()
    faulthandler.enable(_STDERR)
    with suppress(EOFError, OSError):
        config, folder, trusted = connection.recv()
        threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
        connection.send(run_job(config, folder, trusted))
    # Not by way of Python's end: a thread that an env left behind would be waited for.
    os._exit(0)


def _end_with_parent(connection: Connection) -> None:
    """Nothing is ever sent to here: what is read is that the parent is gone."""
    with suppress(OSError):
        connection.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)
