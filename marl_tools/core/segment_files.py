"""Segments on disk: their folders and names, the writer that works in the background, and pruning."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from marl_tools.core.checks import at_least
from marl_tools.core.durable import move_new, write_whole
from marl_tools.core.errors import ConfigError
from marl_tools.core.segments import LateSegment, Segment, pack_segment

QUEUE_BYTES, QUEUE_SEGMENTS = 64 * 2**20, 64
"""Segments that wait for the disk take at most this much memory, but one is always allowed; never more than 64."""

PROTECTED = "protected"
"""What lies in a folder of this name is never pruned."""

REPLAYED = "replayed"
"""Where a run that goes on from a checkpoint puts what it plays again; `segment_files` does not look there."""

_BATCH, _WAIT_SECONDS, _IDLE_SECONDS = 32, 0.25, 2.0
"""Segments are written when so many wait, or after this time: each time that a thread wakes it is in the way of the others."""
_NAME = re.compile(r"(?P<writer>[A-Za-z0-9_-]+)-(?P<counter>\d{8,})\.npz")


@lru_cache
def env_slug(name: str) -> str:
    """A folder name for an env: the name itself where it is a harmless one, else what is harmless of it and a hash."""
    harmless = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:48]
    if harmless == name and name not in ("", PROTECTED, REPLAYED):
        return name
    return f"{harmless or 'env'}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def segment_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The segments in a folder and one level of folders below it, ``protected`` ones included, in order of their paths."""
    folder = Path(folder)
    patterns = ("*.npz", "*/*.npz", f"*/{PROTECTED}/*.npz")
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if _NAME.fullmatch(path.name))


def prune(folder: str | os.PathLike[str], max_files: int) -> list[Path]:
    """Delete the oldest segments of a folder and those below it until ``max_files`` are left; returns what went.

    A writer's files go in the order of their counters; of several writers, the one goes first whose next file was written
    first. Files in a folder called ``protected`` are neither deleted nor counted, and other files are left alone.

    Raises:
        ConfigError: ``max_files`` is no whole number from 0 on.
    """
    at_least(0)("max_files", max_files)
    files = [path for path in segment_files(folder) if path.parent.name != PROTECTED]
    aged = [_aged(written) for written in by_writer(files)]
    excess = sum(map(len, aged)) - max_files
    # Not sorted by time: `merge` looks at the heads only, so that each writer's counters decide among its own.
    removed = [path for _, path in itertools.islice(heapq.merge(*aged), max(0, excess))]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def by_writer(files: Iterable[Path]) -> list[list[Path]]:
    """The segments of each writer in each folder, by their counters."""
    groups: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for path in files:
        writer, counter = _parse(path.name)
        groups.setdefault((path.parent, writer), []).append((counter, path))
    return [[path for _, path in sorted(group)] for group in groups.values()]


class SegmentWriter:
    """Write segments to ``<save_to>/<env slug>/<writer>-<counter>.npz`` in a background thread.

    A file has its name only when it is whole, replaces nothing, and is numbered on from what ``writer`` left there before. If
    the process is killed, a hidden ``.part`` may be left, which no reader looks at.

    A fault of the disk stops the thread and is raised by the next `check`, `flush` or `close`; segments that were not
    written wait in memory, and are tried again after that.

    Raises:
        ConfigError: a ``writer`` that is no plain name.
    """

    def __init__(
        self, save_to: str | os.PathLike[str], writer: str | None = None, *, compress: bool = False
    ) -> None:
        if writer is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", writer):
            raise ConfigError(f"writer={writer!r}: use letters, digits, '_' and '-' only")
        self.save_to = Path(save_to).absolute()
        self.compress = compress
        self._wanted = writer
        self._begin()

    def _begin(self) -> None:
        self.writer = self._wanted or secrets.token_hex(4)
        self.saved = 0
        self._pid = os.getpid()
        self._pending: deque[Segment | LateSegment] = deque()
        self._bytes = 0
        self._urgent = False
        """Whether somebody waits for what is pending."""
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._counters: dict[str, int] = {}
        self._part = f".{self.writer}-{secrets.token_hex(4)}.part"

    def __getstate__(self) -> dict[str, Any]:
        return {"save_to": self.save_to, "compress": self.compress, "_wanted": self._wanted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def put(self, segment: Segment | LateSegment) -> None:
        """Hand over a finished segment. Waits while the disk lags behind by more than `QUEUE_BYTES`."""
        if self._pid != os.getpid():
            # A forked child: what waits here is the parent's, and so is the thread.
            self._begin()
        with self._changed:
            # Before any waiting, so that Ctrl-C loses nothing.
            self._pending.append(segment)
            self._bytes += segment.nbytes
            self._work()
            if len(self._pending) == _BATCH:
                self._changed.notify_all()
            while len(self._pending) > 1 and not self._error:
                if self._bytes <= QUEUE_BYTES and len(self._pending) <= QUEUE_SEGMENTS:
                    break
                self._wait()

    def check(self) -> None:
        """Raise what went wrong in the background, once.

        Raises:
            OSError: with the file and the remedy.
        """
        if self._error is None or self._pid != os.getpid():
            return
        with self._changed:
            error, self._error = self._error, None
            waiting = len(self._pending)
        if isinstance(error, OSError):
            raise OSError(
                error.errno,
                f"cannot save trajectories in {self.save_to}: {error.strerror or error}. {waiting} finished segments wait "
                "in memory, and all files that are there are whole: make room or mend the folder, then call flush() "
                "or go on",
                error.filename,
            ) from error
        if error is not None:
            raise error

    def flush(self) -> None:
        """Wait until everything handed over has its name.

        Raises:
            OSError: as `check`.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            # A fault that is not mended yet comes again.
            self._error = None
            while self._pending and not self._error:
                self._work()
                self._wait()
        self.check()

    def _work(self) -> None:
        """Have a thread at work; called with the lock held."""
        if self._thread is None and self._error is None:
            self._thread = threading.Thread(target=self._run, name=f"save {self.writer}", daemon=True)
            self._thread.start()

    def _wait(self) -> None:
        """Let the thread get on; called with the lock held."""
        self._urgent = True
        self._changed.notify_all()
        self._changed.wait()

    def _run(self) -> None:
        worked = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._urgent or len(self._pending) >= _BATCH, _WAIT_SECONDS)
                batch = list(self._pending)
                # An idle thread would keep this object alive for ever.
                if not batch and time.monotonic() - worked > _IDLE_SECONDS:
                    self._thread = None
                    return
            for segment in batch:
                try:
                    self._save(segment)
                except Exception as error:
                    with self._changed:
                        self._error, self._thread = error, None
                        self._changed.notify_all()
                    return
                with self._changed:
                    self._pending.popleft()
                    self._bytes -= segment.nbytes
                    self.saved += 1
            if batch:
                worked = time.monotonic()
                with self._changed:
                    self._urgent = False
                    self._changed.notify_all()

    def _save(self, segment: Segment | LateSegment) -> None:
        if isinstance(segment, LateSegment):
            segment = segment.make()
        content = pack_segment(segment, compress=self.compress)
        folder = os.path.join(self.save_to, env_slug(segment.env))
        try:
            counter = self._counters.pop(folder, None)
            if counter is None:
                os.makedirs(folder, exist_ok=True)
                counter = self._next_counter(Path(folder))
            self._counters[folder] = 1 + self._publish(content, folder, counter)
        except OSError as error:
            # `write` itself does not say where.
            error.filename = folder
            raise

    def _publish(self, content: bytes, folder: str, counter: int) -> int:
        """Write a file under the first free number from ``counter`` on, and return that."""
        part = os.path.join(folder, self._part)
        try:
            with open(part, "wb", buffering=0) as file:
                write_whole(file, content)
            while True:
                with contextlib.suppress(FileExistsError):
                    move_new(part, os.path.join(folder, f"{self.writer}-{counter:08d}.npz"))
                    return counter
                counter += 1
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise

    def _next_counter(self, folder: Path) -> int:
        names = [path.name for place in (folder, folder / PROTECTED) for path in place.glob("*.npz")]
        parsed = [_parse(name) for name in names if _NAME.fullmatch(name)]
        return 1 + max((counter for writer, counter in parsed if writer == self.writer), default=-1)


def _parse(name: str) -> tuple[str, int]:
    match = _NAME.fullmatch(name)
    assert match is not None
    return match["writer"], int(match["counter"])


def _aged(files: Iterable[Path]) -> list[tuple[int, Path]]:
    """The files with the times of their last change; those that another pruner has just taken are left out."""
    aged = []
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            aged.append((path.stat().st_mtime_ns, path))
    return aged
