"""``episodes.jsonl`` and ``updates.jsonl`` of a run, and what becomes of their lines when the run goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from marl_tools.core.durable import set_rows_aside
from marl_tools.core.errors import CorruptFileError
from marl_tools.core.io import JsonLines
from marl_tools.core.logging import log
from marl_tools.core.run_logs import EPISODES, UPDATES, read_episodes
from marl_tools.core.types import EpisodeLog

if TYPE_CHECKING:
    from marl_tools.training.ippo import IPPO

__all__ = ["EPISODES", "UPDATES", "RunRecords", "read_episodes", "rewind"]


class RunRecords:
    """The two logs of a run, open for appending; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self.episodes = self._stack.enter_context(JsonLines(folder / EPISODES))
        try:
            self.updates = self._stack.enter_context(JsonLines(folder / UPDATES))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> RunRecords:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def log_late(folder: Path, trainer: IPPO, episodes: Sequence[EpisodeLog]) -> None:
    """Log those of the last ``episodes`` that are whole: they ended in the very step that a run was stopped in.

    They are later than what was saved, so that `rewind` sets them aside before they are played again.
    """
    whole = [episode for episode in episodes if not episode.interrupted]
    if whole:
        with RunRecords(folder) as records:
            for episode in whole:
                records.episodes.append(replace(episode, update=trainer.collecting).to_json())


def rewind(folder: Path, *, frames: int, updates: int) -> None:
    """Leave in the logs what came before a checkpoint; what came later will be played again and is set aside.

    It goes to ``episodes.replayed.jsonl`` and ``updates.replayed.jsonl``, after what an earlier call put there.

    Raises:
        CorruptFileError: a line is none of such a log; names the file, the row and the field.
        OSError: there is no room; the logs are as they were.
    """
    later: dict[str, Callable[[dict[str, Any]], bool]] = {
        EPISODES: lambda row: _number(row, "t_end") > frames,
        UPDATES: lambda row: _number(row, "update") >= updates,
    }
    for name, belongs_later in later.items():
        with suppress(FileNotFoundError):
            aside = folder / name.replace(".jsonl", ".replayed.jsonl")
            count = set_rows_aside(folder / name, aside, belongs_later)
            if count:
                lines = "1 line" if count == 1 else f"{count} lines"
                log(f"{lines} later than the checkpoint moved from {name} to {aside.name}", type="resume")


def _number(row: dict[str, Any], field: str) -> int:
    value = row.get(field)
    if not isinstance(value, int):
        raise CorruptFileError(f"field {field!r} is {str(value)[:80]!r}, not a whole number")
    return value
