"""Numbered pictures, an env that renders them, and the numbers read back from a video file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import imageio_ffmpeg
import numpy as np

from tests.envs_for_tests import Team, play

CELLS = 4  # 4 x 4 cells, one bit each: large enough for a lossy codec, and scaled with the picture
SIZE = (64, 96)


def picture(number: int, shape: Sequence[int] = SIZE) -> np.ndarray:
    """A grey picture (height, width) that shows ``number`` in 16 cells."""
    bits = np.array([number >> bit & 1 for bit in range(CELLS * CELLS)], np.uint8).reshape(CELLS, CELLS)
    rows = np.arange(shape[0]) * CELLS // shape[0]
    columns = np.arange(shape[1]) * CELLS // shape[1]
    return bits[rows][:, columns] * np.uint8(255)


def rgb(number: int, shape: Sequence[int] = SIZE) -> np.ndarray:
    return np.repeat(picture(number, shape)[..., None], 3, axis=2)


def decode(path: Path) -> np.ndarray:
    """All frames of a file as a player shows them, (frames, height, width, 3)."""
    # At a constant rate a gap or a wrong time would show as a repeated or missing frame. A gif is timed in
    # hundredths of a second: read what it holds.
    mode = "passthrough" if path.suffix == ".gif" else "cfr"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-fps_mode", mode]
    command += ["-f", "image2pipe", "-c:v", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    width, height = map(int, re.search(r"Video: .* (\d+)x(\d+)", facts(path)).groups())
    return np.frombuffer(data, np.uint8).reshape(-1, height, width, 3)


def numbers(path: Path) -> list[int]:
    """The numbers shown in the frames of a file."""
    frames = decode(path)
    height, width = frames.shape[1:3]
    rows = (np.arange(CELLS) * 2 + 1) * height // (2 * CELLS)
    columns = (np.arange(CELLS) * 2 + 1) * width // (2 * CELLS)
    bits = frames[:, rows][:, :, columns, 1].reshape(len(frames), -1) > 127
    return [sum(int(bit) << place for place, bit in enumerate(frame)) for frame in bits]


def facts(path: Path) -> str:
    """What ffmpeg says of a file: codec, pixel format, size, rate, duration."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-i", str(path)]
    return subprocess.run(command, capture_output=True, text=True).stderr


def ffmpegs() -> list[int]:
    """The process ids of the encoders that this process has running."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # Threads and processes end while they are listed.
        with suppress(FileNotFoundError, ProcessLookupError):
            pids = (task / "children").read_text().split()
            found += [int(pid) for pid in pids if "ffmpeg" in Path(f"/proc/{pid}/comm").read_text()]
    return found


def run_script(source: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """A script in a Python of its own, with the tests importable."""
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": str(root)},
        **options,
    )


class Film(Team):
    """A `Team` whose n-th rendered frame shows n; ``closed`` tells how often it was closed.

    ``shapes``: of the frames, in turn. ``one_buffer``: every frame is the same array, rewritten.
    ``fail_at``: `step` raises at this step.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "film_v0", "render_fps": 20, "is_parallelizable": True}

    def __init__(
        self,
        n: int = 2,
        *,
        max_cycles: int | None = 5,
        shapes: Sequence[tuple[int, ...]] = (SIZE,),
        one_buffer: bool = False,
        fail_at: int | None = None,
        render_mode: str | None = "rgb_array",
        **options: Any,
    ) -> None:
        super().__init__(n, max_cycles=max_cycles, render_mode=render_mode, **options)
        self.shapes, self.fail_at = shapes, fail_at
        self.buffer = np.zeros((*SIZE, 3), np.uint8) if one_buffer else None
        self.rendered = self.closed = 0
        self.collected: list[np.ndarray] = []

    def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
        result = super().reset(seed, options)
        self.collected = [self.draw()] if self.render_mode == "rgb_array_list" else []
        return result

    def step(self, actions: Any) -> Any:
        if self.t + 1 == self.fail_at:
            raise ArithmeticError("the physics broke")
        result = super().step(actions)
        if self.render_mode == "rgb_array_list":
            self.collected.append(self.draw())
        return result

    def render(self) -> Any:
        if self.render_mode == "rgb_array_list":
            frames, self.collected = self.collected, []
            return frames
        return self.draw()

    def draw(self) -> np.ndarray:
        frame = rgb(self.rendered, self.shapes[self.rendered % len(self.shapes)])
        self.rendered += 1
        if self.buffer is not None:
            self.buffer[:] = frame
            return self.buffer
        return frame

    def close(self) -> None:
        self.closed += 1


def every(number: int) -> bool:
    """The trigger that always fires; unlike a lambda it can be pickled."""
    return True


def clips(folder: Path) -> dict[str, list[int]]:
    """The numbers shown in each mp4 of a folder, by name; no half-written file may lie there."""
    assert not list(folder.glob("*.part"))
    return {path.stem: numbers(path) for path in folder.glob("*.mp4")}


def episodes(env: Any, count: int, seed: int | None = None) -> None:
    """Play whole episodes, seeded one after the other, and close the env."""
    for episode in range(count):
        play(env, seed=None if seed is None else seed + episode)
    env.close()
