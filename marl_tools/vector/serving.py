"""What runs in a worker process: a serial vector env over its share of the copies, and the answers to its parent."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from typing import Any, NamedTuple

import numpy as np

from marl_tools.core.errors import EnvError
from marl_tools.core.logging import LoggingSettings, configure_logging
from marl_tools.core.types import EpisodeLog, VectorStep
from marl_tools.vector.memory import SharedArrays
from marl_tools.vector.serial import SerialVectorEnv

STEP = b""
"""The request for a plain step; see `request` for others."""

NOTHING = b""
"""The answer when all there is to say lies in the shared arrays. Every other answer is a pickled `Report`."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A worker's share of the copies: indices ``copies`` of ``total``, built by the pickled ``make_env``.

    ``frames`` is the clock to start from and ``episodes`` the number of each copy's next episode.
    """

    make_env: bytes
    copies: range
    total: int
    memory: SharedArrays
    frames: int
    episodes: tuple[int, ...]
    infos: bool
    logging: LoggingSettings | None


class Failure(NamedTuple):
    """An exception on its way to the parent: itself, where it can be pickled, and as text."""

    pickled: bytes | None
    text: str
    notes: tuple[str, ...]
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        pickled = None
        # What is no Exception (an env that calls sys.exit) must not end the parent.
        if isinstance(error, Exception):
            with suppress(Exception):
                attempt = pickle.dumps(error)
                pickled = attempt if type(pickle.loads(attempt)) is type(error) else None
        text = f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        return cls(pickled, text, tuple(getattr(error, "__notes__", ())), trace)

    def error(self, where: str) -> Exception:
        """The exception again, or an EnvError in its place, with the worker's traceback as a note."""
        error: Exception | None = None
        if self.pickled is not None:
            with suppress(Exception):
                error = pickle.loads(self.pickled)
        if error is None:
            error = EnvError(self.text)
            for note in self.notes:
                error.add_note(note)
        error.add_note(f"raised in {where}:\n{self.trace}")
        return error


class Report(NamedTuple):
    """What one answer holds beside the arrays; lists are per copy of this worker.

    ``to`` is the name of the request. Answers to "reset" and "close" repeat the episodes of the step before: a parent that
    was interrupted need not know whether it has read that one's answer.
    """

    to: str = "step"
    episodes: Sequence[EpisodeLog] = ()
    keys: list[bytes] | None = None
    final_keys: list[bytes | None] | None = None
    infos: list[dict[str, Any]] | None = None
    final_infos: list[dict[str, Any] | None] | None = None
    value: Any = None
    failure: Failure | None = None


EMPTY = Report()


def serve(connection: Connection, assignment: Assignment) -> None:
    """The life of a worker: build the envs, answer requests, end with the parent."""
    # Ctrl-C and a batch system's SIGTERM reach the whole process group: the parent alone decides what they mean. Not SIG_IGN,
    # which programs that an env starts would inherit: they could not be ended.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _pass_over)
    os.register_at_fork(after_in_child=_heed_signals)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if assignment.logging:
        configure_logging(**assignment.logging._asdict())
    with suppress(EOFError, ConnectionError):
        _answer_requests(connection, assignment)


def _pass_over(*_: object) -> None:
    """A signal handler that does nothing."""


def _heed_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_with_parent() -> None:
    """Ends this process when its parent is gone, also while an env keeps the main thread busy."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _answer_requests(connection: Connection, assignment: Assignment) -> None:
    try:
        share = _Share(assignment)
    except BaseException as error:
        connection.send_bytes(pickle.dumps(Report("start", failure=Failure.of(error))))
        return
    connection.send_bytes(pickle.dumps(Report("start")))
    try:
        closed = False
        while not closed:
            request = connection.recv_bytes()
            try:
                report = share.answer(request)
                closed = share.closed
                answer = NOTHING if report is EMPTY else pickle.dumps(report)
            except BaseException as error:
                name = "step" if request == STEP else pickle.loads(request)[0]
                answer = pickle.dumps(Report(name, failure=Failure.of(error)))
            connection.send_bytes(answer)
    finally:
        share.envs.close()


class _Share:
    """The copies of one worker."""

    def __init__(self, assignment: Assignment) -> None:
        copies, memory = assignment.copies, assignment.memory
        rows = slice(copies.start, copies.stop)
        self.infos, self.closed = assignment.infos, False
        self._told: Sequence[EpisodeLog] = ()
        self.envs = SerialVectorEnv(
            pickle.loads(assignment.make_env),
            len(copies),
            first=copies.start,
            total=assignment.total,
            arrays=lambda group, _: memory.of(group.name, rows),
        )
        self.envs.resume(frames=assignment.frames, episodes_started=0)
        for env, number in zip(self.envs.envs, assignment.episodes, strict=True):
            env.builder.resume(number)
        self._actions = {group.name: memory.of(group.name, rows)["actions"] for group in self.envs.groups}

    def answer(self, request: bytes) -> Report:
        if request == STEP:
            return self._report(self.envs.step(self._actions))
        name, arguments = pickle.loads(request)
        if name == "step":
            return self._report(self.envs.step(self._actions, **arguments))
        if name == "close":
            return self._close()
        told = self._told
        result = getattr(self.envs, name)(**arguments)
        if name == "reset":
            numbers = [env.builder.episode for env in self.envs.envs]
            report = self._report(result)
            return report._replace(to=name, value=numbers, episodes=[*told, *report.episodes])
        if name == "restore":
            fresh = np.zeros(len(self.envs.envs), bool) if result.lost is None else result.lost
            return self._report(result)._replace(to=name, value=fresh)
        return Report(name, value=result)

    def _report(self, step: VectorStep) -> Report:
        self._told = step.episodes
        if not self.infos and step.keys is None:
            return Report(episodes=step.episodes) if step.episodes else EMPTY
        infos = (step.infos, step.final_infos) if self.infos else (None, None)
        return Report("step", step.episodes, step.keys, step.final_keys, *infos)

    def _close(self) -> Report:
        self.closed, failure = True, None
        try:
            episodes = self.envs.close()
        except Exception as error:
            # The second call has nothing left to close and hands over the episodes.
            failure, episodes = Failure.of(error), self.envs.close()
        return Report("close", [*self._told, *episodes], failure=failure)


def request(name: str, **arguments: Any) -> bytes:
    """A request for a method of the worker's vector env; ``step`` takes the actions from the shared arrays.

    The report on ``reset`` holds the numbers of the episodes that begin, that on ``restore`` which copies (E,) start afresh,
    that on another method what it returned.
    """
    return pickle.dumps((name, arguments))
