"""Trajectories of whole runs: they agree with the log, also after a resume, and wherever the envs are stepped."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import defaultdict

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError, DiskFullError
from marl_tools.core.io import load_from_file, read_jsonl
from marl_tools.core.segment_files import SegmentWriter, segment_files
from marl_tools.core.segments import read_segment
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.folder import claim_folder, fresh_folder
from marl_tools.experiment.native import native_envs
from marl_tools.experiment.run import _Run, resume, train
from marl_tools.training.segments import SegmentWindows
from marl_tools.vector import SerialVectorEnv, WorkerVectorEnv
from tests.envs_for_tests import Team


def make_team():
    return Team(3, max_cycles=9, deaths={"agent_0": 4})


def make_team_on_a_slow_disk():
    """A process that steps it, told so by its environment, takes a while for every file."""
    if os.environ.get("SLOW_DISK"):
        publish = SegmentWriter._publish

        def slow(self, *args):
            time.sleep(0.01)
            return publish(self, *args)

        SegmentWriter._publish = slow
    return make_team()


class Drifting(Team):
    """Observes how often any of its kind was ever reset, so that no episode can be played again."""

    resets = 0

    def reset(self, seed=None, options=None):
        Drifting.resets += 1
        return super().reset(seed, options)

    def _observe(self, agents):
        return {agent: np.full(2, Drifting.resets, np.float32) for agent in agents}


def make_drifting():
    return Drifting(2, max_cycles=9)


def settings(folder, **changes):
    """96 env steps in 3 updates."""
    return RunConfig.from_flat(
        {
            "env": "tests.experiment.test_trajectories:make_team",
            "timesteps": 96,
            "num_envs": 2,
            "rollouts": 16,
            "hidden": (8,),
            "learning_epochs": 1,
            "mini_batches": 1,
            "video_episodes": 0,
            "final_policy_eval_episodes": 0,
            "trajectories": True,
            "trajectory_segment": (3, 5),
            "out": None if folder is None else str(folder),
            **changes,
        }
    )


def returns_in_files(run):
    """Return and steps of every (copy, episode, agent), and whether its last segment is there."""
    figures = defaultdict(lambda: [0.0, 0, False])
    for path in segment_files(run / "trajectories"):
        segment = read_segment(path)
        for name, agent in segment.agents.items():
            row = figures[segment.env_index, segment.episode, name]
            row[0] += agent.total_reward
            row[1] += len(agent)
            row[2] |= agent.end is not None
    return dict(figures)


def returns_in_log(run):
    return {
        (row["env_index"], row["episode"], agent): [row["returns"][agent], row["lengths"][agent], True]
        for row in read_jsonl(run / "episodes.jsonl")
        for agent in row["returns"]
    }


def check_agreement(run):
    """All of the log is in the files; beyond it those have only the episodes that were open at the end."""
    files, log = returns_in_files(run), returns_in_log(run)
    assert files.items() >= log.items()
    last = {copy: max(episode for other, episode, _ in log if other == copy) for copy, *_ in log}
    assert all(episode == last[copy] + 1 for copy, episode, _ in files.keys() - log.keys())
    agent_steps = sum(row["agent_steps"] for row in read_jsonl(run / "updates.jsonl"))
    assert sum(steps for _, steps, _ in files.values()) == agent_steps
    assert math.isclose(sum(log[key][0] for key in log), sum(files[key][0] for key in log))


def test_a_run_saves_what_its_log_says_and_its_settings_say_that_it_did(tmp_path):
    run = train(settings(tmp_path / "run"))[0].folder
    check_agreement(run)
    names = {path.name.split("-")[0] for path in segment_files(run / "trajectories")}
    assert names == {"env0", "env1"}
    assert load_from_file(run, "config.json")["trajectories"] is True
    assert SegmentWindows(run / "trajectories", length=4).transitions > 0


def test_a_factory_saves_from_whichever_process_it_is_called_in(tmp_path):
    config = settings(tmp_path / "run", trajectory_format="npz-compressed")
    factory = pickle.loads(pickle.dumps(config.saving.saving(config.factory(), tmp_path)))
    envs = SerialVectorEnv(factory, 2)
    envs.reset(seed=0)
    logs = [log for _ in range(20) for log in envs.step({"agent": np.zeros((2, 3), int)}).episodes]
    envs.close()
    files = returns_in_files(tmp_path)
    assert len(logs) == 4
    for log in logs:
        for agent, value in log.returns.items():
            assert files[log.env_index, log.episode, agent] == [value, log.lengths[agent], True]


def test_a_run_saves_nothing_unasked_and_plays_the_same_either_way(tmp_path):
    logs = []
    for saving in (True, False):
        run = train(settings(tmp_path / f"{saving}", trajectories=saving))[0].folder
        assert (run / "trajectories").exists() == saving
        logs.append([{**row, "wall_time": 0} for row in read_jsonl(run / "episodes.jsonl")])
    assert logs[0] == logs[1] != []


def test_what_evaluations_and_films_play_is_not_saved(tmp_path):
    run = train(settings(tmp_path / "run", final_policy_eval_episodes=2))[0].folder
    check_agreement(run)


def test_a_resumed_run_sets_aside_what_it_plays_again(tmp_path):
    run = train(settings(tmp_path / "run"))[0].folder
    before = {path.name for path in segment_files(run / "trajectories")}
    resume(run, timesteps=192, trusted=True)
    files, log = returns_in_files(run), returns_in_log(run)
    assert {key: value for key, value in files.items() if key in log} == log
    aside = {path.name for path in (run / "trajectories" / "replayed").rglob("*.npz")}
    # 48 steps of a copy are five episodes of nine steps and three steps more.
    assert aside
    assert aside < before
    known = {(copy, episode) for copy, episode, _ in log}
    for path in (run / "trajectories" / "replayed").rglob("*.npz"):
        segment = read_segment(path)
        assert segment.t_start < 3
        assert (segment.env_index, segment.episode) in known or segment.episode == 5


def test_a_run_that_is_killed_right_after_a_checkpoint_and_resumed_has_every_transition_once(tmp_path):
    run = tmp_path / "run"
    changes = {
        "env": "tests.experiment.test_trajectories:make_team_on_a_slow_disk",
        "timesteps": 640,
        "checkpoint_every": 1,
    }
    code = f"""
from marl_tools.experiment.run import train
from tests.experiment.test_trajectories import settings
train(settings({str(run)!r}, **{changes!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "SLOW_DISK": "1"})
    updates = run / "updates.jsonl"
    while process.poll() is None and (not updates.exists() or updates.read_bytes().count(b"\n") < 3):
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    resume(run, timesteps=640, trusted=True)
    check_agreement(run)
    assert len({(row["env_index"], row["episode"]) for row in read_jsonl(run / "episodes.jsonl")}) >= 70


def test_the_state_of_workers_is_one_whose_episodes_are_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SLOW_DISK", "1")
    config = settings(tmp_path, env="tests.experiment.test_trajectories:make_team_on_a_slow_disk")
    publish = SegmentWriter._publish
    try:
        envs = WorkerVectorEnv(config.saving.saving(config.factory(), tmp_path), 2, 1)
        try:
            envs.reset(seed=0)
            logs = [log for _ in range(40) for log in envs.step({"agent": np.zeros((2, 3), int)}).episodes]
            envs.state()
            files = returns_in_files(tmp_path)
        finally:
            envs.close()
    finally:
        SegmentWriter._publish = publish
    assert len(logs) == 8
    for log in logs:
        for agent, value in log.returns.items():
            assert files[log.env_index, log.episode, agent] == [value, log.lengths[agent], True]


def test_what_was_played_again_in_vain_is_not_among_the_segments(tmp_path):
    run = train(settings(tmp_path / "run", env="tests.experiment.test_trajectories:make_drifting"))[0].folder
    resume(run, timesteps=192, trusted=True)
    files, log = returns_in_files(run), returns_in_log(run)
    lost = {
        (row["env_index"], row["episode"])
        for row in read_jsonl(run / "episodes.jsonl")
        if "interrupted" in row["ends"].values()
    }
    assert lost == {(0, 5), (1, 5)}
    assert not [key for key in files if key[:2] in lost]
    assert {key: row for key, row in files.items() if key in log} == {
        key: row for key, row in log.items() if key[:2] not in lost
    }
    # The first playing and the repetition of both lie aside.
    aside = [read_segment(path) for path in (run / "trajectories" / "replayed").rglob("*.npz")]
    assert {(segment.env_index, segment.episode) for segment in aside} == lost
    assert len(aside) >= 4


def test_protected_segments_of_a_run_stay_where_they_are(tmp_path):
    run = train(settings(tmp_path / "run"))[0].folder
    latest = segment_files(run / "trajectories")[-1]
    protected = latest.parent / "protected"
    protected.mkdir()
    latest.rename(protected / latest.name)
    resume(run, timesteps=128, trusted=True)
    assert (protected / latest.name).exists()


def test_a_run_that_cannot_save_stops_with_a_word_and_keeps_its_state(tmp_path):
    config = settings(tmp_path / "run", timesteps=100_000)

    def in_the_way(*args):
        folder = claim_folder(*args)
        (folder / "trajectories").write_text("in the way")
        return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("marl_tools.experiment.run.claim_folder", in_the_way)
        with pytest.raises(OSError, match="cannot save trajectories") as fault:
            train(config)
    assert not isinstance(fault.value, DiskFullError)
    assert any("--resume" in note for note in fault.value.__notes__)
    (tmp_path / "run" / "trajectories").unlink()
    resume(tmp_path / "run", timesteps=96, trusted=True)
    check_agreement(tmp_path / "run")


@pytest.mark.parametrize("setting", [(0, 3), (4, 3)])
def test_segments_that_cannot_be_are_refused_before_anything_is_made(tmp_path, setting):
    with pytest.raises(ConfigError, match="trajectory_segment"):
        settings(tmp_path / "run", trajectory_segment=setting)


def test_native_envs_have_no_single_env_to_record(tmp_path):
    with pytest.raises(
        ConfigError, match=r"trajectories with native: .*leave --native or --trajectories out"
    ):
        settings(tmp_path / "run", env="crossing", native=True)
    config = settings(tmp_path / "run", env="crossing")
    with pytest.raises(ConfigError, match="a native env takes no save_trajectories"):
        native_envs(config.saving.saving(config.factory(), tmp_path), 2)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_run_takes_first_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = settings(None)
    run = _Run(config, fresh_folder(config), None)
    # Between the choice of the folder and its claim, another run comes.
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").touch()
    with pytest.raises(ConfigError, match="was taken by a run that began at the same moment"):
        run.train()
    assert not (run.folder / "trajectories").exists()
