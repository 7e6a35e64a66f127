"""`ClipWriter` when things break: ffmpeg, the disk, the process; and several writers in one folder."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import threading

import numpy as np
import pytest

from marl_tools.core import video, video_formats
from marl_tools.core.errors import VideoError
from marl_tools.core.video import ClipWriter
from tests.core.film import ffmpegs, numbers, rgb, run_script


def feed(clip, frames=400):
    """Add frames until the writer notices that its encoder is gone."""
    return sum(clip.add(rgb(number)) for number in range(frames))


def running(clip):
    """The ffmpeg of an open clip, once it is there."""
    clip.add(rgb(0))
    while not (pids := ffmpegs()):
        assert not clip.encoded.wait(0.01)
    return pids[0]


def assert_lost(clip, folder, words):
    with pytest.raises(VideoError, match=words) as raised:
        clip.close()
    assert raised.value is clip.error
    assert clip.saved is None
    assert list(folder.iterdir()) == []
    assert ffmpegs() == []
    assert not any(thread.name.startswith("encode") for thread in threading.enumerate())


def test_a_killed_ffmpeg_ends_the_clip_without_raising_from_add(tmp_path):
    clip = ClipWriter(tmp_path / "clip.mp4")
    os.kill(running(clip), signal.SIGKILL)
    assert feed(clip) < 400
    assert_lost(clip, tmp_path, r"clip\.mp4 .*killed by SIGKILL after \d+ frames")


def test_an_ffmpeg_killed_after_the_last_frame_is_noticed(tmp_path):
    clip = ClipWriter(tmp_path / "clip.mp4")
    os.kill(running(clip), signal.SIGKILL)
    assert_lost(clip, tmp_path, "SIGKILL")


def test_a_codec_that_ffmpeg_lacks_is_told_in_its_words(tmp_path, monkeypatch):
    broken = dataclasses.replace(video_formats.FORMATS[".mp4"], codec="libx999")
    monkeypatch.setitem(video_formats.FORMATS, ".mp4", broken)
    clip = ClipWriter(tmp_path / "clip.mp4")
    feed(clip)
    assert_lost(clip, tmp_path, "ended with code .*libx999")


def test_a_folder_that_cannot_be_made_is_an_error_of_the_clip(tmp_path):
    (tmp_path / "file").write_text("")
    clip = ClipWriter(tmp_path / "file" / "clip.mp4")
    feed(clip, 9)
    with pytest.raises(VideoError, match="file"):
        clip.close()


def test_a_folder_that_vanishes_before_the_end_is_an_error_of_the_clip(tmp_path):
    folder = tmp_path / "gone"
    clip = ClipWriter(folder / "clip.mp4")
    feed(clip, 9)
    clip.end()
    clip.wait()
    next(folder.iterdir()).unlink()
    folder.rmdir()
    with pytest.raises(VideoError, match=r"clip\.mp4 .*is lost"):
        clip.close()


def noise(clip, frames=60):
    """Frames that do not compress, a few MB of them."""
    rng = np.random.default_rng(0)
    return sum(clip.add(rng.integers(0, 256, (256, 256, 3), np.uint8)) for _ in range(frames))


@pytest.fixture
def full_disk(tmp_path):
    """A disk of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif"])
def test_a_full_disk_is_one_clear_error_and_leaves_no_half_file(full_disk, suffix):
    clip = ClipWriter(full_disk / f"clip{suffix}")
    noise(clip)
    assert_lost(clip, full_disk, "No space left on device")


def test_an_encoder_that_hangs_is_killed_and_does_not_hang_the_caller(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "STALL_SECONDS", 0.3)
    clip = ClipWriter(tmp_path / "clip.mp4", queue_bytes=1)
    os.kill(running(clip), signal.SIGSTOP)
    assert feed(clip) < 400
    assert_lost(clip, tmp_path, "took nothing")


def test_an_encoder_that_hangs_at_the_end_does_not_hang_close(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "STALL_SECONDS", 0.3)
    clip = ClipWriter(tmp_path / "clip.mp4")
    os.kill(running(clip), signal.SIGSTOP)
    assert_lost(clip, tmp_path, "took nothing")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_process_group_does_not_cut_the_clip(tmp_path, number):
    clip = ClipWriter(tmp_path / "clip.mp4")
    os.kill(running(clip), number)
    feed(clip, 60)
    assert numbers(clip.close()) == [0, *range(60)]


def test_an_existing_file_is_never_replaced(tmp_path):
    (tmp_path / "clip.mp4").write_text("precious")
    (tmp_path / "clip-1.json").write_text("precious too")
    clip = ClipWriter(tmp_path / "clip.mp4")
    clip.add(rgb(3))
    assert clip.close({"env": "film"}) == tmp_path / "clip-2.mp4"
    assert numbers(tmp_path / "clip-2.mp4") == [3]
    assert (tmp_path / "clip.mp4").read_text() == "precious"
    assert (tmp_path / "clip-1.json").read_text() == "precious too"
    assert not (tmp_path / "clip.json").exists()
    assert not (tmp_path / "clip-1.mp4").exists()


def test_a_name_taken_at_the_last_moment_is_not_replaced(tmp_path, monkeypatch):
    link = os.link

    def taken_just_before(source, target):
        if target.name == "clip.mp4":
            target.write_text("precious")
        link(source, target)

    monkeypatch.setattr(os, "link", taken_just_before)
    clip = ClipWriter(tmp_path / "clip.mp4")
    clip.add(rgb(3))
    clip.close({"env": "film"})
    assert (tmp_path / "clip.mp4").read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"clip.mp4", "clip-1.mp4", "clip-1.json"}


def test_a_file_system_without_hard_links_will_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for name in ("clip.mp4", "clip-1.mp4"):
        clip = ClipWriter(tmp_path / "clip.mp4")
        clip.add(rgb(4))
        assert clip.close({"env": "film"}) == tmp_path / name
        assert numbers(tmp_path / name) == [4]
    assert len(list(tmp_path.iterdir())) == 4


MANY = """
import sys
from pathlib import Path
from marl_tools.core.video import ClipWriter
from tests.core.film import rgb
writer, folder = int(sys.argv[1]), Path(sys.argv[2])
clips = []
for n in range(4):
    clip = ClipWriter(folder / "clip.mp4")
    clip.add(rgb(10 * writer + n))
    clip.release({"writer": writer})
    clips.append(clip)
for clip in clips:
    clip.close()
"""


def test_processes_that_write_the_same_name_at_once_each_keep_all_their_clips(tmp_path):
    threads = [threading.Thread(target=run_script, args=(MANY, writer, tmp_path)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {"clip.mp4", *(f"clip-{n}.mp4" for n in range(1, 12))}
    assert {path.name for path in tmp_path.glob("*.mp4")} == names
    assert {path.name for path in tmp_path.glob("*.json")} == {name.replace("mp4", "json") for name in names}
    shown = sorted(numbers(path)[0] for path in tmp_path.glob("*.mp4"))
    assert shown == [10 * writer + n for writer in range(3) for n in range(4)]
    assert len(list(tmp_path.iterdir())) == 24


KILLED = """
import os, signal, sys, time
from pathlib import Path
from marl_tools.core.video import ClipWriter
from tests.core.film import ffmpegs, rgb
clip = ClipWriter(Path(sys.argv[1]) / "clip.mp4", queue_bytes=1)
for number in range(300):
    clip.add(rgb(number))
print(ffmpegs()[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_a_whole_video_and_no_ffmpeg(tmp_path):
    result = run_script(KILLED, tmp_path)
    assert result.returncode == -signal.SIGKILL
    wait_for_end(int(result.stdout))
    (part,) = tmp_path.iterdir()
    assert part.suffix == ".part"
    shown = numbers(part.rename(tmp_path / "clip.mp4"))
    assert shown == list(range(len(shown)))
    # All but those that waited in the queue.
    assert len(shown) >= 297


def wait_for_end(pid):
    deadline = threading.Event()
    for _ in range(1000):
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except (ProcessLookupError, FileNotFoundError):
            return
        deadline.wait(0.01)
    raise AssertionError(f"ffmpeg {pid} is still running")


FORKED = """
import os, sys
from pathlib import Path
from marl_tools.core.video import ClipWriter
from tests.core.film import rgb
read, write = os.pipe()
clip = ClipWriter(Path(sys.argv[1]) / "clip.mp4")
clip.add(rgb(0))
while clip._encoder is None:
    pass
child = os.fork()
if child == 0:
    os.close(write)
    os.read(read, 1)
    taken = clip.add(rgb(9))
    clip.close()
    os._exit(bool(taken or clip.saved))
clip.add(rgb(1))
print(clip.close())
os.close(write)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_neither_holds_up_nor_touches_the_parents_clip(tmp_path):
    result = run_script(FORKED, tmp_path)
    assert result.stdout.split() == [str(tmp_path / "clip.mp4"), "0"], result.stderr
    assert numbers(tmp_path / "clip.mp4") == [0, 1]
