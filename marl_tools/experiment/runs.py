"""The run folders below a folder: what each is, how far it has come, and how good its team is."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from marl_tools.core.errors import ConfigError, MarlToolsError
from marl_tools.core.io import load_from_file
from marl_tools.core.types import Split
from marl_tools.experiment.folder import load_config
from marl_tools.experiment.lock import holder
from marl_tools.experiment.records import UPDATES
from marl_tools.experiment.stopping import ERROR_FILE
from marl_tools.training.checkpoint_folder import CheckpointFolder

State = Literal["done", "solved", "running", "interrupted", "failed", "damaged"]

_TAIL = 65536


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run folder; None where it does not say.

    ``frames`` of ``timesteps`` env steps; ``mean_return`` is the moving average over training episodes at the last update,
    ``best_return`` that of the best checkpoint, over the episodes of ``best_split``: with ``eval_every`` those of evaluations.
    ``age`` in seconds since anything was last written. ``detail`` says why a run failed or is damaged, or which process runs it.
    """

    folder: str
    state: State
    env: str | None = None
    frames: int = 0
    timesteps: int | None = None
    mean_return: float | None = None
    best_return: float | None = None
    best_split: Split | None = None
    age: float = 0.0
    detail: str | None = None


def list_runs(folder: Path) -> list[RunSummary]:
    """All run folders in ``folder`` or below, latest first. Nothing in them is changed, and no code that they name is run.

    Raises:
        ConfigError: there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: name one that holds run folders, or a run folder itself")
    return sorted(map(summarise_run, _run_folders(folder)), key=lambda run: run.age)


def summarise_run(folder: Path) -> RunSummary:
    """What is known of one run folder, damaged or not."""
    row = last_update(folder)
    best = CheckpointFolder(folder).manifest().get("best", {})
    common = {
        "folder": str(folder),
        "frames": _number(row.get("frames")) or 0,
        "mean_return": _number(row.get("mean_return")),
        "best_return": _number(best.get("average_return")),
        "age": _age(folder),
    }
    try:
        config = load_config(folder)
    except (MarlToolsError, OSError) as error:
        if _has_nothing_but_an_error(folder):
            state, detail = _state(folder)
            return RunSummary(state=state, detail=detail, **common)
        return RunSummary(state="damaged", detail=_printable(str(error)), **common)
    state, detail = _state(folder)
    return RunSummary(
        state=state,
        detail=detail,
        env=config.task.name,
        timesteps=config.timesteps,
        best_split="eval" if config.eval_every else "train",
        **common,
    )


def _state(folder: Path) -> tuple[State, str | None]:
    if (who := holder(folder)) is not None:
        return "running", _printable(str(who))
    done = _note(folder, "done.json")
    if done is not None:
        return ("solved" if done.get("state") == "solved" else "done"), None
    error = _note(folder, ERROR_FILE)
    if error is not None:
        return "failed", _printable(f"{error.get('error')}: {error.get('message')}")
    return "interrupted", None


def _has_nothing_but_an_error(folder: Path) -> bool:
    """Whether a run of a plan failed here before it wrote its settings, as where its env cannot be made."""
    with suppress(OSError):
        return os.listdir(folder) == [ERROR_FILE]
    return False


def _run_folders(folder: Path) -> Iterator[Path]:
    """Folders with a ``config.json``, or of runs that failed before; what lies inside one is part of it, and links are not followed."""
    for path, folders, files in os.walk(folder):
        if "config.json" in files or [*folders, *files] == [ERROR_FILE]:
            folders.clear()
            yield Path(path)


def _note(folder: Path, name: str) -> dict[str, Any] | None:
    """A small JSON file of a run; empty where it is there but damaged."""
    try:
        note = load_from_file(folder, name)
    except FileNotFoundError:
        return None
    except (MarlToolsError, OSError):
        return {}
    return note if isinstance(note, dict) else {}


def last_update(folder: Path) -> dict[str, Any]:
    """The last whole row of the updates' log, without reading all of it; empty if there is none."""
    with suppress(OSError), open(folder / UPDATES, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        for line in reversed(file.read().split(b"\n")):
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict):
                    return row
    return {}


def _age(folder: Path) -> float:
    times = []
    for name in ("config.json", UPDATES, "done.json", ERROR_FILE):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(0.0, time.time() - max(times, default=time.time()))


def _printable(text: str) -> str:
    """Without control characters: they would command the terminal of whoever lists a stranger's runs."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _number(value: Any) -> Any:
    """A finite number, or None: strict JSON knows no NaN, and no float is as large as its whole numbers may be."""
    with suppress(OverflowError):
        return value if isinstance(value, int | float) and math.isfinite(value) else None
