"""How a run stops before its end: by Ctrl-C or SIGTERM, by a full disk, by an error; and what it leaves behind then."""

from __future__ import annotations

import errno
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marl_tools.core.errors import ConfigError, DiskFullError, Interrupted, NonFiniteError
from marl_tools.core.io import save_to_file
from marl_tools.experiment.config import RunConfig, names_code
from marl_tools.experiment.safepoint import SafePoint

ERROR_FILE = "error.json"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def saved_at_a_stop(config: RunConfig, folder: Path, safe: SafePoint) -> Iterator[None]:
    """Whatever ends the block before its time, the state after the last whole update is saved, and how to go on is told.

    Raises:
        Interrupted: Ctrl-C or SIGTERM.
        NonFiniteError: with the place of the state added.
        Exception: anything else as it came, with a note of how to go on; ``error.json`` keeps what it was.
    """
    how = f"Go on with: {_command(config, folder)}"
    try:
        with terminate_like_ctrl_c():
            yield
    except KeyboardInterrupt:
        saved = _saved(safe)
        raise Interrupted(
            f"stopped at {safe.frames} of {config.timesteps} env steps; {saved}. {how}"
        ) from None
    except ConfigError as error:
        keep_error(error, folder)
        raise
    except NonFiniteError as error:
        keep_error(error, folder)
        raise NonFiniteError(f"{error}. {_saved(safe).capitalize()} in {folder}.") from error
    except Exception as error:
        # An env may raise anything, hours into a run.
        keep_error(error, folder)
        error.add_note(f"{_saved(safe).capitalize()}. {how}")
        raise


@contextmanager
def told_when_the_disk_is_full(config: RunConfig, folder: Path) -> Iterator[None]:
    """Wherever in a run it is that a write finds no room.

    Raises:
        DiskFullError: in place of the OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFullError(
            f"no room left on the disk of {folder} ({error.strerror}). All that was finished before is whole there. "
            f"Make room, then: {_command(config, folder)}"
        ) from error


def _command(config: RunConfig, folder: Path) -> str:
    trust = " --trust" if names_code(config) else ""
    return f"marl-tools train --resume {shlex.quote(str(folder))}{trust}"


def _saved(safe: SafePoint) -> str:
    return (
        f"the state at env step {safe.frames} is saved" if safe.try_to_save() else "the state before is kept"
    )


def keep_error(error: BaseException, folder: Path) -> None:
    """Leave the reason in the run folder, for whoever lists it."""
    with suppress(OSError):
        save_to_file(
            {"error": type(error).__name__, "message": str(error), "time": time.time()}, folder, ERROR_FILE
        )


@contextmanager
def terminate_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, as batch systems send it, saves and stops like Ctrl-C. Only in the main thread, as Python demands."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
