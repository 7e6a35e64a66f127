"""What happens to a clip between its last frame and its file: waiting, keeping, telling, making room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_tools.core.clip_files import remove_oldest
from marl_tools.core.types import EpisodeLog
from marl_tools.core.video import ClipWriter

_MAX_ENCODING = 2
"""Ended clips that may still be encoding when the next one starts; each holds a queue and an ffmpeg."""


@dataclass(slots=True)
class Clip:
    """A clip and the log of the episode that it began in; None until that is over."""

    writer: ClipWriter
    log: EpisodeLog | None = None
    released: bool = False


class EndedClips:
    """Clips without further frames, until their episode is over and they have a name.

    Nothing here raises because of a clip or a callback: it is logged and kept in `last_error`.
    """

    def __init__(
        self,
        prefix: str,
        *,
        keep: Callable[[EpisodeLog], bool] | None,
        on_saved: Callable[[Path, EpisodeLog], None] | None,
        max_bytes: int | None,
        verbose: bool,
    ) -> None:
        self.prefix, self.keep, self.on_saved = prefix, keep, on_saved
        self.max_bytes, self.verbose = max_bytes, verbose
        self.clips: list[Clip] = []
        self.last_error: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Threads and processes stay with the process that started them.
        return {**self.__dict__, "clips": []}

    def add(self, clip: Clip) -> None:
        """Take over a clip; from here on it gets no more frames."""
        clip.writer.end()
        if clip.writer.frames:
            self.clips.append(clip)
        elif not clip.writer.error:
            _log(f"{clip.writer.path.name} had no frame: nothing was saved", "WARNING")

    def make_room(self) -> None:
        """Wait while too many clips are still being encoded, so that memory stays bounded."""
        encoding = [clip for clip in self.clips if not clip.writer.encoded.is_set()]
        for clip in encoding[: len(encoding) - _MAX_ENCODING + 1]:
            clip.writer.wait()

    def collect(self, *, wait: bool = False) -> None:
        """Release the clips whose log is known, and report those that have become files or failed."""
        for clip in self.clips:
            if clip.log and not clip.released:
                clip.released = True
                if self._wanted(clip.log):
                    clip.writer.release(_note(clip.log, self.prefix))
                else:
                    clip.writer.discard()
            if wait:
                clip.writer.wait()
        done = [clip for clip in self.clips if clip.writer.done]
        self.clips = [clip for clip in self.clips if not clip.writer.done]
        for clip in done:
            self._report(clip)

    def _wanted(self, log: EpisodeLog) -> bool:
        try:
            return self.keep is None or bool(self.keep(log))
        except Exception as error:
            self._failed(f"keep({log.env_name}, episode {log.episode}) raised, the clip is kept", error)
            return True

    def _report(self, clip: Clip) -> None:
        path = clip.writer.saved
        if clip.writer.error:
            self.last_error = clip.writer.error
            _log(str(clip.writer.error), "ERROR")
        if path is None:
            return
        if self.verbose:
            _log(f"saved {path} ({clip.writer.frames} frames)", "INFO")
        try:
            if self.on_saved and clip.log:
                self.on_saved(path, clip.log)
        except Exception as error:
            self._failed(f"on_saved({path.name}) raised", error)
        try:
            if self.max_bytes is not None:
                remove_oldest(path.parent, self.prefix, self.max_bytes)
        except OSError as error:
            self._failed(f"could not make room in {path.parent}", error)

    def _failed(self, message: str, error: Exception) -> None:
        self.last_error = error
        _log(f"{message}: {error}", "ERROR", error)


def _note(log: EpisodeLog, prefix: str) -> dict[str, Any]:
    """The ``.json`` beside a clip."""
    return {
        "prefix": prefix,
        "env": log.env_name,
        "env_index": log.env_index,
        "seed": log.seed,
        "split": log.split,
        "episode": log.episode,
        "t_start": log.t_start,
        "t_end": log.t_end,
        "length": log.length,
        "returns": log.returns,
        "costs": log.costs,
        "lengths": log.lengths,
        "ends": log.ends,
    }


def _log(message: str, priority: str, error: Exception | None = None) -> None:
    from marl_tools.core.logging import log

    log(message, type="video", priority=priority, exception=error)
