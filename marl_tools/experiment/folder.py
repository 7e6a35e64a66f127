"""The run folder: where it is, and the files that say what ran."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from marl_tools.core.durable import move_new
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import create_dir, load_from_file, save_to_file
from marl_tools.core.logging import log
from marl_tools.core.run_logs import not_a_run
from marl_tools.core.types import EnvCopies
from marl_tools.core.wrappers.direct import steps_directly
from marl_tools.experiment.config import RunConfig

_PACKAGES = (
    "marl-tools",
    "pettingzoo",
    "gymnasium",
    "supersuit",
    "mpe2",
    "numpy",
    "torch",
    "moviepy",
    "wandb",
)


def load_config(folder: Path) -> RunConfig:
    """The settings of a run folder.

    Raises:
        ConfigError: the folder is no run folder.
        CorruptFileError: its config.json is damaged.
    """
    try:
        settings = load_from_file(folder, "config.json")
    except (FileNotFoundError, NotADirectoryError):
        raise not_a_run(folder) from None
    if not isinstance(settings, dict):
        raise CorruptFileError(
            f"{folder / 'config.json'} holds a {type(settings).__name__}, not settings by name"
        )
    return RunConfig.from_flat(settings)


def write_settings(config: RunConfig, folder: Path, envs: EnvCopies) -> None:
    """Write ``config.json`` and ``versions.json``, which also says how the envs are stepped."""
    save_to_file(config.to_flat(), folder, "config.json")
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        with suppress(ImportError):
            versions[package] = version(package)
    # Envs in other processes cannot be looked at: whoever made them says so.
    direct = getattr(envs, "direct", False) or any(map(steps_directly, getattr(envs, "envs", ())))
    if direct:
        log("the envs are stepped directly (--no-direct: by PettingZoo's turns)", type="env")
    parts = getattr(envs, "slices", ())
    stepped = {"native": config.native, "direct": direct, **({"processes": len(parts)} if parts else {})}
    save_to_file({**versions, **stepped}, folder, "versions.json")


def claim_folder(config: RunConfig, folder: Path) -> Path:
    """Make ``folder`` this run's own; where another process was quicker, the next number as in `fresh_folder`.

    Raises:
        ConfigError: the folder cannot be made, or another process has just taken ``out``.
    """
    while True:
        try:
            create_dir(folder)
            # Only one process can create the file; `write_settings` fills it.
            (folder / "config.json").touch(exist_ok=False)
            return folder
        except FileExistsError:
            folder = fresh_folder(config)
        except OSError as error:
            raise ConfigError(f"cannot make the run folder {folder}: {error.strerror}") from error


def check_unfinished(config: RunConfig, folder: Path, frames: int, *, solved: bool) -> None:
    """Refuse to go on with a run that has come to its end at ``frames``, or to end one earlier than it has come.

    Raises:
        ConfigError: says what would make it go on.
    """
    own = load_config(folder).timesteps
    if config.timesteps < min(frames, own):
        raise ConfigError(
            f"{folder} has played {frames:,} of {own:,} env steps, more than --timesteps {config.timesteps}: --timesteps "
            "is the total, those already played included"
        )
    if not (folder / "done.json").exists():
        return
    if solved:
        raise ConfigError(f"{folder} is solved at {frames} env steps: give a higher --stop-at to go on")
    if frames >= config.timesteps:
        raise ConfigError(f"{folder} is complete at {frames} env steps: give more --timesteps to go on")


def save_latest(content: Any, folder: Path, name: str) -> Path:
    """Save as ``name``, and return the path; what had that name is kept as ``<stem>-1.json``, ``<stem>-2.json`` and so on."""
    path = folder / name
    number, kept = 1, path.exists()
    while kept:
        with suppress(FileExistsError):
            move_new(path, path.with_stem(f"{path.stem}-{number}"))
            kept = False
        number += 1
    return save_to_file(content, folder, name)


_EFFECTIVE = os.access in os.supports_effective_ids
"""Whether the system can be asked about the user that this process acts as, and not only the one who started it."""


def refuse_file(folder: Path) -> None:
    """Refuse an --out that nothing can be written to: it or what it should lie in is a file or not ours, or its name is impossible.

    Raises:
        ConfigError: names the file, or what the system says.
    """
    try:
        there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be a folder: {error.strerror}; give another --out") from error
    if there is not None and not there.is_dir():
        raise ConfigError(f"{folder} cannot be a folder: {there} is a file; give another --out")
    if there is not None and not os.access(there, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):
        raise ConfigError(
            f"{folder} cannot be written to: no permission to write in {there}; give another --out"
        )


def fresh_folder(config: RunConfig) -> Path:
    """The run folder: ``out`` must be empty or absent; a default name that is taken gets a number."""
    folder = config.folder
    refuse_file(folder if config.out else folder.parent)
    taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if config.out is None:
        number = 2
        while taken:
            folder = config.folder.with_name(f"{config.folder.name}-{number}")
            taken, number = folder.exists(), number + 1
    elif taken:
        hint = (
            f"go on with it by: marl-tools train --resume {folder}"
            if (folder / "config.json").exists()
            else ""
        )
        raise ConfigError(f"{folder} is not empty: give another --out{hint and ', or ' + hint}")
    return folder
