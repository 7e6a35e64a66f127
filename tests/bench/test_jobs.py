"""One run of a plan: begun, gone on with, left alone or refused, whatever its folder holds."""

import json
import os
import shutil

import pytest

from marl_tools.bench.executors import lost
from marl_tools.bench.jobs import Job, log_file, run_job, state_of
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.lock import RunLock
from tests.bench.saboteur import SABOTEUR, TEAM, TINY, Saboteur

SETTINGS = {"env": TEAM, **TINY}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan") / "runs" / "a"
    assert run_job(SETTINGS, folder, True).state == "done"
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """The folder of a finished run, which a test may spoil."""
    return shutil.copytree(finished, tmp_path / "runs" / "a")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def harmful(**kwargs):
    return SETTINGS | {"env": SABOTEUR, "env_kwargs": {"max_cycles": 9, **kwargs}}


def test_a_run_is_trained_once_and_then_left_alone(run):
    before = contents(run)
    again = run_job(SETTINGS, run, True)
    assert (again.state, again.frames, again.error, again.finished) == ("done", 96, None, True)
    assert contents(run) == before


def test_a_process_that_is_lost_after_its_run_was_done_leaves_no_error_in_it(run):
    before = contents(run)
    result = lost(Job(id="a", config=SETTINGS, folder=run, trusted=True), "its process was killed", 1.0)
    assert result.retryable
    assert contents(run) == before


def test_what_a_run_prints_goes_to_its_log_and_not_to_the_console(tmp_path, capfd):
    folder = tmp_path / "runs" / "a"
    run_job(SETTINGS, folder, True)
    assert capfd.readouterr() == ("", "")
    assert log_file(folder) == tmp_path / "logs" / "a.log"
    assert "96/96 steps" in log_file(folder).read_text()


def test_an_error_is_told_kept_and_logged_and_the_next_call_goes_on(tmp_path):
    folder = tmp_path / "runs" / "a"
    settings = harmful(harm="raise", marker=str(tmp_path / "harmed"))
    Saboteur.steps = 0
    failed = run_job(settings, folder, True)
    assert (failed.state, failed.error, failed.retryable) == (
        "failed",
        "ZeroDivisionError: a bug in the env",
        False,
    )
    assert 0 < failed.frames < 96
    assert json.loads((folder / "error.json").read_text())["error"] == "ZeroDivisionError"
    assert "in step" in log_file(folder).read_text()
    assert state_of(RunConfig.from_flat(settings), folder)[0] == "failed"
    assert run_job(settings, folder, True).state == "done"
    assert not (folder / "error.json").exists()


def test_an_env_that_cannot_even_be_made_fails_its_run_and_leaves_the_reason(tmp_path):
    folder = tmp_path / "runs" / "a"
    settings = SETTINGS | {"env_kwargs": {"nonsense": 1}}
    failed = run_job(settings, folder, True)
    assert (failed.state, failed.retryable) == ("failed", False)
    assert "nonsense" in failed.error
    assert "nonsense" in json.loads((folder / "error.json").read_text())["message"]
    # The reason is no obstacle to the run once it can be made.
    assert run_job(SETTINGS, folder, True).state == "done"


def test_code_is_imported_only_where_it_is_trusted(tmp_path):
    refused = run_job(SETTINGS, tmp_path / "runs" / "a", False)
    assert (refused.state, refused.retryable) == ("failed", False)
    assert "names code to be imported" in refused.error


def test_a_folder_that_was_claimed_and_no_more_begins_anew(tmp_path):
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    assert state_of(RunConfig.from_flat(SETTINGS), folder) == ("missing", None)
    assert run_job(SETTINGS, folder, True).state == "done"


def test_a_folder_with_something_else_in_it_is_not_touched(tmp_path):
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("precious")
    failed = run_job(SETTINGS, folder, True)
    assert failed.state == "failed"
    assert "is not empty" in failed.error
    assert (folder / "thesis.txt").read_text() == "precious"


def test_another_run_under_the_same_name_is_damage_and_not_touched(run):
    before = contents(run)
    other = run_job(SETTINGS | {"timesteps": 192}, run, True)
    assert (other.state, other.retryable) == ("damaged", False)
    assert "holds a run with other settings (timesteps)" in other.error
    assert contents(run) == before


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda run: (run / "config.json").write_text("{"), "config.json"),
        (
            lambda run: [file.write_bytes(b"x") for file in (run / "checkpoints").glob("*.safetensors")],
            "checkpoint",
        ),
        (lambda run: (run / "updates.jsonl").write_text('{"update": "x"}\n'), "updates.jsonl"),
    ],
)
def test_damage_is_told_and_stays_as_it_is(run, spoil, says):
    (run / "done.json").unlink()
    spoil(run)
    before = contents(run)
    damaged = run_job(SETTINGS, run, True)
    assert (damaged.state, damaged.retryable) == ("damaged", False)
    assert says in damaged.error
    assert {name: contents(run).get(name) for name in before} == before


def test_a_run_that_another_process_works_on_is_left_to_it(run):
    (run / "done.json").unlink()
    with RunLock(run):
        busy = run_job(SETTINGS, run, True)
    assert (busy.state, busy.retryable) == ("failed", False)
    assert "is in use by process" in busy.error
    assert not (run / "error.json").exists()


def test_a_run_that_was_told_to_stop_has_saved_its_state_and_goes_on(tmp_path):
    folder = tmp_path / "runs" / "a"
    settings = harmful(harm="stop", pid=os.getpid(), marker=str(tmp_path / "harmed"))
    Saboteur.steps = 0
    stopped = run_job(settings, folder, True)
    assert (stopped.state, stopped.finished) == ("interrupted", False)
    assert 0 < stopped.frames < 96
    assert run_job(settings, folder, True).state == "done"
