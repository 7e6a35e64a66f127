"""Video formats as ffmpeg options: which codec, exact timing, even sides."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from marl_tools.core.errors import ConfigError, did_you_mean

MAX_FPS = 1000


@dataclass(frozen=True, slots=True)
class VideoFormat:
    """How ffmpeg writes one kind of file; ``even`` formats are padded to even sides."""

    muxer: str
    codec: str
    first_filter: str = ""
    last_filter: str = ""
    options: tuple[str, ...] = ()
    even: bool = False
    max_fps: int = MAX_FPS


FORMATS = {
    # 4:2:0 is what every browser and player takes, and it needs even sides. Without B-frames the file starts at
    # time 0 with no edit list, and costs a sixth less work.
    ".mp4": VideoFormat(
        "mp4", "libx264", "format=yuv420p", options=("-bf", "0", "-movflags", "+faststart"), even=True
    ),
    ".webm": VideoFormat(
        "webm",
        "libvpx-vp9",
        "format=yuv420p",
        options=("-deadline", "realtime", "-cpu-used", "8", "-row-mt", "1", "-crf", "30", "-b:v", "0"),
    ),
    # One palette a frame lets it stream. Players slow down a gif of more than 50 frames a second.
    ".gif": VideoFormat(
        "gif",
        "gif",
        last_filter="split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1",
        max_fps=50,
    ),
}


def format_key(suffix: str) -> str:
    """``suffix`` as a key of `FORMATS`: "mp4" and ".mp4" are the same.

    Raises:
        ConfigError: an unknown format.
    """
    key = "." + str(suffix).lower().lstrip(".")
    if key not in FORMATS:
        raise ConfigError(f"no video format {suffix!r}.{did_you_mean(key, FORMATS)}")
    return key


def exact_rate(fps: float) -> Fraction:
    """The frame rate as a fraction: 29.97 is 2997/100, and the float nearest to 30000/1001 is that fraction.

    Raises:
        ConfigError: not a number above 0 and at most `MAX_FPS`.
    """
    try:
        rate = Fraction(float(fps)).limit_denominator(1001)
    except (TypeError, ValueError, OverflowError):
        rate = Fraction(0)
    if not 0 < rate <= MAX_FPS:
        raise ConfigError(f"fps={fps!r} is no frame rate: pass a number above 0 and at most {MAX_FPS}")
    return rate


def ffmpeg_options(
    video_format: VideoFormat, rate: Fraction, size: tuple[int, int], *, turned: bool
) -> list[str]:
    """Output options for raw frames of ``size`` (width, height); ``turned``: they arrive column by column."""
    rate = min(rate, Fraction(video_format.max_fps))
    width, height = size
    # One tick of the clock a frame, whatever rate the input claims: nothing is repeated, dropped or rounded.
    filters = [f"settb={rate.denominator}/{rate.numerator}", "setpts=N"]
    turn = "transpose=cclock_flip" if turned else ""
    if video_format.even and (width % 2 or height % 2):
        pad = f"pad={width + width % 2}:{height + height % 2}"
        smear = f"fillborders=right={width % 2}:bottom={height % 2}:mode=smear"
        filters += [turn, pad, smear, video_format.first_filter]
    else:
        # Turning half the bytes saves a fifth of the work, but a line of 4:2:0 cannot be added alone.
        filters += [video_format.first_filter, turn]
    filters.append(video_format.last_filter)
    return [
        *("-hide_banner", "-loglevel", "error", "-nostats", "-filter_threads", "1"),
        *("-vf", ",".join(filter(None, filters)), "-r", f"{rate.numerator}/{rate.denominator}"),
        *video_format.options,
        *("-f", video_format.muxer),
    ]
