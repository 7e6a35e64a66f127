"""Run folders, listed: what each is, however it ended, and whatever a stranger put into it."""

import json
import os
import shutil
import time

import pytest

from marl_tools.bench.jobs import keep_failure
from marl_tools.cli import main
from marl_tools.core.errors import ConfigError
from marl_tools.experiment.lock import RunLock
from marl_tools.experiment.run import Interrupted, train
from marl_tools.experiment.runs import list_runs, summarise_run
from marl_tools.training.ippo import IPPO
from tests.experiment.test_resume import settings

TEAM = {"env": "tests.envs_for_tests:Team", "env_kwargs": {"max_cycles": 9}, "final_policy_eval_episodes": 0}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a finished run, deep in it, and things that are no run."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "notes").mkdir()
    (folder / "notes" / "thesis.txt").write_text("precious")
    train(settings(folder / "deep" / "down" / "a", **TEAM))
    return folder


@pytest.fixture
def run(tmp_path, finished):
    """A copy that a test may spoil."""
    return shutil.copytree(finished / "deep" / "down" / "a", tmp_path / "run")


def test_a_finished_run_is_found_below_with_its_figures(finished):
    (run,) = list_runs(finished)
    assert run.folder == str(finished / "deep" / "down" / "a")
    assert (run.state, run.env, run.frames, run.timesteps) == ("done", "tests.envs_for_tests:Team", 384, 384)
    assert (run.mean_return, run.best_return) == (45.0, 45.0)
    assert 0 <= run.age < 3600
    assert [one.folder for one in list_runs(finished / "deep" / "down" / "a")] == [run.folder]
    assert list_runs(finished / "notes") == []


def test_the_states_of_a_run(tmp_path, monkeypatch, run):
    (run / "done.json").unlink()
    assert summarise_run(run).state == "interrupted"
    with RunLock(run):
        running = summarise_run(run)
        assert (running.state, running.detail) == ("running", f"process {os.getpid()}")
    (run / "done.json").write_text('{"state": "solved"}')
    assert summarise_run(run).state == "solved"

    def stop(self, rollout):
        raise KeyboardInterrupt

    def fail(self, rollout):
        raise ZeroDivisionError("a bug")

    for name, act, error in (("interrupted", stop, Interrupted), ("failed", fail, ZeroDivisionError)):
        with monkeypatch.context() as patch:
            patch.setattr(IPPO, "update", act)
            with pytest.raises(error):
                train(settings(tmp_path / name, **TEAM))
        listed = summarise_run(tmp_path / name)
        assert (listed.state, listed.frames, listed.mean_return) == (name, 0, None)
    assert listed.detail == "ZeroDivisionError: a bug"


def test_a_run_that_failed_before_it_wrote_its_settings_has_failed_and_is_not_damaged(tmp_path):
    folder = tmp_path / "runs" / "ippo-broken-s0"
    keep_failure(ValueError("not charged"), folder)
    (listed,) = list_runs(tmp_path)
    assert listed.folder == str(folder)
    assert (listed.state, listed.detail, listed.env) == ("failed", "ValueError: not charged", None)
    assert main(["runs", str(tmp_path)]) == 0

    (folder / "updates.jsonl").touch()  # it had begun, so its settings are lost
    assert summarise_run(folder).state == "damaged"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{"),
        ("config.json", '{"env": 3}'),
        ("config.json", ""),
        ("done.json", "["),
        ("done.json", "[1]"),
        ("updates.jsonl", '[1]\n{"frames": "many", "mean_return": NaN}\n{"torn'),
        ("updates.jsonl", "\x00" * 10),
        ("updates.jsonl", f'{{"frames": 384, "mean_return": {10**400}}}\n'),
        ("checkpoints/manifest.json", '{"best": {"average_return": "high"}}'),
    ],
)
def test_a_damaged_folder_is_listed_as_far_as_it_can_be_read(run, file, content):
    (run / file).write_text(content)
    listed = summarise_run(run)
    assert listed.state == ("damaged" if file == "config.json" else "done")
    assert file not in ("config.json",) or "config.json" in listed.detail or "env=3" in listed.detail
    assert json.loads(json.dumps(listed.frames)) in (0, 384)


def test_what_a_stranger_wrote_commands_no_terminal(run, capsys):
    (run / "done.json").unlink()
    (run / "error.json").write_text(json.dumps({"error": "\x1b[2Jx", "message": "[bold]hi[/bold]\x07\nmore"}))
    assert main(["runs", str(run)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[bold]hi[/bold]  more" in out


def test_the_command_prints_a_table_or_json_latest_first(tmp_path, run, finished, capsys):
    for path in (run / "config.json", run / "done.json", run / "updates.jsonl"):
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    train(settings(tmp_path / "newer", **TEAM))
    assert main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(word in lines[0] for word in ("run", "env", "state", "steps", "return", "best", "age"))
    assert [line.split()[-2:] for line in lines[-2:]][1] == ["2", "h"]
    assert main(["runs", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["folder"] for entry in listed] == [str(tmp_path / "newer"), str(run)]
    assert main(["runs", str(finished / "notes")]) == 0
    assert capsys.readouterr().out == "no run folders here\n"


def test_a_folder_that_is_none_is_said_to_be_none(tmp_path, capsys):
    with pytest.raises(ConfigError, match="nowhere is no folder"):
        list_runs(tmp_path / "nowhere")
    assert main(["runs", str(tmp_path / "nowhere")]) == 2
