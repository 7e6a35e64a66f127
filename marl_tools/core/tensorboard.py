"""Tracking with TensorBoard; the only module that imports it. Needs neither torch nor TensorFlow, no thread and no server.

Event files are written record by record and flushed after each call, so a killed run loses nothing and a live one can be watched.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_tools.core.errors import MissingExtraError, VideoError
from marl_tools.core.io import create_dir
from marl_tools.core.points import STEP_METRIC, check_steps, flatten, rows_of_history
from marl_tools.core.types import EpisodeLog

_PREVIEW = "fps=5,scale='min(320,iw)':-2,split[a][b];[a]palettegen[p];[b][p]paletteuse"
_PREVIEW_SECONDS = 10


def require_tensorboard() -> None:
    """Raises:
    MissingExtraError: TensorBoard is not installed.
    """
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            'use_tensorboard needs TensorBoard: run `pip install "marl-tools[tensorboard]"`, or leave it out'
        ) from error


class TensorBoardTracker:
    """Event files in ``folder``, for ``tensorboard --logdir``.

    - TensorBoard keeps one value a step and curve: of several episodes that end at the same env step, all but the last are
      drawn a step earlier each. Curves of what is no finite number have a gap.
    - An evaluation is a run of its own there, in ``folder/eval-<name>``, so that random and trained teams share charts.
    - Tables are Markdown among the texts. Clips are animated GIFs of at most ten seconds among the images, with the path of the
      whole clip as a text.

    Args:
        frames: env steps at which the run begins or goes on. What an earlier sitting wrote of later ones is superseded.

    Raises:
        MissingExtraError: TensorBoard is not installed.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, *, frames: int = 0) -> None:
        require_tensorboard()
        self.folder = folder
        self._events = EventFile(folder, frames + 1)
        self._last: dict[str, int] = {}

    def points(self, rows: Sequence[Mapping[str, Any]], prefix: str, step_metric: str) -> None:
        self._draw(self._events, self._last, rows, prefix, step_metric)

    def history(self, episodes: Sequence[EpisodeLog], prefix: str) -> None:
        self._draw(self._events, self._last, rows_of_history(episodes), prefix, STEP_METRIC)

    def evaluation(self, episodes: Sequence[EpisodeLog], name: str) -> None:
        events = EventFile(self.folder / f"eval-{name}", 0)
        try:
            self._draw(events, {}, rows_of_history(episodes), "eval", STEP_METRIC)
        finally:
            events.close()

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], t: int) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        self._events.text(
            f"table/{name}", "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines), t
        )

    def video(self, path: Path, name: str, t: int) -> None:
        shown = os.path.relpath(path, self.folder.parent)
        # Under the image's own name TensorBoard would show neither.
        self._events.text(f"video/{name}/file", f"`{shown}`", t)
        self._events.gif(f"video/{name}", _preview(path), t)

    def finish(self, exit_code: int) -> None:
        self._events.close()

    def _draw(
        self,
        events: EventFile,
        last: dict[str, int],
        rows: Iterable[Mapping[str, Any]],
        prefix: str,
        step_metric: str,
    ) -> None:
        rows = sorted(check_steps(rows, step_metric), key=lambda row: row[step_metric])
        steps = _distinct([int(row[step_metric]) for row in rows], last.get(prefix))
        for row, step in zip(rows, steps, strict=True):
            named = {key: value for key, value in row.items() if key != step_metric}
            events.scalars(dict(flatten(named, prefix)), step)
            last[prefix] = step
        events.flush()


class EventFile:
    """One event file, in TensorBoard's record format.

    Args:
        supersedes: events of this step and later ones in older files of the folder are void.
    """

    def __init__(self, folder: Path, supersedes: int) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        # Files are read in the order of their names.
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((create_dir(folder) / name).open("xb"))
        self._event = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
        self._write(file_version="brain.Event:2")
        self._write(step=supersedes, session_log={"status": "START"})
        self.flush()

    def scalars(self, values: Mapping[str, Any], step: int) -> None:
        """Those of the values that are finite numbers."""
        drawn = [
            {"tag": name, "simple_value": value}
            for name, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        if drawn:
            self._write(step=step, summary={"value": drawn})

    def text(self, name: str, markdown: str, step: int) -> None:
        content = {"dtype": "DT_STRING", "string_val": [markdown.encode()]}
        kind = {"plugin_data": {"plugin_name": "text"}}
        self._write(step=step, summary={"value": [{"tag": name, "metadata": kind, "tensor": content}]})
        self.flush()

    def gif(self, name: str, data: bytes, step: int) -> None:
        width, height = (int.from_bytes(data[at : at + 2], "little") for at in (6, 8))
        image = {"height": height, "width": width, "colorspace": 3, "encoded_image_string": data}
        self._write(step=step, summary={"value": [{"tag": name, "image": image}]})
        self.flush()

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()

    def _write(self, **event: Any) -> None:
        """Parts of an event as dicts under their names in its protocol buffer."""
        self._records.write(self._event(wall_time=time.time(), **event).SerializeToString())


def _distinct(steps: Sequence[int], last: int | None) -> list[int]:
    """Steps in order with no two alike: of equal ones the last keeps its place, and what would not lie behind ``last`` does."""
    spread = list(steps)
    for index in range(len(spread) - 2, -1, -1):
        spread[index] = min(spread[index], spread[index + 1] - 1)
    for index, step in enumerate(spread):
        spread[index] = last = step if last is None else max(step, last + 1)
    return spread


def _preview(path: Path) -> bytes:
    """An animated GIF of the clip's beginning; a clip that is one already, as it is."""
    if path.suffix == ".gif":
        return path.read_bytes()
    from imageio_ffmpeg import get_ffmpeg_exe

    command = [get_ffmpeg_exe(), "-v", "error", "-t", str(_PREVIEW_SECONDS), "-i", str(path), "-vf", _PREVIEW]
    done = subprocess.run(
        [*command, "-f", "gif", "-"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    if done.returncode or not done.stdout:
        raise VideoError(f"no preview of {path}: {done.stderr.decode(errors='replace').strip()[-200:]}")
    return done.stdout


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
