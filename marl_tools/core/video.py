"""`ClipWriter`: one clip, encoded frame by frame in the background.

A clip is written to ``<name>.<token>.part`` in its own folder and gets its name when ffmpeg has finished it. If
this process is killed, ffmpeg sees the end of its input and completes the ``.part``: rename it to play it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marl_tools.core.clip_files import publish
from marl_tools.core.encoder import Encoder, load_moviepy
from marl_tools.core.errors import VideoError
from marl_tools.core.frames import Frame, as_rgb, fit
from marl_tools.core.video_formats import FORMATS, exact_rate, format_key

QUEUE_BYTES, QUEUE_FRAMES = 8 * 2**20, 64
"""Frames that wait for the encoder take at most this much memory, but two are always allowed; never more than 64."""

STALL_SECONDS = 60.0
"""An encoder that takes no frame for this long is killed, so that a hung disk cannot hang the training."""


class ClipWriter:
    """Write one clip: `add` frames, then `close`; or use it as a context manager.

    `add` copies the frame, so that envs may reuse their buffers, and returns at once unless the encoder lags
    by more than ``queue_bytes``. The first frame sets the size; one of another size is scaled to it with its
    proportions kept. An mp4 of odd width or height gets its last column or row twice.

    Args:
        path: the wanted file, its suffix one of `FORMATS`. Nothing is ever replaced: if the name is taken the
            clip becomes ``name-1``, ``name-2``, ...; `saved` is the path that it got.
        fps: frames per second, kept exactly (a gif counts in hundredths of a second).
        queue_bytes: bound on the frames that wait for the encoder.
        threads: encoder threads.

    A fault of the encoder raises nothing from `add`: it ends the clip, is kept in `error` and raised by
    `close`. The ``.part`` of a broken clip is removed.

    Raises:
        ConfigError: an unknown suffix or an impossible ``fps``.
        gymnasium.error.DependencyNotInstalled: moviepy is missing.
    """

    def __init__(
        self, path: str | Path, fps: float = 30, *, queue_bytes: int = QUEUE_BYTES, threads: int = 2
    ) -> None:
        self.path = Path(path).absolute()
        self.fps = fps
        self.frames = 0
        self.size = (0, 0)
        self.saved: Path | None = None
        self.error: VideoError | None = None
        self.encoded = threading.Event()
        self._format = FORMATS[format_key(self.path.suffix)]
        self._rate = exact_rate(fps)
        load_moviepy()
        self._queue_bytes, self._threads = queue_bytes, threads
        self._part = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}.part")
        self._pid = os.getpid()
        self._encoder: Encoder | None = None
        self._thread = threading.Thread(target=self._encode, name=f"encode {self.path.name}", daemon=True)
        self._filled: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._spare_buffers = 0
        self._turned = False
        self._ended = self._discarded = self._released = self._settled = False
        self._ended_at = 0
        self._note: Mapping[str, Any] | None = None
        self._lock = threading.Lock()

    def add(self, frame: Any) -> bool:
        """Hand over one frame; False once the clip has ended or its encoder has failed.

        Raises:
            VideoError: the frame is no picture, see `as_rgb`.
        """
        picture = as_rgb(frame)
        if self._ended or self.encoded.is_set() or self._forked:
            return False
        if not self.frames:
            self._begin(picture)
        picture = fit(picture, self.size)
        memory = picture.transpose(1, 0, 2) if self._turned else picture
        buffer = self._buffer(memory.shape)
        if buffer is None:
            return False
        np.copyto(buffer, memory)
        self._filled.put(buffer)
        self.frames += 1
        return True

    def end(self) -> None:
        """No more frames. Returns at once; those that wait are encoded in the background."""
        if self._ended or self._forked:
            return
        self._ended, self._ended_at = True, time.time_ns()
        if self._thread.ident is None:
            self.encoded.set()
        else:
            self._filled.put(None)

    def release(self, note: Mapping[str, Any] | None = None) -> None:
        """End the clip and let it have its name as soon as it is whole. Returns at once.

        A ``note`` goes into ``<clip>.json``, with ``frames``, ``fps`` and ``size`` (width, height) added.
        """
        self.end()
        if not self._forked and not self._released:
            self._note, self._released = note, True
            self._settle()

    def discard(self) -> None:
        """End the clip and leave no file of it."""
        self._discarded = True
        self._kill()
        self.release()

    @property
    def done(self) -> bool:
        """Whether nothing more will happen: the clip has its name, has failed or is discarded."""
        return self._forked or (self._released and self.encoded.is_set() and not self._thread.is_alive())

    def wait(self) -> None:
        """Block until an ended clip is encoded and, if released, has its name."""
        if not self._ended or self._thread.ident is None or self._forked:
            return
        self._thread.join(STALL_SECONDS)
        if self._thread.is_alive():
            self._stalled()
            self._thread.join()

    def close(self, note: Mapping[str, Any] | None = None) -> Path | None:
        """Release the clip, wait for it and return its path; None if it had no frame. Idempotent.

        Raises:
            VideoError: the clip could not be encoded or saved.
        """
        self.release(note)
        self.wait()
        if self.error:
            raise self.error
        return self.saved

    def __enter__(self) -> ClipWriter:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        # A fault of the clip must not hide the exception that is on its way.
        with contextlib.suppress(VideoError) if kind else contextlib.nullcontext():
            self.close()

    @property
    def _forked(self) -> bool:
        """Whether this is a forked child's copy: the clip belongs to the parent."""
        return self._pid != os.getpid()

    def _begin(self, picture: Frame) -> None:
        height, width = picture.shape[:2]
        self.size = (width, height)
        self._spare_buffers = max(2, min(QUEUE_FRAMES, self._queue_bytes // (height * width * 3)))
        # pygame hands out transposed views. Copying them as they lie in memory is thirty times faster than
        # turning them here, and ffmpeg turns them in passing.
        self._turned = not picture.flags.c_contiguous and picture.transpose(1, 0, 2).flags.c_contiguous
        self._thread.start()

    def _buffer(self, shape: tuple[int, ...]) -> Frame | None:
        """A buffer that the encoder is done with, or a new one within the bound; None once it has failed."""
        try:
            return self._free.get(block=not self._spare_buffers, timeout=STALL_SECONDS)
        except queue.Empty:
            if not self._spare_buffers:
                self._stalled()
                return None
        self._spare_buffers -= 1
        return np.empty(shape, np.uint8)

    def _stalled(self) -> None:
        self.error = VideoError(
            f"clip {self.path.name} is lost: ffmpeg took nothing for {STALL_SECONDS:.0f} s"
        )
        self._kill()

    def _kill(self) -> None:
        if self._encoder and not self._forked:
            self._encoder.kill()

    def _encode(self) -> None:
        """The background thread, from the first frame until the file has its name or is gone."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream()
        except Exception as error:
            self._fail(error)
        finally:
            self.encoded.set()
            # Wakes an `add` that waits for a buffer.
            self._free.put(None)
            self._settle()

    def _stream(self) -> None:
        encoder = self._encoder = Encoder(
            self._part, self._format, self._rate, self.size, turned=self._turned, threads=self._threads
        )
        try:
            while (
                (buffer := self._filled.get()) is not None and not self._discarded and encoder.write(buffer)
            ):
                self._free.put(buffer)
        finally:
            encoder.finish()

    def _fail(self, error: Exception) -> None:
        if not self._discarded and not self.error:
            self.error = VideoError(f"clip {self.path.name} in {self.path.parent} is lost: {error}")

    def _settle(self) -> None:
        """Name or remove the file: done by whichever comes second, the end of the encoding or the release."""
        with self._lock:
            if self._settled or not (self._released and self.encoded.is_set()):
                return
            self._settled = True
        try:
            if self.frames and not self._discarded and not self.error:
                # Clips are as old as what they show: one that was filmed earlier may be encoded later.
                os.utime(self._part, ns=(self._ended_at, self._ended_at))
                self.saved = publish(self._part, self.path, self._full_note())
        except Exception as error:
            self._fail(error)
        finally:
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)

    def _full_note(self) -> dict[str, Any] | None:
        if self._note is None:
            return None
        return {**self._note, "frames": self.frames, "fps": self.fps, "size": self.size}
