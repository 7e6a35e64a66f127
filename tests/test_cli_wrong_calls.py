"""What a newcomer's slips are answered with: each names what was given and what would work, and leaves nothing behind."""

import json
import re
import shutil

import pytest

from marl_tools.cli import main
from tests.test_cli import FILM, QUIET, TINY, refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with one finished run of 48 steps, ``run-0``."""
    folder = tmp_path_factory.mktemp("slips") / "runs"
    assert main(["train", FILM, *TINY, *QUIET, "--out", str(folder / "run-0")]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A run folder that a test may spoil."""
    return shutil.copytree(trained / "run-0", tmp_path / "run-0")


def contents(folder):
    """Every file below a folder with what it holds; the lock of a run apart."""
    files = (path for path in folder.rglob("*") if path.is_file() and "lock" not in path.name)
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize("finished", [True, False])
def test_a_total_below_what_was_played_is_refused_and_changes_nothing(run, capsys, finished):
    if not finished:
        (run / "done.json").unlink()
    before = contents(run)
    message = refused(["train", "--resume", run, "--timesteps", "20", "--trust"], capsys)
    assert re.search(
        r"has played 48 of 48 env steps, more than --timesteps 20: --timesteps is the total", message
    )
    assert contents(run) == before


@pytest.mark.parametrize("command", [["evaluate"], ["record"], ["coverage"], ["train", "--resume"]])
def test_a_file_or_a_folder_of_runs_is_no_run_folder_and_the_run_is_named(run, capsys, command):
    message = refused([*command, run / "config.json"], capsys)
    assert f"config.json is not a run folder: it is a file; give the folder that it lies in, {run}" in message
    message = refused([*command, run.parent], capsys)
    assert f"it holds run folders: name one of them, such as {run}" in message


def test_the_list_of_runs_cuts_no_name_and_no_figure_however_narrow_the_terminal(
    tmp_path, run, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "40")
    name = tmp_path / ("a-name-" * 20)
    settings = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**settings, "timesteps": 123_456_789, "eval_every": 1}))
    run.rename(name)
    assert main(["runs", str(tmp_path)]) == 0
    head, line, legend = capsys.readouterr().out.splitlines()
    assert re.search(rf"{name} +{FILM} +done +48/123,456,789 +15\.00 +15\.00 \(eval\)", line)
    assert "train return" in head
    assert "best checkpoint" in head
    assert "(eval): of evaluations" in legend


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("line_env.py:Line", r"no module named 'line_env\.py': leave out the \.py"),
        ("line_ent:Line", r"no module named 'line_ent'; .*run it where the module lies, or set PYTHONPATH"),
        ("line_env:Discrete_", r"has no 'Discrete_'\. Known: Line\."),
    ],
)
def test_a_reference_that_leads_nowhere_says_what_would(tmp_path, capsys, monkeypatch, reference, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source = "from gymnasium.spaces import Box, Discrete\nclass Line:\n    pass\n"
    (tmp_path / "line_env.py").write_text(source)
    assert re.search(message, refused(["train", reference], capsys))


@pytest.mark.parametrize("constraint", ["lagrange", "pid"])
def test_a_constraint_without_costs_is_refused_before_anything_is_played_or_written(
    tmp_path, capsys, constraint
):
    args = ["train", FILM, *TINY, "--constraint", constraint, "--out", tmp_path / "run"]
    message = refused(args, capsys)
    assert "Film gives agent 'agent_0' no cost, which the constraint needs" in message.replace(
        "film_v0", "Film"
    )
    assert "evaluation episodes" not in message
    assert not (tmp_path / "run").exists()
