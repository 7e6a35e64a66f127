"""Names, the background writer and its faults, and pruning."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.core import segment_files
from marl_tools.core.errors import ConfigError
from marl_tools.core.segment_files import SegmentWriter, env_slug, prune
from marl_tools.core.segments import read_segment
from tests.core.segments import agent, segment

names = segment_files.segment_files


def touched(folder, name, age=0):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


@given(st.text(max_size=80))
@settings(max_examples=100)
def test_a_slug_is_one_harmless_folder_name(name):
    slug = env_slug(name)
    assert slug == os.path.basename(slug)
    assert 0 < len(slug) <= 60
    assert slug.isascii()
    assert not slug.startswith(".")
    assert slug != segment_files.PROTECTED


def test_names_that_are_harmless_stay_and_others_never_meet():
    assert env_slug("simple_spread_v3") == "simple_spread_v3"
    others = [
        "a/b",
        "a\\b",
        "a b",
        "a-b",
        "../a-b",
        "",
        ".",
        "..",
        "protected",
        "é",
        "\ud800",
        "x" * 99,
        "x" * 98,
    ]
    assert len({env_slug(name) for name in others}) == len(others)


def test_files_are_numbered_and_a_later_writer_of_that_name_goes_on(tmp_path):
    for run in range(2):
        writer = SegmentWriter(tmp_path, "env0")
        for number in range(3):
            writer.put(segment(episode=10 * run + number))
        writer.flush()
        assert writer.saved == 3
    files = names(tmp_path)
    assert [path.name for path in files] == [f"env0-{number:08d}.npz" for number in range(6)]
    assert {path.parent.name for path in files} == {"team_v0"}
    assert [read_segment(path).episode for path in files] == [0, 1, 2, 10, 11, 12]


def test_numbers_of_protected_files_are_not_used_again(tmp_path):
    touched(tmp_path, "team_v0/protected/env0-00000041.npz")
    writer = SegmentWriter(tmp_path, "env0")
    writer.put(segment())
    writer.flush()
    assert (tmp_path / "team_v0" / "env0-00000042.npz").exists()


def test_two_writers_of_the_same_name_replace_nothing(tmp_path):
    writers = [SegmentWriter(tmp_path, "same") for _ in range(3)]
    for number in range(12):
        writers[number % 3].put(segment(episode=number))
    for writer in writers:
        writer.flush()
    files = names(tmp_path)
    assert sorted(read_segment(path).episode for path in files) == list(range(12))
    assert not [path for path in (tmp_path / "team_v0").iterdir() if path not in files]


def test_writers_without_a_name_get_different_ones_also_after_pickling(tmp_path):
    writer = SegmentWriter(tmp_path)
    assert (
        len({writer.writer, SegmentWriter(tmp_path).writer, pickle.loads(pickle.dumps(writer)).writer}) == 3
    )
    assert pickle.loads(pickle.dumps(SegmentWriter(tmp_path, "env0"))).writer == "env0"


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.b", "é"])
def test_a_writer_whose_name_is_no_plain_one_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="use letters, digits"):
        SegmentWriter(tmp_path, name)


def test_a_writer_killed_midway_leaves_whole_files_only(tmp_path):
    code = f"""
from marl_tools.core.segment_files import SegmentWriter
from tests.core.segments import segment
writer = SegmentWriter({str(tmp_path)!r}, "w")
while True:
    writer.put(segment())
    if writer.saved > 20:
        print("go", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.stdout.close()
    process.wait()
    files = names(tmp_path)
    assert len(files) > 20
    assert all(read_segment(path).transitions == 6 for path in files)
    # Another takes over where it was.
    writer = SegmentWriter(tmp_path, "w")
    writer.put(segment())
    writer.flush()
    assert [path.name for path in names(tmp_path)] == [
        f"w-{number:08d}.npz" for number in range(len(files) + 1)
    ]


class Disk:
    """A folder whose disk is full, or free again: a file stands where the folder has to be."""

    def __init__(self, tmp_path):
        self.folder = tmp_path / "out"
        self.folder.write_text("in the way")

    def free(self):
        self.folder.unlink()


def test_a_fault_of_the_disk_is_told_once_by_file_and_remedy_and_loses_nothing(tmp_path):
    disk = Disk(tmp_path)
    writer = SegmentWriter(disk.folder, "w")
    for number in range(5):
        writer.put(segment(episode=number))
    for _ in range(2):
        with pytest.raises(
            OSError, match=r"cannot save trajectories in .*out: .*5 finished segments wait.*call flush"
        ) as fault:
            writer.flush()
        assert fault.value.errno in (errno.ENOTDIR, errno.EEXIST)
        assert str(disk.folder) in fault.value.filename
    writer.check()
    disk.free()
    writer.flush()
    assert [read_segment(path).episode for path in names(disk.folder)] == list(range(5))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
def test_a_full_disk_leaves_no_half_file_and_is_written_later(tmp_path, monkeypatch):
    writer = SegmentWriter(tmp_path, "w")
    writer.put(segment(episode=0))
    writer.flush()
    part = tmp_path / "team_v0" / writer._part
    part.symlink_to("/dev/full")
    writer.put(segment(episode=1))
    with pytest.raises(OSError, match=r"No space left on device.*make room") as fault:
        writer.flush()
    assert fault.value.errno == errno.ENOSPC
    assert [path.name for path in (tmp_path / "team_v0").iterdir()] == ["w-00000000.npz"]
    writer.flush()
    assert [read_segment(path).episode for path in names(tmp_path)] == [0, 1]


def test_a_slow_disk_slows_the_caller_down_rather_than_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_files, "QUEUE_SEGMENTS", 3)
    release, most = threading.Event(), []
    writer = SegmentWriter(tmp_path, "w")
    publish = SegmentWriter._publish

    def slow(self, *args):
        release.wait()
        most.append(len(self._pending))
        return publish(self, *args)

    monkeypatch.setattr(SegmentWriter, "_publish", slow)
    feeder = threading.Thread(target=lambda: [writer.put(segment(episode=n)) for n in range(12)])
    feeder.start()
    feeder.join(0.2)
    assert feeder.is_alive()
    release.set()
    feeder.join()
    writer.flush()
    assert max(most) <= 4
    assert [read_segment(path).episode for path in names(tmp_path)] == list(range(12))


def test_a_segment_is_written_soon_though_nobody_waits_for_it(tmp_path):
    writer = SegmentWriter(tmp_path, "w")
    writer.put(segment())
    deadline = time.monotonic() + 30
    while not names(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [read_segment(path).episode for path in names(tmp_path)] == [3]


def test_a_big_segment_is_taken_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_files, "QUEUE_BYTES", 10)
    writer = SegmentWriter(tmp_path, "w")
    for _ in range(3):
        writer.put(segment({"a": agent(50)}))
    writer.flush()
    assert writer.saved == 3


def test_the_thread_goes_home_when_idle_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_files, "_IDLE_SECONDS", 0.01)
    writer = SegmentWriter(tmp_path, "idle")
    for count in (1, 2):
        writer.put(segment())
        writer.flush()
        for thread in threading.enumerate():
            if thread.name == "save idle":
                thread.join(10)
        assert "save idle" not in {thread.name for thread in threading.enumerate()}
        assert len(names(tmp_path)) == count


def test_prune_drops_by_counter_within_a_writer_and_by_age_between_writers(tmp_path):
    # Times of copied files say nothing: within a writer the counter decides.
    a = [touched(tmp_path, f"env/a-{n:08d}.npz", age) for n, age in enumerate((50, 90, 10))]
    b = [touched(tmp_path, f"env/b-{n:08d}.npz", age) for n, age in enumerate((70, 40))]
    assert prune(tmp_path, 5) == []
    assert prune(tmp_path, 3) == [b[0], a[0]]
    assert prune(tmp_path / "env", 2) == [a[1]]
    assert prune(tmp_path, 0) == [b[1], a[2]]


def test_prune_leaves_what_is_protected_and_what_is_no_segment(tmp_path):
    kept = [
        touched(tmp_path, name)
        for name in (
            "protected/w-00000000.npz",
            "env/protected/w-00000000.npz",
            "env/model.npz",
            "env/w-1.npz",
            "env/.w-abc.part",
            "deep/er/w-00000000.npz",
        )
    ]
    gone = touched(tmp_path, "env/w-00000001.npz")
    assert prune(tmp_path, 0) == [gone]
    assert all(path.exists() for path in kept)
    assert {path.name for path in names(tmp_path)} == {"w-00000000.npz"}


@pytest.mark.parametrize("max_files", [-1, True, 2.5, None])
def test_prune_refuses_what_is_no_number_of_files(tmp_path, max_files):
    with pytest.raises(ConfigError, match="max_files"):
        prune(tmp_path, max_files)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 3)), max_size=12),
    st.integers(0, 12),
)
@settings(max_examples=40)
def test_prune_keeps_the_number_asked_for_and_each_writers_latest(tmp_path_factory, rows, keep):
    folder = tmp_path_factory.mktemp("prune")
    files = {touched(folder, f"{writer}-{counter:08d}.npz", age) for writer, counter, age in rows}
    gone = set(prune(folder, keep))
    left = files - gone
    assert len(left) == min(keep, len(files))
    assert left == set(folder.iterdir())
    for path in gone:
        assert not any(other.name[0] == path.name[0] and other.name < path.name for other in left)
