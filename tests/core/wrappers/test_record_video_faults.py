"""`RecordVideo` when the env, the encoder, a callback or the process fails; what is kept, told and pickled."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import sys

import pytest
from gymnasium.error import DependencyNotInstalled

from marl_tools.core.errors import EnvError, VideoError
from marl_tools.core.wrappers.record_video_parallel import RecordVideo
from tests.core.film import Film, clips, every, ffmpegs, run_script
from tests.envs_for_tests import play

FRAMES = [0, 1, 2, 3, 4, 5]


def test_an_exception_in_step_saves_the_frames_so_far_and_goes_on_up(tmp_path):
    logs = []
    env = RecordVideo(Film(fail_at=4), tmp_path, on_saved=lambda path, log: logs.append(log))
    with pytest.raises(ArithmeticError, match="physics"):
        play(env)
    # Before anything else is called: whoever does not catch it still has the clip.
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1, 2, 3]}
    assert [log.interrupted for log in logs] == [True]
    env.close()
    assert len(clips(tmp_path)) == 1


def test_ctrl_c_in_step_saves_the_frames_so_far(tmp_path):
    class Interrupted(Film):
        def step(self, actions):
            raise KeyboardInterrupt

    env = RecordVideo(Interrupted(), tmp_path)
    env.reset()
    with pytest.raises(KeyboardInterrupt):
        env.step({})
    assert clips(tmp_path) == {"rl-video-episode-0": [0]}
    env.close()


@pytest.mark.parametrize(
    ("frame", "words"), [(None, "film_v0: the frame is None"), ("text", "film_v0: .*no picture")]
)
def test_a_frame_that_is_no_picture_is_an_error_that_names_the_env(tmp_path, frame, words):
    class Blank(Film):
        def draw(self):
            return frame if self.rendered == 2 else super().draw()

    env = RecordVideo(Blank(), tmp_path)
    with pytest.raises(EnvError, match=words):
        play(env)
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1]}
    env.close()


@pytest.mark.parametrize("mode", [None, "human", "ansi"])
def test_a_render_mode_without_images_is_refused_before_a_folder_is_made(tmp_path, mode):
    with pytest.raises(ValueError, match="render_mode='rgb_array'") as raised:
        RecordVideo(Film(render_mode=mode), tmp_path / "videos")
    assert repr(mode) in str(raised.value)
    assert not (tmp_path / "videos").exists()
    # A noisy __del__ of the refused object would be an unraisable error, which fails the test.
    del raised
    gc.collect()


def test_an_env_without_a_render_mode_is_refused_in_the_same_words(tmp_path):
    film = Film()
    del film.render_mode
    with pytest.raises(ValueError, match="render_mode=None"):
        RecordVideo(film, tmp_path)


def test_a_missing_moviepy_is_refused_before_a_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy.video.io.ffmpeg_writer", None)
    with pytest.raises(DependencyNotInstalled, match="pip install moviepy"):
        RecordVideo(Film(), tmp_path / "videos")
    assert not (tmp_path / "videos").exists()


def test_a_killed_encoder_costs_one_clip_and_one_line_and_the_training_goes_on(tmp_path, told):
    env = RecordVideo(Film(max_cycles=40), tmp_path, every)
    env.reset()
    while not ffmpegs():
        pass
    os.kill(ffmpegs()[0], signal.SIGKILL)
    while env.agents:
        env.step({"agent_0": 0, "agent_1": 0})
    play(env)
    env.close()
    assert [len(shown) for shown in clips(tmp_path).values()] == [41]
    assert [priority for priority, _ in told] == ["ERROR"]
    assert "rl-video-episode-0.mp4" in told[0][1]
    assert "SIGKILL" in told[0][1]
    assert isinstance(env.last_error, VideoError)


def test_a_folder_that_was_deleted_is_made_again(tmp_path):
    env = RecordVideo(Film(), tmp_path / "videos", every)
    (tmp_path / "videos").rmdir()
    play(env)
    env.close()
    assert clips(tmp_path / "videos") == {"rl-video-episode-0": FRAMES}


def test_a_folder_that_cannot_be_written_never_stops_the_training(tmp_path, told):
    env = RecordVideo(Film(), tmp_path / "videos", every)
    (tmp_path / "videos").rmdir()
    (tmp_path / "videos").write_text("in the way")
    for _ in range(3):
        play(env)
    env.stop_recording()
    env.close()
    assert [priority for priority, _ in told] == ["ERROR"] * 3


FULL = """
import resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
from marl_tools.core.wrappers.record_video_parallel import RecordVideo
from tests.core.film import Film
from tests.envs_for_tests import play
class Noise(Film):
    rng = np.random.default_rng(0)
    def draw(self):
        return self.rng.integers(0, 256, (256, 256, 3), np.uint8)
env = RecordVideo(Noise(max_cycles=60), sys.argv[1], lambda episode: True)
print([len(play(env)) for _ in range(2)])
env.close()
print(env.last_error)
"""


def test_files_that_cannot_grow_never_stop_the_training_and_leave_no_half_clip(tmp_path):
    result = run_script(FULL, tmp_path)
    assert result.stdout.startswith("[61, 61]\n"), result.stderr
    assert "is lost: ffmpeg was killed by SIGXFSZ" in result.stdout
    for episode in (0, 1):
        assert result.stderr.count(f"rl-video-episode-{episode}.mp4 in") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("again", [lambda env: pickle.loads(pickle.dumps(env)), copy.deepcopy])
def test_a_copy_in_the_middle_of_a_clip_leaves_the_clip_where_it_is(tmp_path, again):
    env = RecordVideo(Film(max_cycles=3), tmp_path)
    env.reset()
    env.step({"agent_0": 0, "agent_1": 0})
    other = again(env)
    assert env.recording
    assert not other.recording
    while other.agents:
        other.step({"agent_0": 0, "agent_1": 0})
    other.close()
    assert not list(tmp_path.glob("*.mp4"))
    while env.agents:
        env.step({"agent_0": 0, "agent_1": 0})
    env.close()
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1, 2, 3]}


def test_an_unpickled_wrapper_films(tmp_path):
    env = pickle.loads(pickle.dumps(RecordVideo(Film(), tmp_path)))
    play(env)
    env.close()
    assert clips(tmp_path) == {"rl-video-episode-0": FRAMES}


def test_a_wrapper_that_is_dropped_without_close_saves_its_clip(tmp_path):
    env = RecordVideo(Film(), tmp_path)
    env.reset()
    del env
    gc.collect()
    assert clips(tmp_path) == {"rl-video-episode-0": [0]}
    assert ffmpegs() == []


FORGOTTEN = """
import sys
from marl_tools.core.wrappers.record_video_parallel import RecordVideo
from tests.core.film import Film
env = RecordVideo(Film(), sys.argv[1], on_saved=lambda path, log: print(path.name, log.length))
env.reset()
env.step({"agent_0": 0, "agent_1": 0})
if len(sys.argv) > 2:
    raise SystemExit(sys.argv[2])
"""


@pytest.mark.parametrize("arguments", [(), ("a failure",)])
def test_a_program_that_ends_without_close_still_has_its_clip(tmp_path, arguments):
    result = run_script(FORGOTTEN, tmp_path, *arguments)
    assert result.stdout == "rl-video-episode-0.mp4 1\n", result.stderr
    assert result.stderr.strip() == "".join(arguments)
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1]}
    assert len(list(tmp_path.iterdir())) == 2


def test_no_more_than_a_few_encoders_run_at_once(tmp_path):
    env = RecordVideo(Film(max_cycles=1), tmp_path, every)
    most = 0
    for _ in range(12):
        play(env)
        most = max(most, len(ffmpegs()))
    env.close()
    assert most <= 3
    assert len(clips(tmp_path)) == 12
    assert ffmpegs() == []


def test_importing_the_wrapper_does_not_import_moviepy():
    script = "import sys, marl_tools.core.wrappers.record_video_parallel; print({'moviepy', 'PIL'} & set(sys.modules))"
    assert run_script(script).stdout == "set()\n"
