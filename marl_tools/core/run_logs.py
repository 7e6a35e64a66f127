"""The two logs of a run folder, read back: ``episodes.jsonl``, and ``updates.jsonl`` with its running totals."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_tools.core.durable import read_jsonl
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.types import EpisodeLog

EPISODES, UPDATES = "episodes.jsonl", "updates.jsonl"


def check_run_folder(folder: Path) -> None:
    """Refuse a folder that has neither the settings nor the logs of a run.

    Raises:
        ConfigError: says what is there instead.
    """
    if not any((folder / name).exists() for name in ("config.json", UPDATES, EPISODES)):
        raise not_a_run(folder)


def not_a_run(folder: Path) -> ConfigError:
    """The refusal of what has no config.json, with the run folder that may have been meant."""
    if folder.is_file():
        inside = f": it is a file; give the folder that it lies in, {folder.parent}"
        return ConfigError(f"{folder} is not a run folder{inside}")
    below = next(iter(sorted(folder.glob("*/config.json"))), None)
    meant = f"; it holds run folders: name one of them, such as {below.parent}" if below else ""
    return ConfigError(f"{folder} is not a run folder: it has no config.json{meant}")


def read_episodes(path: str | os.PathLike[str]) -> Iterator[EpisodeLog]:
    """The episodes of a log, one by one.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: a line is no episode; names the file, the episode's place in it and the field.
    """
    for number, row in enumerate(read_jsonl(path), start=1):
        try:
            yield EpisodeLog.from_json(row)
        except CorruptFileError as error:
            raise CorruptFileError(f"{path}, row {number}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class UpdateLog:
    """One update: env steps and seconds since the run began, and the figures of each group's learner.

    ``frames_before``, ``collecting_from``: where its rollout began; ``collected_at``, ``done_at``: when the rollout was
    full, and when it had been learned from. Seconds count the time at work: of a resumed run, that of all sittings.
    ``optimiser_steps`` are those of each group so far, this update's among them; NaN where they were not counted.
    """

    update: int
    frames_before: int
    frames: int
    collecting_from: float
    collected_at: float
    done_at: float
    groups: Mapping[str, Mapping[str, float]]
    optimiser_steps: Mapping[str, float]

    def seconds_at(self, frame: int) -> float:
        """When its rollout had come to an env step, taking it to have run at an even speed."""
        share = (frame - self.frames_before) / max(1, self.frames - self.frames_before)
        return self.collecting_from + min(max(share, 0.0), 1.0) * (self.collected_at - self.collecting_from)


def read_updates(path: str | os.PathLike[str]) -> Iterator[UpdateLog]:
    """The updates of a log, one by one.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: a line is no update; names the file, the row and the field.
    """
    frames, seconds, steps = 0, 0.0, dict[str, float]()
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{Path(path)}, row {number}"
        groups = row.get("groups")
        if not isinstance(groups, dict) or not all(isinstance(figures, dict) for figures in groups.values()):
            raise CorruptFileError(f"{where}: field 'groups' is {str(groups)[:80]!r}, not a table of figures")
        collected = seconds + _number(row, "collect_seconds", where)
        done = collected + _number(row, "update_seconds", where)
        for name, figures in groups.items():
            # A group of which nobody lived through the rollout has taken none, and says so by its rows alone.
            told = {"optimiser_steps": math.nan, **figures}
            taken = 0.0 if figures.get("rows") == 0 else _number(told, "optimiser_steps", where)
            steps[name] = steps.get(name, 0.0) + taken
        log = UpdateLog(
            update=_whole(row, "update", where),
            frames_before=frames,
            frames=_whole(row, "frames", where),
            collecting_from=seconds,
            collected_at=collected,
            done_at=done,
            groups=groups,
            optimiser_steps=dict(steps),
        )
        yield log
        frames, seconds = log.frames, done


def _number(row: Mapping[str, Any], field: str, where: str) -> float:
    value = row.get(field)
    # A whole number in JSON may be too large to be any float.
    with suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    raise CorruptFileError(f"{where}: field {field!r} is {str(value)[:80]!r}, not a number")


def _whole(row: Mapping[str, Any], field: str, where: str) -> int:
    value = _number(row, field, where)
    if not value.is_integer():
        raise CorruptFileError(f"{where}: field {field!r} is {value}, not a whole number")
    return int(value)
