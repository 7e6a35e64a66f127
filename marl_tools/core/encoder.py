"""One ffmpeg that is fed raw frames through moviepy's streaming writer. The only module that imports moviepy.

Added to that writer: the exit code and the error text, an exact rate, and no harm from signals and forks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

from marl_tools.core.errors import VideoError
from marl_tools.core.frames import Frame
from marl_tools.core.video_formats import MAX_FPS, VideoFormat, ffmpeg_options

_pipes: set[int] = set()


def load_moviepy() -> Any:
    """moviepy's streaming writer.

    Raises:
        gymnasium.error.DependencyNotInstalled: moviepy, or the ffmpeg that it needs, is missing.
    """
    try:
        from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter
    except (ImportError, RuntimeError) as error:
        from gymnasium.error import DependencyNotInstalled

        raise DependencyNotInstalled(
            f"videos need moviepy and imageio-ffmpeg ({error}): run `pip install moviepy imageio-ffmpeg`"
        ) from error
    return FFMPEG_VideoWriter


class Encoder:
    """Encode frames of one size to ``path``; start it in the thread that will write.

    Args:
        path: the file that ffmpeg writes; one that exists is overwritten.
        size: (width, height) of the pictures.
        turned: frames arrive as arrays (width, height, 3), as pygame lays them out.

    Raises:
        OSError: ffmpeg cannot be started.
    """

    def __init__(
        self,
        path: Path,
        video_format: VideoFormat,
        rate: Fraction,
        size: tuple[int, int],
        *,
        turned: bool,
        threads: int,
    ) -> None:
        _block_signals()
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        try:
            self._writer = load_moviepy()(
                str(path),
                size[::-1] if turned else size,
                # Any rate above the real one: a filter sets the timestamps, for moviepy rounds to two decimals.
                MAX_FPS,
                codec=video_format.codec,
                preset="veryfast",
                threads=threads,
                logfile=self._log,
                ffmpeg_params=ffmpeg_options(video_format, rate, size, turned=turned),
            )
        except BaseException:
            self._log.close()
            raise
        self._process: subprocess.Popen[bytes] = self._writer.proc
        self._pipe: int = self._writer.proc.stdin.fileno()
        _pipes.add(self._pipe)
        self._written = 0
        self._broken = False

    def write(self, frame: Frame) -> bool:
        """Write one frame, blocking while ffmpeg is busy; False when it is gone, `finish` then says why."""
        try:
            self._writer.write_frame(frame)
        except OSError:
            self._broken = True
            return False
        self._written += 1
        return True

    def finish(self) -> None:
        """End the input and wait for ffmpeg.

        Raises:
            VideoError: it did not end well; with its exit code, or the signal that killed it, and its words.
        """
        _pipes.discard(self._pipe)
        # moviepy's close does not wait if the last flush fails, and looks at no exit code.
        with contextlib.suppress(OSError):
            self._writer.close()
        code = self._process.wait()
        with self._log:
            if code or self._broken:
                self._log.seek(0)
                ending = (
                    f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                )
                words = self._log.read().strip()[-500:]
                raise VideoError(f"ffmpeg {ending} after {self._written} frames. {words}".strip())

    def kill(self) -> None:
        """End ffmpeg at once, from any thread."""
        self._process.kill()


def _block_signals() -> None:
    """ffmpeg inherits this: Ctrl-C reaches the whole process group and would end the clip before its last frames."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def _let_go_of_pipes() -> None:
    """In a forked child: as long as it held ffmpeg's input open, no clip of the parent could end."""
    null = os.open(os.devnull, os.O_WRONLY)
    for pipe in _pipes:
        os.dup2(null, pipe, inheritable=False)
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_pipes)
