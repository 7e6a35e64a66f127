"""`RecordVideo`: films episodes of a parallel env while they are played, losing no frame and holding few."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from marl_tools.core.clip_files import file_stem
from marl_tools.core.encoder import load_moviepy
from marl_tools.core.errors import ConfigError, EnvError, VideoError
from marl_tools.core.frames import as_rgb
from marl_tools.core.types import EpisodeLog
from marl_tools.core.video_formats import exact_rate, format_key
from marl_tools.core.wrappers.base import ParallelWrapper, env_layers, env_title
from marl_tools.core.wrappers.clips import Clips
from marl_tools.core.wrappers.overlay import draw_panel, panel_lines
from marl_tools.core.wrappers.recorder import EpisodeRecorder

_NO_IMAGE = (None, "human", "ansi")


def capped_cubic_schedule(episode: int) -> bool:
    """Gymnasium's and PettingZoo's default: episodes 0, 1, 8, 27, ... up to 1000, then every 1000th."""
    if episode < 1000:
        return round(episode ** (1 / 3)) ** 3 == episode
    return episode % 1000 == 0


def always(episode: int) -> bool:
    """The default ``gc_trigger``; a function of the module, so that the wrapper can be pickled."""
    return True


class RecordVideo(ParallelWrapper):
    """Film episodes, or stretches of steps, of a parallel env; put it outermost.

    A clip of an episode runs from its reset frame to its terminal frame. Frames are encoded in the background;
    the end of an episode does not wait for that, `stop_recording`, `flush` and `close` do. A clip is named when
    it is whole and its episode is over (or was left by a reset, an exception, `stop_recording` or `close`), with
    a ``.json`` of the same name beside it: env, seed, episode, per-agent returns, costs, lengths and ends, frames,
    fps, size. Existing files are never replaced: the name then ends in ``-1``, ``-2``, ...

    An `EpisodeRecorder` further in supplies the figures; if there is none, the env is wrapped in one.

    Args:
        env: its render mode returns images ("rgb_array") or lists of images ("rgb_array_list").
        video_folder: made if missing.
        episode_trigger: gets the number of the reset, from 0; True films that episode.
        step_trigger: gets the number of the step over all episodes, from 0; True starts filming after it. With
            neither trigger: `capped_cubic_schedule`. A trigger that fires during a clip changes nothing.
        video_length: frames of a clip, over several episodes if need be; 0: until the episode is over.
        name_prefix: clips are called ``<name_prefix>-episode-<n>`` or ``<name_prefix>-step-<n>``.
        fps: None: ``render_fps`` of the env's metadata, else 30. Kept exactly.
        disable_logger: False logs a line for each clip.
        gc_trigger: gets the number of the reset; True collects garbage after a clip.
        suffix: ".mp4" (H.264), ".webm" (VP9) or ".gif".
        overlay: draw step, and return and cost per agent, onto the frames.
        keep: gets the finished log of the episode in which the clip began; False removes the clip.
        on_saved: called with path and log of each clip, in this thread, at the next call after it was named.
        max_bytes: after a clip the oldest of this prefix are removed until the rest fits; the newest stays.

    A fault of the encoder (full disk, killed ffmpeg) or of ``keep`` or ``on_saved`` is logged and kept in
    `last_error`; the training goes on. If the env raises, the frames so far are saved first.

    Raises:
        ValueError: the render mode gives no image (`ConfigError`, also for other unusable arguments).
        gymnasium.error.DependencyNotInstalled: moviepy is missing.
        EnvError: from `reset` and `step`: ``render()`` returned no picture, or `step` before `reset`.
    """

    def __init__(
        self,
        env: Any,
        video_folder: str | os.PathLike[str],
        episode_trigger: Callable[[int], bool] | None = None,
        step_trigger: Callable[[int], bool] | None = None,
        video_length: int = 0,
        name_prefix: str = "rl-video",
        fps: float | None = None,
        disable_logger: bool = True,
        gc_trigger: Callable[[int], bool] | None = always,
        *,
        suffix: str = ".mp4",
        overlay: bool = False,
        keep: Callable[[EpisodeLog], bool] | None = None,
        on_saved: Callable[[Path, EpisodeLog], None] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        mode = getattr(env, "render_mode", None)
        if mode in _NO_IMAGE:
            raise ConfigError(
                f"render_mode={mode!r} of {env_title(env)} gives no images: create the env with render_mode='rgb_array'"
            )
        if video_length < 0:
            raise ConfigError(
                f"video_length={video_length}: pass a number of frames, or 0 for whole episodes"
            )
        if max_bytes is not None and max_bytes <= 0:
            raise ConfigError(f"max_bytes={max_bytes}: pass a number of bytes above 0, or None for no limit")
        rate = fps if fps is not None else (getattr(env, "metadata", None) or {}).get("render_fps") or 30
        exact_rate(rate)
        self.suffix = format_key(suffix)
        self.name_prefix = file_stem(name_prefix)
        load_moviepy()
        recorder = next((layer for layer in env_layers(env) if isinstance(layer, EpisodeRecorder)), None)
        if recorder is None:
            env = recorder = EpisodeRecorder(env)
        super().__init__(env)
        self._recorder = recorder
        self.video_folder = Path(video_folder).absolute()
        self.video_folder.mkdir(parents=True, exist_ok=True)
        if episode_trigger is None and step_trigger is None:
            episode_trigger = capped_cubic_schedule
        self.episode_trigger, self.step_trigger, self.gc_trigger = episode_trigger, step_trigger, gc_trigger
        self.video_length, self.fps, self.overlay = video_length, rate, overlay
        self.episode_id = self.step_id = -1
        self._clips = Clips(
            self.name_prefix, keep=keep, on_saved=on_saved, max_bytes=max_bytes, verbose=not disable_logger
        )
        self._rendered: list[Any] = []
        self._closed = False
        _recorders.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rendered": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _recorders.add(self)

    @property
    def recording(self) -> bool:
        """Whether a clip is open."""
        return self._clips.open is not None

    @property
    def last_error(self) -> Exception | None:
        """The latest fault of a clip or of a callback; it was logged, not raised."""
        return self._clips.last_error

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env; an episode clip that is open is saved, and ``episode_trigger`` may start the next."""
        if self._clips.frames and not self.video_length:
            self._end_clip()
        self._clips.settle(self._log)
        try:
            result = self.env.reset(seed=seed, options=options)
            self.episode_id += 1
            self._closed = False
            self._rendered.clear()
            if not self.recording and self.episode_trigger and self.episode_trigger(self.episode_id):
                self.start_recording(f"{self.name_prefix}-episode-{self.episode_id}")
            self._capture()
        except BaseException:
            self.stop_recording()
            raise
        self._clips.collect()
        return result

    def step(self, actions: dict[str, Any]) -> Any:
        """Step the env; ``step_trigger`` may start a clip, and the end of the episode ends an episode clip."""
        builder = self._recorder.builder
        if builder.episode < 0:
            raise EnvError(f"step() before reset() of {self}: call reset() first")
        playing = builder.open
        try:
            result = self.env.step(actions)
            self.step_id += 1
            if not self.recording and self.step_trigger and self.step_trigger(self.step_id):
                self.start_recording(f"{self.name_prefix}-step-{self.step_id}")
            self._capture()
        except BaseException:
            self.stop_recording()
            raise
        if playing and not (builder.open and self.env.agents):
            if self.recording and not self.video_length:
                self._end_clip()
            self._clips.settle(self._log)
        self._clips.collect()
        return result

    def render(self) -> Any:
        """What the env renders; lists include the frames that were taken for the clip since the last call."""
        rendered = self.env.render()
        if not isinstance(rendered, list):
            return rendered
        if self._clips.frames:
            self._film(rendered)
        rendered, self._rendered = self._rendered + rendered, []
        return rendered

    def close(self) -> None:
        """Save the open clip, wait for all of them, then close the env. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self.stop_recording()
        finally:
            self.env.close()

    def start_recording(self, video_name: str) -> None:
        """Start a clip with the next frame that is reached by `reset` or `step`; one that is open ends here.

        Raises:
            ConfigError: a name that is no file name.
        """
        path = self.video_folder / f"{file_stem(video_name)}{self.suffix}"
        if self.recording:
            self._end_clip()
        self._clips.begin(path, self.fps)

    def stop_recording(self) -> None:
        """End the open clip, if any, and wait until all have their names. Faults are kept in `last_error`."""
        if self.recording:
            self._end_clip()
        self.flush()

    def flush(self) -> None:
        """Wait until all ended clips have their names; those of a running episode get its figures so far."""
        self._clips.settle(self._log, ended_only=True)
        self._clips.collect(wait=True)

    def __del__(self) -> None:
        # A refused constructor has nothing to save. At interpreter exit the encoders' threads are gone already,
        # and `_save_all` was called before.
        if "_closed" in self.__dict__ and not sys.is_finalizing():
            with suppress(Exception):
                self.stop_recording()

    def _capture(self) -> None:
        if not self.recording:
            return
        rendered = self.env.render()
        if not isinstance(rendered, list):
            self._film([rendered])
            return
        self._rendered += rendered
        # The env may have collected frames since long before the clip.
        self._film(rendered if self._clips.frames else rendered[-1:])

    def _film(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            if not self.recording:
                return
            try:
                taken = self._clips.add(self._with_panel(frame) if self.overlay else frame)
            except VideoError as error:
                raise EnvError(f"render() of {env_title(self.env)}: {error}") from error
            if not taken or self._clips.frames == self.video_length:
                self._end_clip()

    def _with_panel(self, frame: Any) -> Any:
        builder = self._recorder.builder
        return draw_panel(as_rgb(frame), panel_lines(builder.length, builder.returns, builder.costs))

    def _end_clip(self) -> None:
        self._clips.end()
        if self.gc_trigger and self.gc_trigger(self.episode_id):
            gc.collect()

    def _log(self) -> EpisodeLog | None:
        """The log of the episode that is played, as if it were left now, or of the one that is over."""
        builder = self._recorder.builder
        return builder.snapshot(self._recorder.clock.frames) if builder.open else self._recorder.last_episode


_recorders: weakref.WeakSet[RecordVideo] = weakref.WeakSet()


@atexit.register
def _save_all() -> None:
    for recorder in list(_recorders):
        recorder.stop_recording()
