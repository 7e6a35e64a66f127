"""A team whose run loses its worker, its node or its plan once, in the middle of an episode."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.envs_for_tests import Team

_AT = 20


class Unlucky(Team):
    """At its 20th step, unless ``marker`` is there already, "lose" or "stop" happens.

    "lose": the node is lost with all its processes; on that of the daemon ``pid`` only the worker, since the cluster needs its head.
    "stop": the process ``pid`` is told to stop, and the step takes as long as it takes that to tell the run.
    """

    def __init__(self, *, marker: str, harm: str, pid: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self._marker, self._harm, self._pid = Path(marker), harm, pid
        self._left = _AT

    def step(self, actions):
        self._left -= 1
        if self._left == 0 and not self._marker.exists():
            self._marker.touch()
            if self._harm == "stop":
                os.kill(self._pid, signal.SIGTERM)
                while True:
                    time.sleep(0.01)
            # A worker is a child of its node's daemon.
            daemon = os.getppid()
            if daemon != self._pid:
                os.kill(daemon, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)
