"""`RecordVideo`: which frames a clip holds, when it starts and ends, and what lies beside it."""

from __future__ import annotations

import json

import pytest

from marl_tools.core.wrappers import AgentTruncation, EpisodeRecorder
from marl_tools.core.wrappers.record_video_parallel import RecordVideo, capped_cubic_schedule
from tests.core.film import SIZE, Film, clips, episodes, every, facts, numbers
from tests.envs_for_tests import play


def note(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def test_a_clip_runs_from_the_reset_frame_to_the_terminal_frame(tmp_path):
    episodes(RecordVideo(Film(max_cycles=5), tmp_path, every), 3)
    assert clips(tmp_path) == {
        "rl-video-episode-0": [0, 1, 2, 3, 4, 5],
        "rl-video-episode-1": [6, 7, 8, 9, 10, 11],
        "rl-video-episode-2": [12, 13, 14, 15, 16, 17],
    }


@pytest.mark.parametrize("fps", [10, 29.97, 30, 60])
def test_no_frame_of_a_long_episode_is_lost_at_any_rate(tmp_path, fps):
    episodes(RecordVideo(Film(max_cycles=150), tmp_path, fps=fps), 1)
    assert clips(tmp_path) == {"rl-video-episode-0": list(range(151))}
    assert note(tmp_path, "rl-video-episode-0")["fps"] == fps
    assert f" {fps} fps" in facts(tmp_path / "rl-video-episode-0.mp4")


def test_agents_that_die_at_different_times_are_filmed_to_the_last(tmp_path):
    deaths = {"agent_0": 2, "agent_1": 4, "agent_2": 7}
    episodes(RecordVideo(Film(3, max_cycles=None, deaths=deaths), tmp_path), 1, seed=0)
    assert clips(tmp_path) == {"rl-video-episode-0": list(range(8))}
    about = note(tmp_path, "rl-video-episode-0")
    assert about["lengths"] == deaths
    assert set(about["ends"].values()) == {"terminated"}


def test_an_env_that_keeps_its_agents_at_the_end_is_not_filmed_beyond_it(tmp_path):
    env = RecordVideo(Film(max_cycles=3, faults=("keep_agents",)), tmp_path)
    env.reset()
    for _ in range(6):
        env.step({"agent_0": 0, "agent_1": 0})
    env.close()
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1, 2, 3]}


def test_agents_retired_by_a_wrapper_end_the_clip(tmp_path):
    env = AgentTruncation(Film(max_cycles=9), steps=4, stand_in=0)
    episodes(RecordVideo(env, tmp_path), 1)
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1, 2, 3, 4]}


def test_the_default_schedule_is_the_fields(tmp_path):
    assert [n for n in range(5001) if capped_cubic_schedule(n)] == [
        *(n**3 for n in range(10)),
        *range(1000, 5001, 1000),
    ]
    episodes(RecordVideo(Film(max_cycles=1), tmp_path), 10)
    assert set(clips(tmp_path)) == {f"rl-video-episode-{n}" for n in (0, 1, 8)}


def test_a_step_trigger_counts_steps_over_all_episodes_from_0(tmp_path):
    asked = []

    def third_and_ninth(step):
        asked.append(step)
        return step in (2, 8)

    episodes(RecordVideo(Film(max_cycles=5), tmp_path, step_trigger=third_and_ninth), 2)
    # The env renders only while it is filmed: the clips hold the frames after steps 3, 4, 5 and 9, 10.
    assert clips(tmp_path) == {"rl-video-step-2": [0, 1, 2], "rl-video-step-8": [3, 4]}
    assert asked == [0, 1, 2, 5, 6, 7, 8]


@pytest.mark.parametrize("length", [1, 3, 6])
def test_video_length_is_the_number_of_frames(tmp_path, length):
    episodes(RecordVideo(Film(max_cycles=5), tmp_path, video_length=length), 1)
    assert clips(tmp_path) == {"rl-video-episode-0": list(range(length))}


def test_a_clip_of_given_length_goes_on_over_episodes(tmp_path):
    env = RecordVideo(Film(max_cycles=3), tmp_path, step_trigger=lambda step: step == 1, video_length=8)
    episodes(env, 4, seed=20)
    assert clips(tmp_path) == {"rl-video-step-1": list(range(8))}
    assert note(tmp_path, "rl-video-step-1")["seed"] == 20


def test_a_trigger_that_fires_during_a_clip_does_not_cut_it(tmp_path):
    env = RecordVideo(Film(max_cycles=4), tmp_path, every, every, video_length=9)
    episodes(env, 2)
    shown = clips(tmp_path)
    assert shown["rl-video-episode-0"] == list(range(9))
    assert sum(map(len, shown.values())) == 10


def test_a_reset_in_the_middle_saves_the_clip_as_interrupted(tmp_path):
    env = RecordVideo(Film(max_cycles=9), tmp_path, every)
    env.reset(seed=1)
    env.step({"agent_0": 0, "agent_1": 0})
    env.reset(seed=2)
    env.close()
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1], "rl-video-episode-1": [2]}
    about = note(tmp_path, "rl-video-episode-0")
    assert about["ends"] == {"agent_0": "interrupted", "agent_1": "interrupted"}
    assert (about["seed"], about["length"], about["frames"]) == (1, 1, 2)


@pytest.mark.parametrize("seed", [0, 7, None])
def test_the_note_tells_env_seed_episode_returns_and_ends(tmp_path, seed):
    episodes(RecordVideo(Film(deaths={"agent_0": 2}), tmp_path, fps=29.97), 1, seed=seed)
    assert note(tmp_path, "rl-video-episode-0") == {
        "video": "rl-video-episode-0.mp4",
        "prefix": "rl-video",
        "env": "film_v0",
        "env_index": 0,
        "seed": seed,
        "split": "train",
        "episode": 0,
        "t_start": 0,
        "t_end": 5,
        "length": 5,
        "returns": {"agent_0": 3.0, "agent_1": 15.0},
        "costs": {"agent_0": 0.0, "agent_1": 0.0},
        "lengths": {"agent_0": 2, "agent_1": 5},
        "ends": {"agent_0": "terminated", "agent_1": "truncated"},
        "frames": 6,
        "fps": 29.97,
        "size": [96, 64],
    }


def test_the_rate_is_the_envs_own_by_default(tmp_path):
    episodes(RecordVideo(Film(), tmp_path), 1)
    assert note(tmp_path, "rl-video-episode-0")["fps"] == 20


def test_figures_come_from_the_recorder_in_the_stack_if_there_is_one(tmp_path):
    recorder = EpisodeRecorder(Film(), "my env", env_index=3, split="eval")
    env = RecordVideo(AgentTruncation(recorder, steps=9, stand_in=0), tmp_path)
    episodes(env, 1)
    about = note(tmp_path, "rl-video-episode-0")
    assert (about["env"], about["env_index"], about["split"]) == ("my env", 3, "eval")
    assert repr(env).count("EpisodeRecorder") == 1


def test_a_short_clip_gets_its_name_when_its_episode_is_over(tmp_path):
    logs = []
    env = RecordVideo(
        Film(max_cycles=9), tmp_path, video_length=2, on_saved=lambda path, log: logs.append(log)
    )
    play(env, seed=5)
    env.flush()
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1]}
    assert note(tmp_path, "rl-video-episode-0")["returns"] == {"agent_0": 45.0, "agent_1": 45.0}
    assert [log.length for log in logs] == [9]
    env.close()


@pytest.mark.parametrize("faults", [{"one_buffer": True}, {"shapes": [SIZE, (32, 48), (128, 192)]}])
def test_a_reused_buffer_or_changing_sizes_cost_no_frame(tmp_path, faults):
    episodes(RecordVideo(Film(max_cycles=80, **faults), tmp_path), 1)
    assert clips(tmp_path) == {"rl-video-episode-0": list(range(81))}


def test_frames_that_come_in_lists_are_all_filmed_and_still_handed_to_the_user(tmp_path):
    env = RecordVideo(Film(max_cycles=4, render_mode="rgb_array_list"), tmp_path, every)
    env.reset()
    seen = list(env.render())
    while env.agents:
        env.step({"agent_0": 0, "agent_1": 0})
        if env.unwrapped.t == 2:
            seen += env.render()
    seen += env.render()
    env.close()
    assert clips(tmp_path) == {"rl-video-episode-0": [0, 1, 2, 3, 4]}
    assert len(seen) == 5


def test_a_clip_that_starts_late_holds_no_frame_collected_before(tmp_path):
    env = Film(max_cycles=6, render_mode="rgb_array_list")
    episodes(RecordVideo(env, tmp_path, step_trigger=lambda step: step == 3), 1)
    assert clips(tmp_path) == {"rl-video-step-3": [4, 5, 6]}


@pytest.mark.parametrize("suffix", ["webm", ".gif"])
def test_other_formats_by_suffix(tmp_path, suffix):
    episodes(RecordVideo(Film(max_cycles=20), tmp_path, suffix=suffix), 1)
    (path,) = tmp_path.glob(f"*{suffix}")
    assert path.stem == "rl-video-episode-0"
    assert numbers(path) == list(range(21))


def test_a_rerun_in_the_same_folder_replaces_nothing(tmp_path):
    for _ in range(3):
        episodes(RecordVideo(Film(), tmp_path), 1)
    frames = [0, 1, 2, 3, 4, 5]
    names = ("rl-video-episode-0", "rl-video-episode-0-1", "rl-video-episode-0-2")
    assert clips(tmp_path) == dict.fromkeys(names, frames)
