"""One run of a plan, from nothing or from where it was stopped: what every executor calls where the run shall happen."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from marl_tools.bench.fingerprint import differing_settings
from marl_tools.bench.plan_folder import FINISHED
from marl_tools.core.errors import CorruptFileError, Interrupted, WorkerError
from marl_tools.core.logging import configure_logging, log, logging_settings
from marl_tools.experiment.config import RunConfig, check_trust
from marl_tools.experiment.folder import load_config
from marl_tools.experiment.run import resume, train
from marl_tools.experiment.runs import State, last_update, summarise_run
from marl_tools.experiment.stopping import ERROR_FILE, keep_error, terminate_like_ctrl_c

JobState = State | Literal["missing"]

_LONGEST_ERROR = 2000
_STREAMS = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a plan: its flat settings, plain values without ``out``, and ``<plan>/runs/<id>``, where it belongs."""

    id: str
    config: Mapping[str, Any]
    folder: Path
    trusted: bool = False


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How a job ended, in plain data.

    Attributes:
        id: the job's.
        state: done or solved; failed or damaged, then ``error`` says why; interrupted: it was told to stop, and its state is saved.
        frames: env steps that it has come to.
        seconds: that this attempt took.
        error: the exception's name and message, or what killed the process.
        retryable: whether another attempt might end otherwise: a process was lost. What the run itself raises, it would raise again.
    """

    id: str
    state: JobState
    frames: int = 0
    seconds: float = 0.0
    error: str | None = None
    retryable: bool = False

    @property
    def finished(self) -> bool:
        return self.state in FINISHED


def run_job(config: Mapping[str, Any], folder: Path, trusted: bool) -> JobResult:
    """Train the run, go on with it from its latest checkpoint, or do nothing where it is done; never raises.

    Calling it again is always safe: a finished run is not touched, one that was stopped or killed goes on to what it would have
    been, to the bit, and one that another process works on, that is damaged or another run's stays as it is. What the run
    says goes to ``log_file(folder)``; an error also to the run's ``error.json``. SIGTERM and Ctrl-C save the state and
    give "interrupted".

    Args:
        config: flat settings for `RunConfig.from_flat`.
        folder: ``<plan>/runs/<id>``.
        trusted: whether code that the settings name may be imported.
    """
    started = time.perf_counter()
    try:
        with _output_to(log_file(folder)):
            end = _attempt(config, folder, trusted)
    except OSError as error:
        end = _End("failed", _sentence(error))
    seconds = time.perf_counter() - started
    return JobResult(id=folder.name, frames=frames_of(folder), seconds=seconds, **end._asdict())


def log_file(folder: Path) -> Path:
    """Where a run of a plan says what it does: ``<plan>/logs/<id>.log``."""
    return folder.parent.parent / "logs" / f"{folder.name}.log"


def frames_of(folder: Path) -> int:
    """Env steps that a run has come to, from the last line of its log; 0 before the first update."""
    frames = last_update(folder).get("frames")
    return frames if isinstance(frames, int) else 0


def state_of(config: RunConfig, folder: Path) -> tuple[JobState, str | None]:
    """What a run of a plan is like, and why where that is bad. Nothing is changed.

    "damaged" is also a folder that holds another run than this: the plan would report what it did not ask for.
    """
    if not _has_begun(folder):
        return "missing", None
    summary = summarise_run(folder)
    if summary.state == "damaged":
        return "damaged", summary.detail
    if different := differing_settings(load_config(folder), config):
        return "damaged", f"{folder} holds a run with other settings ({', '.join(different)}): move it away"
    return summary.state, summary.detail


def keep_failure(error: BaseException, folder: Path) -> None:
    """Leave in a run folder, which may not be there yet, why its run failed; one that is done stays as it is."""
    # A process may be lost between the end of its run and its answer.
    if (folder / "done.json").exists():
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        keep_error(error, folder)


class _End(NamedTuple):
    state: JobState
    error: str | None = None
    retryable: bool = False


def _attempt(config: Mapping[str, Any], folder: Path, trusted: bool) -> _End:
    try:
        with terminate_like_ctrl_c():
            return _settle(RunConfig.from_flat(config), folder, trusted)
    except (KeyboardInterrupt, Interrupted) as stop:
        return _End("interrupted", str(stop) or None)
    except CorruptFileError as error:
        log(error, type="plan", priority="ERROR")
        return _End("damaged", _sentence(error))
    # An env may raise anything, and call sys.exit.
    except (Exception, SystemExit) as error:
        log(f"{folder.name} failed", type="plan", priority="ERROR", exception=error)
        keep_failure(error, folder)
        return _End("failed", _sentence(error), retryable=isinstance(error, WorkerError))


def _settle(config: RunConfig, folder: Path, trusted: bool) -> _End:
    state, detail = state_of(config, folder)
    if state in (*FINISHED, "damaged"):
        return _End(state, detail)
    if state == "running":
        return _End("failed", f"{folder} is in use by {detail}: wait for it, or stop it")
    check_trust(config, trusted)
    if state == "missing":
        # What an attempt left that came to nothing.
        for name in ("config.json", ERROR_FILE):
            (folder / name).unlink(missing_ok=True)
        train(dataclasses.replace(config, out=folder))
    else:
        resume(folder, trusted=trusted)
    return _End(*state_of(config, folder))


def _has_begun(folder: Path) -> bool:
    """Whether a run has written its settings; an empty file is the claim of one that was killed before it did."""
    path = folder / "config.json"
    return path.exists() and path.stat().st_size > 0


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """All that this process and what it starts print meanwhile, and its log, is appended to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = logging_settings()
    with open(path, "a", buffering=1, encoding="utf-8", errors="backslashreplace") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(stream) for stream in _STREAMS]
        try:
            for stream in _STREAMS:
                os.dup2(file.fileno(), stream)
            with redirect_stdout(file), redirect_stderr(file):
                configure_logging()
                yield
        finally:
            for stream, copy in zip(_STREAMS, kept, strict=True):
                os.dup2(copy, stream)
                os.close(copy)
            if before:
                configure_logging(**before._asdict())
