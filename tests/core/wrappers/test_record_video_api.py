"""`RecordVideo` as an object: arguments, start and stop, closing, stacking, the overlay, real envs."""

from __future__ import annotations

import inspect
import re

import pytest

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.wrappers.record_video_parallel import RecordVideo
from tests.core.film import Film, clips, decode, episodes, every
from tests.envs_for_tests import check_api, play, real_env, same


def test_the_arguments_are_the_fields_own_in_order_and_default():
    parameters = list(inspect.signature(RecordVideo).parameters.values())
    seed = ["env", "video_folder", "episode_trigger", "step_trigger", "video_length", "name_prefix", "fps"]
    assert [p.name for p in parameters[:9]] == [*seed, "disable_logger", "gc_trigger"]
    assert [p.default for p in parameters[2:8]] == [None, None, 0, "rl-video", None, True]
    assert parameters[8].default(0) is True
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[9:])
    assert not any(p.kind is p.KEYWORD_ONLY for p in parameters[:9])


def test_the_wrapper_changes_nothing_that_it_passes_on(tmp_path):
    bare = play(Film(deaths={"agent_1": 3}), seed=4)
    filmed = RecordVideo(Film(deaths={"agent_1": 3}), tmp_path)
    assert same(play(filmed, seed=4), bare)
    filmed.close()


def test_recording_by_hand_ends_with_stop_and_the_file_is_there_at_once(tmp_path):
    env = RecordVideo(Film(max_cycles=9), tmp_path, episode_trigger=lambda n: False)
    env.start_recording("before the reset")
    env.reset()
    assert env.recording
    env.step({"agent_0": 0, "agent_1": 0})
    env.stop_recording()
    assert not env.recording
    assert clips(tmp_path) == {"before the reset": [0, 1]}
    env.start_recording("first")
    env.step({"agent_0": 0, "agent_1": 0})
    env.start_recording("second")
    env.step({"agent_0": 0, "agent_1": 0})
    env.close()
    assert clips(tmp_path) == {"before the reset": [0, 1], "first": [2], "second": [3]}


def test_stopping_after_the_clip_has_ended_by_itself_waits_for_its_file(tmp_path):
    env = RecordVideo(Film(), tmp_path, episode_trigger=lambda n: False)
    env.start_recording("mine")
    play(env)
    env.stop_recording()
    assert clips(tmp_path) == {"mine": [0, 1, 2, 3, 4, 5]}
    env.close()


def test_two_recorders_in_one_stack_film_the_same(tmp_path):
    inner = RecordVideo(Film(render_mode="rgb_array_list"), tmp_path / "inner")
    episodes(RecordVideo(inner, tmp_path / "outer"), 1)
    for folder in ("inner", "outer"):
        assert clips(tmp_path / folder) == {"rl-video-episode-0": [0, 1, 2, 3, 4, 5]}


def test_the_clip_is_saved_before_the_env_is_closed_and_close_is_idempotent(tmp_path):
    saved_when_closed = []

    class Watched(Film):
        def close(self):
            saved_when_closed.append(sorted(path.name for path in tmp_path.iterdir()))

    env = RecordVideo(Watched(), tmp_path)
    env.reset()
    env.close()
    env.close()
    assert saved_when_closed == [["rl-video-episode-0.json", "rl-video-episode-0.mp4"]]


def test_an_env_that_is_used_again_after_close_is_filmed_and_closed_again(tmp_path):
    film = Film(max_cycles=1)
    env = RecordVideo(film, tmp_path, every)
    episodes(env, 1)
    episodes(env, 1)
    assert len(clips(tmp_path)) == 2
    assert film.closed == 2


def test_the_overlay_shows_another_text_at_every_step_and_spares_the_rest(tmp_path):
    for overlay in (False, True):
        env = Film(20, max_cycles=3, shapes=[(240, 320)])
        episodes(RecordVideo(env, tmp_path, name_prefix=str(overlay), overlay=overlay), 1)
    plain, drawn = (decode(tmp_path / f"{overlay}-episode-0.mp4").astype(int) for overlay in (False, True))
    difference = abs(plain - drawn).max(axis=3) > 60
    assert difference[:, :120, :192].any(axis=(1, 2)).all()
    assert not difference[:, 125:].any()
    assert not difference[:, :, 200:].any()
    texts = drawn[:, :120, :192] > 200
    assert all((texts[i] != texts[i + 1]).any() for i in range(3))


REFUSED = [
    ({"suffix": ".avi"}, "avi"),
    ({"fps": 0}, "fps=0"),
    ({"video_length": -1}, "video_length=-1"),
    ({"max_bytes": 0}, "max_bytes=0"),
    ({"name_prefix": "../up"}, "up"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_impossible_settings_are_refused_before_a_folder_is_made(tmp_path, options, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        RecordVideo(Film(), tmp_path / "videos", **options)
    assert not (tmp_path / "videos").exists()


def test_a_clip_cannot_leave_the_folder(tmp_path):
    env = RecordVideo(Film(), tmp_path / "videos")
    with pytest.raises(ConfigError, match="no file name"):
        env.start_recording("../up")
    assert not env.recording


def test_stepping_before_a_reset_is_an_error_with_the_remedy(tmp_path):
    with pytest.raises(EnvError, match=r"call reset\(\) first"):
        RecordVideo(Film(), tmp_path).step({})


@pytest.mark.parametrize("name", ["simple_spread", "pistonball", "knights_archers_zombies"])
def test_real_envs_keep_to_the_api_while_filmed(tmp_path, name):
    env = RecordVideo(real_env(name, render_mode="rgb_array"), tmp_path, video_length=20)
    check_api(env, 30)
    env.close()
    assert env.last_error is None
    (path,) = tmp_path.glob("*.mp4")
    assert len(decode(path)) == 20
    assert decode(path).std() > 5
