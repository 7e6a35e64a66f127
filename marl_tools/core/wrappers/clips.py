"""The clips of one `RecordVideo`: the open one, and those that wait for their end, their log and their name."""

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


class Clips:
    """The open clip, and those that have ended until their episode is over and they have a name.

    Nothing here raises because of an encoder or a callback: it is logged and kept in `last_error`.
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
        self.open: Clip | None = None
        self.ended: list[Clip] = []
        self.last_error: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Threads and processes stay with the process that started them.
        return {**self.__dict__, "open": None, "ended": []}

    @property
    def frames(self) -> int:
        """Frames in the open clip."""
        return self.open.writer.frames if self.open else 0

    def begin(self, path: Path, fps: float) -> None:
        """Open a clip; waits while too many others are still being encoded, so that memory stays bounded."""
        encoding = [clip for clip in self.ended if not clip.writer.encoded.is_set()]
        for clip in encoding[: len(encoding) - _MAX_ENCODING + 1]:
            clip.writer.wait()
        self.open = Clip(ClipWriter(path, fps))

    def add(self, frame: Any) -> bool:
        """Film one frame; False when the open clip can take no more.

        Raises:
            VideoError: the frame is no picture.
        """
        return self.open is not None and self.open.writer.add(frame)

    def end(self) -> None:
        """The open clip gets no more frames."""
        clip, self.open = self.open, None
        if clip is None:
            return
        clip.writer.end()
        # An encoder that cannot start may fail before it has taken the first frame.
        if clip.writer.frames or clip.writer.error:
            self.ended.append(clip)
        else:
            _log(f"{clip.writer.path.name} had no frame: nothing was saved", "WARNING")

    def settle(self, log: Callable[[], EpisodeLog | None], *, ended_only: bool = False) -> None:
        """An episode is over, or left as it stands: give its log to the clips that began in it."""
        began = [clip for clip in self.ended if clip.log is None]
        if self.open and self.frames and self.open.log is None and not ended_only:
            began.append(self.open)
        if began:
            of_episode = log()
            for clip in began:
                clip.log = of_episode

    def collect(self, *, wait: bool = False) -> None:
        """Release the clips whose log is known, and report those that have become files or failed."""
        for clip in self.ended:
            if not clip.released and (clip.log or clip.writer.error):
                self._release(clip)
            if wait:
                clip.writer.wait()
        done = [clip for clip in self.ended if clip.writer.done]
        self.ended = [clip for clip in self.ended if not clip.writer.done]
        for clip in done:
            self._report(clip)

    def _release(self, clip: Clip) -> None:
        clip.released = True
        if clip.writer.error or clip.log is None:
            clip.writer.release()
        elif self._wanted(clip.log):
            clip.writer.release(_note(clip.log, self.prefix))
        else:
            clip.writer.discard()

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
