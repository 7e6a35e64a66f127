"""`ClipWriter`: a file holds exactly the frames that were added, whatever their kind and rate."""

from __future__ import annotations

import json
import re
import sys
import threading
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled

from marl_tools.core.clip_files import file_stem, remove_oldest
from marl_tools.core.encoder import Encoder
from marl_tools.core.errors import ConfigError, VideoError
from marl_tools.core.frames import tile
from marl_tools.core.video import ClipWriter
from marl_tools.core.video_formats import exact_rate, format_key
from tests.core.film import SIZE, decode, facts, ffmpegs, numbers, picture, rgb


def write(path, frames, **options):
    with ClipWriter(path, **options) as clip:
        for frame in frames:
            assert clip.add(frame)
    return clip.saved


@pytest.mark.parametrize("fps", [0.5, 10, 23.976, 29.97, 30000 / 1001, 30, 60, 240])
def test_every_frame_is_there_once_in_order_at_its_exact_rate(tmp_path, fps):
    path = write(tmp_path / "clip.mp4", map(rgb, range(70)), fps=fps)
    assert numbers(path) == list(range(70))
    hours, minutes, seconds = re.search(r"Duration: (\d+):(\d+):([\d.]+)", facts(path)).groups()
    assert int(hours) * 3600 + int(minutes) * 60 + float(seconds) == pytest.approx(70 / fps, abs=0.011)


@pytest.mark.parametrize("suffix", [".webm", ".gif"])
@pytest.mark.parametrize("fps", [10, 29.97, 60])
def test_webm_and_gif_hold_every_frame_too(tmp_path, suffix, fps):
    path = write(tmp_path / f"clip{suffix}", map(rgb, range(40)), fps=fps)
    assert path.suffix == suffix
    assert numbers(path) == list(range(40))


@pytest.mark.parametrize("shape", [(65, 97), (64, 97), (65, 96), (285, 800), (1, 1)])
@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif"])
def test_odd_sizes_play_everywhere(tmp_path, shape, suffix):
    frames = [np.full((*shape, 3), 40 * i, np.uint8) for i in range(5)]
    path = write(tmp_path / f"clip{suffix}", frames)
    film = decode(path)
    assert np.allclose(film.mean(axis=(1, 2, 3)), [0, 40, 80, 120, 160], atol=6)
    height, width = film.shape[1:3]
    assert 0 <= height - shape[0] <= 1
    assert 0 <= width - shape[1] <= 1
    if suffix == ".mp4":
        assert "yuv420p" in facts(path)
        assert "yuv444p" not in facts(path)
        # The line that was added repeats its neighbour.
        assert np.abs(film[:, -1].astype(int) - film[:, 0]).max() < 8


@pytest.mark.parametrize(
    "kind",
    {
        "grey": lambda n: picture(n),
        "grey with a channel": lambda n: picture(n)[..., None],
        "rgba": lambda n: np.dstack([rgb(n), picture(n)]),
        "bool": lambda n: picture(n) > 0,
        "float": lambda n: rgb(n) / 255,
        "int64": lambda n: rgb(n).astype(np.int64),
        "transposed, as pygame": lambda n: np.ascontiguousarray(rgb(n).transpose(1, 0, 2)).transpose(1, 0, 2),
        "flipped twice": lambda n: np.ascontiguousarray(rgb(n)[::-1, ::-1])[::-1, ::-1],
        "fortran order": lambda n: np.asfortranarray(rgb(n)),
        "read-only": lambda n: np.broadcast_to(picture(n)[..., None], (*SIZE, 3)),
    }.items(),
    ids=lambda kind: kind[0],
)
def test_frames_of_any_kind_and_memory_order_show_the_same_picture(tmp_path, kind):
    path = write(tmp_path / "clip.mp4", map(kind[1], range(30)))
    assert numbers(path) == list(range(30))
    assert decode(path).shape == (30, *SIZE, 3)


def test_colours_and_orientation_survive(tmp_path):
    frame = np.zeros((80, 120, 3), np.uint8)
    frame[:40, :60], frame[:40, 60:], frame[40:, :60] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    turned = np.ascontiguousarray(frame.transpose(1, 0, 2)).transpose(1, 0, 2)
    for name, image in (("plain", frame), ("turned", turned)):
        film = decode(write(tmp_path / f"{name}.mp4", [image] * 3))
        assert np.abs(film[-1, 20::40, 30::60].astype(int) - frame[20::40, 30::60]).max() < 12


def test_a_buffer_that_is_reused_gives_different_frames(tmp_path):
    buffer = np.zeros((*SIZE, 3), np.uint8)

    def frames():
        for number in range(60):
            buffer[:] = rgb(number)
            yield buffer

    assert numbers(write(tmp_path / "clip.mp4", frames())) == list(range(60))


def test_a_frame_of_another_size_is_fitted_to_the_first(tmp_path):
    shapes = [SIZE, (32, 48), (128, 192), SIZE]
    path = write(tmp_path / "clip.mp4", [rgb(n, shapes[n % 4]) for n in range(40)])
    assert numbers(path) == list(range(40))
    assert decode(path).shape[1:3] == SIZE


def test_a_grid_of_envs_makes_one_clip(tmp_path):
    path = write(tmp_path / "grid.mp4", (tile([rgb(n), rgb(n + 1)], 1, 2) for n in range(10)))
    assert decode(path).shape == (10, SIZE[0], 2 * SIZE[1], 3)


def test_memory_is_bounded_by_the_queue_whatever_the_length(tmp_path):
    frame = np.zeros((256, 256, 3), np.uint8)
    clip = ClipWriter(tmp_path / "clip.mp4", queue_bytes=10 * frame.nbytes)
    clip.add(frame)
    tracemalloc.start()
    for _ in range(300):
        assert clip.add(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    clip.close()
    # The queue, and what moviepy copies of the frame that it writes.
    assert peak < 13 * frame.nbytes
    assert len(decode(clip.saved)) == 301


def test_two_frames_may_wait_even_if_they_are_larger_than_the_bound(tmp_path):
    assert numbers(write(tmp_path / "clip.mp4", map(rgb, range(9)), queue_bytes=1)) == list(range(9))


def test_no_thread_process_or_other_file_is_left(tmp_path):
    before = threading.active_count()
    path = write(tmp_path / "new folder" / "clip.mp4", map(rgb, range(9)))
    assert threading.active_count() == before
    assert ffmpegs() == []
    assert list(path.parent.iterdir()) == [path]


def test_the_name_appears_only_with_the_release(tmp_path):
    clip = ClipWriter(tmp_path / "clip.mp4")
    clip.add(rgb(0))
    clip.end()
    clip.wait()
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    assert not clip.done
    clip.release()
    clip.wait()
    assert list(tmp_path.iterdir()) == [clip.saved] == [tmp_path / "clip.mp4"]
    assert clip.done


def test_an_ended_clip_takes_no_more_frames_and_closes_twice(tmp_path):
    clip = ClipWriter(tmp_path / "clip.mp4")
    clip.add(rgb(0))
    assert clip.close() == clip.close() == tmp_path / "clip.mp4"
    assert not clip.add(rgb(1))
    assert numbers(clip.saved) == [0]


def test_a_clip_without_frames_leaves_no_file(tmp_path):
    with ClipWriter(tmp_path / "clip.mp4") as clip:
        pass
    assert clip.saved is clip.error is None
    assert clip.done
    assert not list(tmp_path.iterdir())


def test_a_discarded_clip_leaves_no_file_and_is_no_error(tmp_path):
    clip = ClipWriter(tmp_path / "clip.mp4")
    for number in range(20):
        clip.add(rgb(number))
    clip.discard()
    assert clip.close() is None
    assert clip.error is None
    assert not list(tmp_path.iterdir())


def test_an_exception_in_the_block_saves_the_frames_so_far(tmp_path):
    def frames():
        yield rgb(0)
        yield rgb(1)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        write(tmp_path / "clip.mp4", frames())
    assert numbers(tmp_path / "clip.mp4") == [0, 1]


def test_the_note_tells_frames_rate_and_size(tmp_path):
    clip = ClipWriter(tmp_path / "a.b.mp4", fps=29.97)
    clip.add(rgb(0))
    clip.close({"env": "film", "seed": np.int64(7)})
    assert json.loads((tmp_path / "a.b.json").read_text()) == {
        "video": "a.b.mp4",
        "env": "film",
        "seed": 7,
        "frames": 1,
        "fps": 29.97,
        "size": [96, 64],
    }


def test_only_the_oldest_of_the_prefix_make_room(tmp_path):
    for number in range(4):
        clip = ClipWriter(tmp_path / f"mine-{number}.mp4")
        clip.add(rgb(number))
        clip.close({"prefix": "mine"})
    for name in ("foreign.mp4", "mine-9.mp4", "torn.json", "list.json"):
        (tmp_path / name).write_text("[]" if name == "list.json" else "{")
    one = sum(path.stat().st_size for path in tmp_path.glob("mine-3.*"))
    assert [path.name for path in remove_oldest(tmp_path, "mine", round(2.5 * one))] == [
        "mine-0.mp4",
        "mine-1.mp4",
    ]
    assert [path.name for path in remove_oldest(tmp_path, "mine", 1)] == ["mine-2.mp4"]
    left = {"mine-3.mp4", "mine-3.json", "foreign.mp4", "mine-9.mp4", "torn.json", "list.json"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_clip_is_as_old_as_what_it_shows_also_when_it_is_encoded_last(tmp_path, monkeypatch):
    finish, later = Encoder.finish, threading.Event()

    def finish_slowly(encoder):
        if encoder is first._encoder:
            later.wait(10)
        finish(encoder)

    monkeypatch.setattr(Encoder, "finish", finish_slowly)
    first, second = (ClipWriter(tmp_path / f"mine-{number}.mp4") for number in range(2))
    for clip in (first, second):
        clip.add(rgb(0))
        clip.end()
    second.close({"prefix": "mine"})
    later.set()
    first.close({"prefix": "mine"})
    assert [path.name for path in remove_oldest(tmp_path, "mine", 1)] == ["mine-0.mp4"]


def test_a_missing_moviepy_is_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy.video.io.ffmpeg_writer", None)
    with pytest.raises(DependencyNotInstalled, match="pip install moviepy"):
        ClipWriter(tmp_path / "clip.mp4")


def test_rates_are_exact_fractions():
    assert exact_rate(29.97) == Fraction(2997, 100)
    assert exact_rate(30000 / 1001) == Fraction(30000, 1001)
    assert exact_rate(np.float32(0.5)) == Fraction(1, 2)


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf"), 1001, "fast", None])
def test_impossible_rates_are_refused(fps):
    with pytest.raises(ConfigError, match="no frame rate"):
        exact_rate(fps)


def test_formats_are_known_by_suffix_with_or_without_the_dot():
    assert format_key("mp4") == format_key(".MP4") == ".mp4"
    with pytest.raises(ConfigError, match=r"'\.mp5'.*\.mp4"):
        format_key(".mp5")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\\b", "a\0"])
def test_names_that_leave_the_folder_are_refused(name):
    with pytest.raises(ConfigError, match="no file name"):
        file_stem(name)


def test_a_frame_that_is_no_picture_is_an_error_at_once(tmp_path):
    with ClipWriter(tmp_path / "clip.mp4") as clip:
        clip.add(rgb(0))
        with pytest.raises(VideoError, match="None"):
            clip.add(None)
    assert numbers(clip.saved) == [0]
