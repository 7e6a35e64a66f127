"""The checkpoints of a run: the latest, the one before it, the best, and a manifest that says what they are."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from marl_tools.core.errors import ConfigError, CorruptFileError, did_you_mean
from marl_tools.core.io import PathLike, load_from_file, save_to_file
from marl_tools.core.logging import log
from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint

Which = Literal["latest", "best"]
Loaded = tuple[dict[str, Tensor], dict[str, Any]]

_MANIFEST = "manifest.json"
_PREVIOUS = "previous"


class CheckpointFolder:
    """``RUN/checkpoints``: ``latest``, ``previous`` and ``best`` ``.safetensors``, and ``manifest.json``.

    Each file is written whole or not at all and holds its own checksum, so none depends on the manifest, which is for people
    and other programs: per checkpoint its file's SHA-256 and size, when it was written, and what `save` was told of it.
    """

    def __init__(self, run: PathLike) -> None:
        self.path = Path(run) / "checkpoints"

    def file(self, which: str) -> Path:
        return self.path / f"{which}.safetensors"

    def save(
        self, which: Which, tensors: Mapping[str, Tensor], state: Mapping[str, Any], **facts: Any
    ) -> None:
        """Write a checkpoint; the latest one before stays as ``previous``. ``facts`` go to the manifest.

        Raises:
            OSError: the disk took no whole file; what was there before is untouched.
        """
        file, entries = self.file(which), self.manifest()
        if which == "latest" and file.exists():
            _keep_as(self.file(_PREVIOUS), file)
            if which in entries:
                entries[_PREVIOUS] = {**entries[which], "file": self.file(_PREVIOUS).name}
        checksum = save_checkpoint(file, tensors, state)
        entries[which] = {
            "file": file.name,
            "sha256": checksum,
            "bytes": file.stat().st_size,
            "written": time.time(),
            **facts,
        }
        save_to_file(entries, self.path, _MANIFEST)

    def load(self, which: str = "latest") -> Loaded:
        """A checkpoint; where the latest one is damaged or lost, the one before it, and the log says so.

        Raises:
            FileNotFoundError: there is none.
            CorruptFileError: it is damaged, and so is what could stand in for it.
            ConfigError: another version of this package wrote it, or no checkpoint is ever called that.
        """
        if which not in get_args(Which):
            raise ConfigError(f"no checkpoint is called {which!r}.{did_you_mean(which, get_args(Which))}")
        try:
            return load_checkpoint(self.file(which))
        except (FileNotFoundError, CorruptFileError) as error:
            if which == "best" and isinstance(error, FileNotFoundError):
                raise FileNotFoundError(
                    f"{error}: no update has been the best yet; use the latest"
                ) from error
            if which != "latest" or not self.file(_PREVIOUS).exists():
                raise
            try:
                loaded = load_checkpoint(self.file(_PREVIOUS))
            except CorruptFileError as second:
                raise CorruptFileError(f"{error}, and {second}") from second
            log(
                f"{error}. In its place: {self.file(_PREVIOUS)}, {loaded[1].get('frames')} env steps",
                type="resume",
                priority="WARNING",
            )
            return loaded

    def exists(self) -> bool:
        """Whether there is anything to go on from."""
        return self.file("latest").exists() or self.file(_PREVIOUS).exists()

    def manifest(self) -> dict[str, dict[str, Any]]:
        """What the manifest says of each checkpoint; nothing where it is missing or damaged."""
        with suppress(FileNotFoundError, CorruptFileError):
            entries = load_from_file(self.path, _MANIFEST)
            if isinstance(entries, dict) and all(isinstance(entry, dict) for entry in entries.values()):
                return entries
        return {}


def _keep_as(older: Path, file: Path) -> None:
    """Give ``file`` a second name, in the place of whatever had it; ``file`` is there all the time."""
    temporary = older.with_name(f".{older.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(file, temporary)
    except OSError:
        # Not every file system has hard links.
        shutil.copyfile(file, temporary)
    os.replace(temporary, older)
