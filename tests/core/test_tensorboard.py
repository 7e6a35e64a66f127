"""TensorBoard's event files, read back with its own reader."""

import logging
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marl_tools.core.errors import ConfigError, MissingExtraError, VideoError
from marl_tools.core.tensorboard import TensorBoardTracker, _distinct, require_tensorboard
from tests.core.test_wandb import episode


def read(folder):
    """All events; without this TensorBoard's log would say what it supersedes."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    events = EventAccumulator(str(folder), size_guidance=dict.fromkeys(("scalars", "images", "tensors"), 0))
    events.Reload()
    return events


def curve(folder, name):
    return [(point.step, point.value) for point in read(folder).Scalars(name)]


@pytest.fixture
def tracker(tmp_path):
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    yield tracker
    tracker.finish(0)


def test_an_episode_is_one_point_at_t_end_with_values_per_agent_and_team(tracker):
    tracker.history([episode(25), episode(50)], "train")
    assert curve(tracker.folder, "train/returns/agent_0") == [(25, 25), (50, 50)]
    assert curve(tracker.folder, "train/mean_return") == [(25, 12), (50, 24.5)]
    names = read(tracker.folder).Tags()["scalars"]
    assert {"train/costs/000", "train/violated", "train/first_violation/000", "train/team_cost"} <= set(names)
    assert not [name for name in names if "t_end" in name or "ends" in name or "env_name" in name]


def test_figures_of_an_update_are_points_at_its_step_and_nan_is_a_gap(tracker):
    rows = [
        {"frames": 64, "loss": float("nan"), "groups": {"g": {"lr": 0.5}}},
        {"frames": 128, "loss": 2, "note": "x"},
    ]
    tracker.points(rows, "update", "frames")
    assert curve(tracker.folder, "update/loss") == [(128, 2)]
    assert curve(tracker.folder, "update/groups/g/lr") == [(64, 0.5)]
    assert "update/note" not in read(tracker.folder).Tags()["scalars"]


def test_episodes_that_end_at_one_step_are_all_kept_in_their_order(tracker):
    # TensorBoard shows one value a step.
    tracker.history([episode(24, returns={"a": float(n)}) for n in range(3)], "train")
    tracker.history([episode(48, returns={"a": 9.0})], "train")
    assert curve(tracker.folder, "train/returns/a") == [(22, 0), (23, 1), (24, 2), (48, 9)]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12).map(sorted), st.none() | st.integers(-5, 40))
def test_steps_become_distinct_behind_the_last_one_and_stay_where_there_is_room(steps, last):
    spread = _distinct(steps, last)
    assert all(before < after for before, after in pairwise(spread))
    assert last is None or spread[0] > last
    if last is None or last < min(steps) - len(steps):
        # Never later than it was, nor earlier than those that share its step make it.
        assert all(step - len(steps) < new <= step for step, new in zip(steps, spread, strict=True))
        assert spread[-1] == steps[-1]
    if len(set(steps)) == len(steps) and (last is None or last < steps[0]):
        assert spread == steps


def test_a_resumed_run_goes_on_without_what_lay_beyond_its_checkpoint(tmp_path):
    folder = tmp_path / "tensorboard"
    killed = TensorBoardTracker(folder)
    killed.history([episode(t) for t in (40, 80, 80, 120)], "train")
    killed.evaluation([episode(t) for t in (25, 300)], "random")
    resumed = TensorBoardTracker(folder, frames=80)
    resumed.history([episode(t, returns={"agent_0": -1.0}) for t in (120, 160)], "train")
    resumed.finish(0)
    assert curve(folder, "train/returns/agent_0") == [(40, 40), (79, 80), (80, 80), (120, -1), (160, -1)]
    # Its clock is its own: the run's does not cut it.
    assert curve(folder / "eval-random", "eval/returns/agent_0") == [(25, 25), (300, 300)]
    killed.finish(1)


def test_an_evaluation_made_again_replaces_the_first(tracker):
    tracker.evaluation([episode(t) for t in (25, 50, 75)], "trained")
    tracker.evaluation([episode(t, returns={"agent_0": 0.0}) for t in (20, 40)], "trained")
    assert curve(tracker.folder / "eval-trained", "eval/returns/agent_0") == [(20, 0), (40, 0)]
    assert "eval/returns/agent_0" not in read(tracker.folder).Tags()["scalars"]


def test_a_table_is_markdown_that_no_cell_can_break(tracker):
    tracker.table("certificate", ["who", "estimate"], [["a|b", 0.25], ["team", None]], 64)
    [event] = read(tracker.folder).Tensors("table/certificate")
    assert event.step == 64
    [text] = event.tensor_proto.string_val
    assert text.decode().splitlines() == [
        "| who | estimate |",
        "| --- | --- |",
        "| a\\|b | 0.25 |",
        "| team |  |",
    ]


def make_clip(path, seconds=1):
    from imageio_ffmpeg import get_ffmpeg_exe

    path.parent.mkdir(exist_ok=True)
    source = ["-f", "lavfi", "-i", f"testsrc=size=640x300:rate=10:duration={seconds}"]
    subprocess.run(
        [get_ffmpeg_exe(), "-v", "error", *source, str(path)], check=True, stdin=subprocess.DEVNULL
    )
    return path


def test_a_clip_is_an_animated_preview_and_the_path_of_the_whole(tracker, tmp_path):
    tracker.video(make_clip(tmp_path / "videos" / "final.mp4", seconds=12), "final", 30)
    events = read(tracker.folder)
    [image] = events.Images("video/final")
    assert (image.step, image.width, image.height) == (30, 320, 150)
    (tmp_path / "preview.gif").write_bytes(image.encoded_image_string)
    with Image.open(tmp_path / "preview.gif") as preview:
        assert preview.size == (320, 150)
        # Five frames a second, of the first ten seconds.
        assert preview.n_frames == pytest.approx(50, abs=2)
    [text] = events.Tensors("video/final/file")[0].tensor_proto.string_val
    assert text == b"`videos/final.mp4`"


def test_a_gif_is_shown_as_it_is_and_a_broken_clip_is_an_error_of_the_tracker(tracker, tmp_path):
    Image.new("RGB", (7, 5)).save(tmp_path / "small.gif")
    tracker.video(tmp_path / "small.gif", "small", 1)
    [image] = read(tracker.folder).Images("video/small")
    assert image.encoded_image_string == (tmp_path / "small.gif").read_bytes()
    assert (image.width, image.height) == (7, 5)
    (tmp_path / "torn.mp4").write_bytes(b"torn")
    with pytest.raises(VideoError, match=r"torn\.mp4"):
        tracker.video(tmp_path / "torn.mp4", "torn", 1)


def test_what_was_told_can_be_read_while_the_run_goes_on(tracker):
    tracker.points([{"frames": 1, "x": 1.0}], "update", "frames")
    assert curve(tracker.folder, "update/x") == [(1, 1)]
    tracker.points([{"frames": 2, "x": 2.0}], "update", "frames")
    assert curve(tracker.folder, "update/x") == [(1, 1), (2, 2)]


def test_a_row_without_its_step_is_refused(tracker):
    with pytest.raises(ConfigError, match="row 0 has frames=None"):
        tracker.points([{"x": 1.0}], "update", "frames")


def test_without_the_package_the_error_holds_the_install_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for ask in (require_tensorboard, lambda: TensorBoardTracker(tmp_path / "t")):
        with pytest.raises(MissingExtraError, match=r'pip install "marl-tools\[tensorboard\]"'):
            ask()
    assert list(tmp_path.iterdir()) == []


def test_neither_torch_nor_tensorflow_is_needed(tmp_path):
    code = f"""
import sys
from pathlib import Path
from marl_tools.core.tensorboard import TensorBoardTracker
assert "tensorboard" not in sys.modules
tracker = TensorBoardTracker(Path({str(tmp_path)!r}))
tracker.points([{{"t": 1, "x": 2.0}}], "p", "t"); tracker.finish(0)
print([name for name in ("torch", "tensorflow") if name in sys.modules])
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
