"""One process at a time in a run folder: a lock that the system takes back when its holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from marl_tools.core.errors import ConfigError
from marl_tools.core.logging import log

_NAME = "run.lock"
# `holder` takes the lock for an instant to see whether it is free.
_PATIENCE_SECONDS = 0.2
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class RunLock:
    """``with RunLock(folder):`` nobody else trains in the folder meanwhile; the file is gone afterwards.

    Raises:
        ConfigError: another process holds it; the message names its pid.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        self._file = -1

    def __enter__(self) -> RunLock:
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._file)
                if time.monotonic() > give_up:
                    raise ConfigError(
                        f"{self.path.parent} is in use by process {_pid(self.path)}: wait for it, or stop it with "
                        "Ctrl-C there, then try again"
                    ) from None
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
        os.write(self._file, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._file)


def holder(folder: Path) -> int | None:
    """The pid of the process that trains in a run folder, or None; -1 where it did not say."""
    path = folder / _NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid(path)
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _pid(path: Path) -> int:
    with suppress(OSError, ValueError):
        return int(path.read_text("ascii"))
    return -1


def _same_file(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
