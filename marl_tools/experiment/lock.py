"""One process at a time in a run folder: a lock that the system takes back when its holder dies, however it dies.

On a file system that several machines share, a machine that is gone for good may leave its lock behind: such locks are known by
their silence, and whoever waits for one takes it over.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from marl_tools.core.errors import ConfigError
from marl_tools.core.logging import log

_NAME = "run.lock"
# `holder` takes the lock for an instant to see whether it is free.
_PATIENCE_SECONDS = 0.2
_RENEWAL_SECONDS = 10.0
_SILENCE_SECONDS = 90.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class Holder(NamedTuple):
    """The process that trains in a run folder; -1 and an empty host where it did not say."""

    pid: int
    host: str = ""

    @property
    def is_elsewhere(self) -> bool:
        return self.host not in ("", platform.node())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.is_elsewhere else f"process {self.pid}"


class RunLock:
    """``with RunLock(folder):`` nobody else trains in the folder meanwhile; the file is gone afterwards.

    The time of the file is renewed all the while, as a sign of life to other machines.

    Raises:
        ConfigError: another process holds it; the message names it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        self._file = -1
        self._left = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="run-lock", daemon=True)

    def __enter__(self) -> RunLock:
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._file)
                if time.monotonic() > give_up:
                    raise ConfigError(_in_use(self.path)) from None
                time.sleep(0.01)
                continue
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(self._file)
                    raise
                log(
                    f"{self.path.parent}: this file system has no locks; do not resume the run twice at once",
                    type="run",
                    priority="WARNING",
                )
            # The holder before may have removed the file between our opening and locking it.
            if _same_file(self._file, self.path):
                break
            os.close(self._file)
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()} {platform.node()}\n".encode())
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._renewal.join()
        # It may be another's by now, if we were taken for dead.
        if _same_file(self._file, self.path):
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def _renew(self) -> None:
        while not self._left.wait(_RENEWAL_SECONDS):
            with suppress(OSError):
                os.utime(self._file)


def wait_until_free(folder: Path, *, seconds: float, silence: float = _SILENCE_SECONDS) -> None:
    """Wait for whoever trains in a run folder, at most so many ``seconds``.

    A holder on another machine that gives no sign of life for ``silence`` seconds is gone with its machine, and its lock is
    removed. One on this machine needs no such guess: the system takes its lock back.

    Raises:
        ConfigError: it is still in use.
    """
    path = folder / _NAME
    started = seen_at = time.monotonic()
    seen = None
    while (who := holder(folder)) is not None:
        now = time.monotonic()
        # Its changes, by our clock: those of two machines may differ.
        if (sign := _sign_of_life(path)) != seen:
            seen, seen_at = sign, now
        elif who.is_elsewhere and now - seen_at >= silence:
            log(f"{path} of {who} is {silence:.0f} s without a sign of life: removed", type="run")
            path.unlink(missing_ok=True)
            return
        if now - started >= seconds:
            raise ConfigError(_in_use(path))
        time.sleep(min(0.1, seconds))


def holder(folder: Path) -> Holder | None:
    """Who trains in a run folder, or None."""
    path = folder / _NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder_named_in(path)
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _holder_named_in(path: Path) -> Holder:
    with suppress(OSError, ValueError):
        pid, _, host = path.read_text("ascii").strip().partition(" ")
        return Holder(int(pid), host)
    return Holder(-1)


def _in_use(path: Path) -> str:
    who = _holder_named_in(path)
    gone = f" If that machine is gone, remove {path}." if who.is_elsewhere else ""
    return (
        f"{path.parent} is in use by {who}: wait for it, or stop it with Ctrl-C there, then try again.{gone}"
    )


def _sign_of_life(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        state = path.stat()
        return state.st_ino, state.st_mtime_ns
    return None


def _same_file(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
