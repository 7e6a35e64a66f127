"""`WorkerProcess`: one worker as its parent sees it, with an end to every wait."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from types import ModuleType
from typing import Any

from marl_tools.core.errors import WorkerError
from marl_tools.vector.serving import EMPTY, NOTHING, Assignment, Report, serve

_REAPING_SECONDS = 5.0
_STARTING_SECONDS = 120.0
"""At least; what an env imports may be large."""
_SLICE_SECONDS = 1.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_UNGUARDED = (
    "; its factory is defined in the main script, which a worker runs again: put what the script does under "
    "`if __name__ == '__main__':`, or the factory into a module"
)


class WorkerProcess:
    """A process that serves a share of the copies; the first answer, to "start", comes when its envs are built.

    Args:
        context: how to start it.
        assignment: its share.
        env_name: for what goes wrong.
        timeout: seconds that an answer may take.
    """

    def __init__(self, context: Any, assignment: Assignment, *, env_name: str, timeout: float) -> None:
        self.copies = assignment.copies
        self.rows = slice(self.copies.start, self.copies.stop)
        self._env_name, self._timeout = env_name, timeout
        self._runs_main = b"__main__" in assignment.make_env
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, assignment), name=f"marl-tools-copies-{self.copies.start}"
        )
        try:
            with without_main(unless=self._runs_main), single_threaded():
                if context.get_start_method() == "forkserver":
                    # Not below: others of its children must hear Ctrl-C.
                    forkserver.ensure_running()
                with without_ctrl_c():
                    self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self._poller = select.poll()
        self._poller.register(self._connection.fileno(), select.POLLIN)
        self._poller.register(self._process.sentinel, select.POLLIN)
        self.pid: int = self._process.pid
        self.waiting = True
        """Whether an answer is due."""
        self._asked = time.monotonic()
        self._end: WorkerError | None = None

    @property
    def title(self) -> str:
        """For messages: process and copies."""
        first, last = self.copies[0], self.copies[-1]
        which = f"copy {first}" if first == last else f"copies {first} to {last}"
        return f"worker process {self.pid} with {which} of {self._env_name}"

    def send(self, request: bytes) -> None:
        """Ask for something; that the worker is dead is found when its answer is awaited."""
        if self._end:
            return
        self.waiting, self._asked = True, time.monotonic()
        # A closed connection, or one whose other end is gone.
        with suppress(OSError):
            self._connection.send_bytes(request)

    def receive(self, to: str = "step", *, deadline: float | None = None) -> Report:
        """Wait for the answer to a request, at most until ``deadline``; by default ``timeout`` seconds from when it was made.

        Answers to earlier requests, for which somebody was interrupted in waiting, are passed over.

        Raises:
            WorkerError: the worker is dead, or is hung and was killed; asking again raises it again.

        An exception of its env is part of the report.
        """
        if self._end:
            raise self._end
        if deadline is None:
            deadline = self._asked + max(self._timeout, _STARTING_SECONDS if to == "start" else 0.0)
        while True:
            report = self._next(to, deadline)
            if report.to == to:
                self.waiting = False
                return report

    def _next(self, to: str, deadline: float) -> Report:
        ready = self._poll(deadline)
        if not ready:
            waited = time.monotonic() - self._asked
            raise self._ended(
                f"gave no answer for {waited:.1f} s and was killed: look for what its env waits for, or raise the timeout"
            )
        try:
            # A worker that ends leaves the answer that it gave before.
            if self._connection.fileno() in ready or self._connection.poll():
                answer = self._connection.recv_bytes()
                return EMPTY if answer == NOTHING else pickle.loads(answer)
        except (EOFError, OSError):
            pass
        if to == "start":
            raise self._ended(self._last_words() + (_UNGUARDED if self._runs_main else ""))
        raise self._ended(f"{self._last_words()}. on_worker_death='restart' goes on with fresh copies")

    def _poll(self, deadline: float) -> dict[int, int]:
        """What is there to read, or nothing at the deadline."""
        patience = max(deadline - time.monotonic(), min(self._timeout, _SLICE_SECONDS))
        while patience > 0:
            if ready := self._poller.poll(min(patience, _SLICE_SECONDS) * 1000):
                return dict(ready)
            # Not by the clock: while all of us were stopped, as by Ctrl-Z, the worker could do nothing either.
            patience -= _SLICE_SECONDS
        return {}

    def kill(self) -> None:
        """End it now, if it still runs, and let go of it."""
        self.waiting = False
        if not self._connection.closed:
            self._connection.close()
            self._process.kill()
            self._process.join(_REAPING_SECONDS)

    def join(self, timeout: float) -> None:
        """Let it end by itself for ``timeout`` seconds, then `kill` it."""
        self._process.join(max(0.0, timeout))
        self.kill()

    def _last_words(self) -> str:
        self._process.join(_REAPING_SECONDS)
        code = self._process.exitcode
        if code is None:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}; what it printed says more"
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"

    def _ended(self, how: str) -> WorkerError:
        self.kill()
        self._end = WorkerError(f"{self.title} {how}")
        return self._end


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits: a process that starts meanwhile inherits this until it has its own way of dealing with it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main(*, unless: bool) -> Iterator[None]:
    """A process that starts meanwhile does not run the main script again, which would cost seconds and needs a guard."""
    main = sys.modules["__main__"]
    if not unless:
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def single_threaded() -> Iterator[None]:
    """A process that starts meanwhile computes in one thread, where nobody has said otherwise: each has a core to itself."""
    unset = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)
