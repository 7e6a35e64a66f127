"""Runs that torchrun starts in two processes, against the same runs in one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from marl_tools.core.io import read_jsonl
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import resume, train
from marl_tools.training.checkpoint_folder import CheckpointFolder
from tests.experiment.spread_runs import FAILING, HALF, RUNS
from tests.experiment.test_resume import rows, settings

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


FLAGS = {
    "num_envs": 2,
    "rollouts": 16,
    "timesteps": 192,
    "video_episodes": 0,
    "final_policy_eval_episodes": 0,
}


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHRUN, *map(str, command)], capture_output=True, text=True, timeout=200, check=False
    )


def assert_nearly_same_run(ours: Path, theirs: Path) -> None:
    """The same episodes; weights and figures but for the order of sums."""
    assert rows(ours / "episodes.jsonl") == rows(theirs / "episodes.jsonl")
    for one, other in zip(
        read_jsonl(ours / "updates.jsonl"), read_jsonl(theirs / "updates.jsonl"), strict=True
    ):
        assert one["frames"] == other["frames"]
        assert one["mean_return"] == other["mean_return"] or one["mean_return"] != one["mean_return"]
        for group, figures in other["groups"].items():
            assert one["groups"][group] == pytest.approx(figures, rel=1e-3, abs=1e-5)
    (tensors, state), (others, of_other) = (CheckpointFolder(folder).load() for folder in (ours, theirs))
    for name, tensor in others.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=1e-5, atol=1e-6, msg=name)
    for name in ("frames", "updates", "rng", "best"):
        assert state[name] == of_other[name]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder that two processes have filled, and what was in it before: half a run by one process."""
    folder = tmp_path_factory.mktemp("two")
    train(settings(folder / "half", **RUNS["lagrange-native"], timesteps=HALF))
    done = run("-m", "tests.experiment.spread_runs", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_run_what_one_runs(two, tmp_path, name):
    train(settings(tmp_path / "one", **RUNS[name]))
    assert_nearly_same_run(two / name, tmp_path / "one")
    for file in ("config.json", "evaluation-random.json"):
        theirs = json.loads((tmp_path / "one" / file).read_text())
        assert json.loads((two / name / file).read_text()) == {
            **theirs,
            **({"out": str(two / name)} if "out" in theirs else {}),
        }
    assert json.loads((two / name / "versions.json").read_text())["processes"] == 2
    assert (two / name / "done.json").exists()


@pytest.mark.slow
def test_a_run_begun_by_one_process_is_ended_by_two(two, tmp_path):
    train(settings(tmp_path / "one", **RUNS["lagrange-native"]))
    assert_nearly_same_run(two / "half", tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("shield", "2 processes under torchrun with a shield"),
        ("copies", "2 processes under torchrun, but num_envs=1"),
        ("workers", "2 processes under torchrun with workers=2: take more processes"),
    ],
)
def test_what_does_not_go_in_several_processes_is_refused_before_anything_is_written(two, name, told):
    assert told in (two / f"{name}-0.txt").read_text()
    assert not (two / name).exists()


@pytest.mark.slow
def test_an_error_in_one_process_ends_the_others_with_its_words(two):
    assert "EnvError: the floor is gone" in (two / "raise-1.txt").read_text()
    told = (two / "raise-0.txt").read_text()
    assert "WorkerError: rank 1 of 2 (" in told
    assert "failed: EnvError: the floor is gone" in told
    assert "The state at env step 64 is saved. Go on with: marl-tools train --resume" in told


@pytest.mark.slow
def test_a_process_that_is_killed_is_named_and_the_run_goes_on_in_one(tmp_path):
    changes = {**FLAGS, "env": FAILING["env"], "env_kwargs": {"way": "kill"}}
    program = Path(sys.executable).with_name("marl-tools")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in FLAGS.items()]
    call = ["train", FAILING["env"], "--env-kwargs", "way=kill", "--out", tmp_path / "two", *flags]
    killed = run("--no-python", program, *call)
    assert killed.returncode == 1
    assert "marl-tools: rank 1 of 2 (" in killed.stderr
    assert ") was killed, lost, or did not answer for" in killed.stderr
    assert f"Go on with: marl-tools train --resume {tmp_path / 'two'}" in killed.stderr
    assert json.loads((tmp_path / "two" / "error.json").read_text())["error"] == "WorkerError"
    resume(tmp_path / "two", trusted=True)
    train(RunConfig.from_flat({**changes, "out": str(tmp_path / "one")}))
    assert_nearly_same_run(tmp_path / "two", tmp_path / "one")
