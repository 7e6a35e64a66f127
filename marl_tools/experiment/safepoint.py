"""The state of a run after its last whole update: what is saved, wherever and however the run stops."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from marl_tools.core.logging import log
from marl_tools.training.best import BestCheckpoint
from marl_tools.training.checkpoint_folder import CheckpointFolder
from marl_tools.training.ippo import IPPO

_CHEAP_SECONDS, _SHARE = 0.05, 0.05
"""Of CPU time: what a copy of the state may cost anyway, and which part of the run's own."""

_Snapshot = tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]


class SafePoint:
    """Keeps the state after the last whole update in memory, and writes it when it is told to.

    A run that is stopped within an update thus goes on from before it, and plays it again to the bit. The best state is
    kept alike and written together with the next latest one. Where the state is so large that copying it would cost a good
    part of the run, as the model of a shield with a million rows, it is kept only when a checkpoint is ``due``.
    """

    def __init__(self, folder: Path, best: BestCheckpoint) -> None:
        self.checkpoints, self.best = CheckpointFolder(folder), best
        self._latest: _Snapshot | None = None
        self._best: _Snapshot | None = None
        self._written = True
        self._cost = self._taken_at = 0.0

    @property
    def frames(self) -> int:
        """Env steps at the state that is kept; 0 before the first."""
        return 0 if self._latest is None else self._latest[2]["frames"]

    def take(self, trainer: IPPO, average: float, *, due: bool = True, is_best: bool = False) -> None:
        """The trainer stands between two updates; ``average`` is what its team is judged by.

        Unless ``due``, the state is left out where it costs too much.
        """
        started = time.process_time()
        if not due and self._cost > max(_CHEAP_SECONDS, _SHARE * (started - self._taken_at)):
            return
        tensors, state = trainer.state()
        state["best"] = self.best.state()
        facts = {
            "update": trainer.updates,
            "frames": trainer.frames,
            "average_return": None if math.isnan(average) else average,
        }
        self._written = False
        # The trainer goes on in the very same tensors.
        self._latest = ({name: tensor.clone() for name, tensor in tensors.items()}, state, facts)
        if is_best:
            self._best = self._latest
        self._taken_at = time.process_time()
        self._cost = self._taken_at - started

    def save(self) -> None:
        """Write what is not yet on the disk.

        Raises:
            OSError: the disk took no whole file; the earlier checkpoints are as they were.
        """
        # The best first: the latest says which is the best, and must not point to one that is not there.
        if self._best is not None:
            tensors, state, facts = self._best
            self.checkpoints.save("best", tensors, state, **facts)
            self._best = None
        if self._latest is not None and not self._written:
            tensors, state, facts = self._latest
            self.checkpoints.save("latest", tensors, state, **facts)
            self._written = True

    def try_to_save(self) -> bool:
        """`save` after something went wrong: what went wrong may well be the disk."""
        try:
            self.save()
        except OSError as error:
            log(
                f"the last update could not be saved: {error.strerror or error}",
                type="run",
                priority="WARNING",
            )
            return False
        return True
