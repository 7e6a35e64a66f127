"""The films of a run: found, described, and embedded into the page as far as its budget goes."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from marl_tools.bench.report.wording import number
from marl_tools.core.errors import MarlToolsError
from marl_tools.core.io import load_from_file

Videos = Literal["embed", "link", "none"]

EMBED_BYTES = 12 * 2**20
"""Films up to this size in all become part of the page; the rest is linked."""

_KINDS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}


@dataclass(frozen=True)
class Clip:
    """One film and the note beside it, which is empty where there is none."""

    path: Path
    size: int
    note: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return _KINDS[self.path.suffix.lower()]

    @property
    def caption(self) -> str:
        """Its name, and what was earned in it."""
        parts = [self.path.stem]
        returns = self.note.get("returns")
        if isinstance(returns, Mapping) and 0 < len(returns) <= 4:
            earned = ", ".join(f"{agent} {number(value)}" for agent, value in returns.items())
            parts.append(f"return {earned}")
        if isinstance(length := self.note.get("length"), int):
            parts.append(f"{length} steps")
        return " · ".join(parts)


def find_clips(folder: Path) -> list[Clip]:
    """The films in a run's ``videos``: those of the trained team first, then the latest of the others."""
    found = []
    try:
        paths = sorted((folder / "videos").iterdir())
    except OSError:
        return []
    for path in paths:
        if path.suffix.lower() in _KINDS and path.is_file() and not path.is_symlink():
            status = path.stat()
            final = path.name.startswith("final")
            found.append(
                (not final, 0 if final else -status.st_mtime_ns, Clip(path, status.st_size, _note(path)))
            )
    return [clip for _, _, clip in sorted(found, key=lambda row: row[:2])]


class Film:
    """Where the page finds each film: inside itself while ``budget`` bytes last, else beside it."""

    def __init__(self, videos: Videos, page: Path, *, budget: int = EMBED_BYTES) -> None:
        self.videos, self._beside, self._left = videos, page.parent, budget
        self.linked = 0

    def source(self, clip: Clip) -> str:
        """What goes into ``src``."""
        if self.videos == "embed" and clip.size <= self._left:
            # A run that goes on may have deleted it meanwhile.
            with suppress(OSError):
                film = base64.b64encode(clip.path.read_bytes()).decode()
                self._left -= clip.size
                return f"data:{clip.kind};base64,{film}"
        self.linked += 1
        return quote(Path(os.path.relpath(clip.path, self._beside)).as_posix())


def _note(path: Path) -> Mapping[str, Any]:
    try:
        note = load_from_file(path.parent, f"{path.stem}.json")
    except (MarlToolsError, OSError):
        return {}
    return note if isinstance(note, dict) else {}
