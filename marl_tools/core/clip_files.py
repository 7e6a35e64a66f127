"""Clips on disk: a final name that replaces nothing, the ``.json`` beside it, and a cap on the folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_tools.core.durable import move_new, plain
from marl_tools.core.errors import ConfigError


def file_stem(name: str) -> str:
    """The name itself, if it is one file name and no path.

    Raises:
        ConfigError: it is empty or holds a path separator.
    """
    if not name.strip(".") or any(character in name for character in "/\\\0"):
        raise ConfigError(f"{name!r} is no file name: leave out '/' and put the folder into video_folder")
    return name


def publish(part: Path, wanted: Path, note: Mapping[str, Any] | None = None) -> Path:
    """Give the whole file ``part`` the first free name of ``wanted``, ``wanted-1``, ``wanted-2``, ...

    Safe against other processes that publish into the same folder. ``note`` becomes ``<clip>.json``; it is
    there before the clip is, so whoever finds a clip finds its note too.

    Raises:
        OSError: the folder cannot be written; ``part`` is still there then.
    """
    for number in itertools.count():
        clip = wanted if number == 0 else wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
        beside = clip.with_suffix(".json")
        if clip.exists() or (note is not None and beside.exists()):
            continue
        try:
            if note is not None:
                _write_new(beside, {"video": clip.name, **note})
            try:
                move_new(part, clip)
            except OSError:
                if note is not None:
                    beside.unlink()
                raise
        except FileExistsError:
            continue
        return clip
    raise AssertionError("unreachable: itertools.count() never ends")


def remove_oldest(folder: Path, prefix: str, max_bytes: int) -> list[Path]:
    """Delete the oldest clips of one ``prefix`` until the rest fit into ``max_bytes``; returns what went.

    Only clips whose note names the prefix count, with their notes; the newest always stays.
    """
    clips: list[tuple[int, str, Path, int]] = []
    for note in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(note.read_text())
            if isinstance(content, dict) and content.get("prefix") == prefix:
                clip = folder / Path(content["video"]).name
                stat = clip.stat()
                clips.append((stat.st_mtime_ns, clip.name, note, stat.st_size + note.stat().st_size))
    clips.sort()
    total, removed = sum(size for *_, size in clips), []
    for _, name, note, size in clips[:-1]:
        if total <= max_bytes:
            break
        (folder / name).unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        removed.append(folder / name)
        total -= size
    return removed


def _write_new(path: Path, note: Mapping[str, Any]) -> None:
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_text(json.dumps(note, indent=2, default=plain) + "\n")
        move_new(part, path)
    finally:
        part.unlink(missing_ok=True)
