"""`RecordVideo`'s callbacks: keep, on_saved, gc_trigger, the log lines, and the cap on the folder."""

from __future__ import annotations

import gc

from marl_tools.core.wrappers.record_video_parallel import RecordVideo
from tests.core.film import Film, clips, every, numbers
from tests.envs_for_tests import play

FRAMES = [0, 1, 2, 3, 4, 5]


def test_only_the_episodes_that_keep_wants_are_kept(tmp_path):
    seen = []

    def odd(log):
        seen.append(log.episode)
        return log.episode % 2 == 1

    env = RecordVideo(Film(), tmp_path, every, keep=odd)
    for _ in range(4):
        play(env)
    env.close()
    assert seen == [0, 1, 2, 3]
    assert set(clips(tmp_path)) == {"rl-video-episode-1", "rl-video-episode-3"}
    assert len(list(tmp_path.iterdir())) == 4


def test_a_keep_that_raises_keeps_the_clip(tmp_path, told):
    env = RecordVideo(Film(), tmp_path, keep=lambda log: log.nothing)
    play(env)
    env.close()
    assert clips(tmp_path) == {"rl-video-episode-0": FRAMES}
    assert told[0][0] == "ERROR"
    assert "keep" in told[0][1]


def test_on_saved_gets_the_whole_file_and_the_log_of_its_episode(tmp_path):
    calls = []
    env = RecordVideo(
        Film(), tmp_path, every, on_saved=lambda path, log: calls.append((path, numbers(path), log))
    )
    play(env, seed=3)
    play(env, seed=0)
    env.close()
    assert [path.name for path, *_ in calls] == ["rl-video-episode-0.mp4", "rl-video-episode-1.mp4"]
    assert [shown[0] for _, shown, _ in calls] == [0, 6]
    assert [log.seed for *_, log in calls] == [3, 0]
    assert [log.returns for *_, log in calls] == [{"agent_0": 15.0, "agent_1": 15.0}] * 2


def test_an_on_saved_that_raises_is_told_and_the_training_goes_on(tmp_path, told):
    def upload(path, log):
        raise ConnectionError("no network")

    env = RecordVideo(Film(), tmp_path, every, on_saved=upload)
    play(env)
    play(env)
    env.close()
    assert [priority for priority, _ in told] == ["ERROR", "ERROR"]
    assert "no network" in told[0][1]
    assert isinstance(env.last_error, ConnectionError)
    assert len(clips(tmp_path)) == 2


def test_a_logger_that_is_not_disabled_tells_each_clip(tmp_path, told):
    env = RecordVideo(Film(), tmp_path, disable_logger=False)
    play(env)
    env.close()
    assert told == [("INFO", f"saved {tmp_path / 'rl-video-episode-0.mp4'} (6 frames)")]


def test_a_recording_without_frames_is_a_warning(tmp_path, told):
    env = RecordVideo(Film(), tmp_path, episode_trigger=lambda n: False)
    env.start_recording("empty")
    env.stop_recording()
    env.close()
    assert told == [("WARNING", "empty.mp4 had no frame: nothing was saved")]
    assert not list(tmp_path.iterdir())


def test_max_bytes_removes_the_oldest_clips_of_this_prefix_only(tmp_path):
    for prefix in ("other", "mine"):
        env = RecordVideo(
            Film(), tmp_path, every, name_prefix=prefix, max_bytes=1 if prefix == "mine" else None
        )
        for _ in range(3):
            play(env)
        env.close()
    expected = {"other-episode-0", "other-episode-1", "other-episode-2", "mine-episode-2"}
    assert set(clips(tmp_path)) == expected
    assert {path.stem for path in tmp_path.glob("*.json")} == expected


def test_garbage_is_collected_after_a_clip_as_the_trigger_says(tmp_path, monkeypatch):
    asked, collected = [], []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(True))

    def second(episode):
        asked.append(episode)
        return episode == 1

    env = RecordVideo(Film(), tmp_path, every, gc_trigger=second)
    play(env)
    play(env)
    env.close()
    assert asked == [0, 1]
    assert len(collected) == 1
