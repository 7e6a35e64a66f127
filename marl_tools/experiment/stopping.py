"""Ctrl-C and SIGTERM: a run saves its state and says how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from marl_tools.core.errors import MarlToolsError


class Interrupted(MarlToolsError):
    """The run was stopped by Ctrl-C or SIGTERM after its state was saved; the message says how to go on."""


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
