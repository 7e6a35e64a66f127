"""What a newcomer's slips are answered with: each names what was given and what would work, and leaves nothing behind."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from marl_tools.cli import main
from marl_tools.core.errors import ConfigError
from marl_tools.experiment.flags import whole_number
from marl_tools.experiment.folder import refuse_file
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


def test_an_out_that_is_a_file_or_below_one_is_named_and_the_env_not_blamed(run, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("precious")
    for command in (["record", run, "--trust"], ["train", FILM, *TINY]):
        for out in (file, file / "below"):
            message = refused([*command, "--out", out], capsys)
            assert f"{out} cannot be a folder: {file} is a file; give another --out" in message
            assert "could not be filmed" not in message
    assert file.read_text() == "precious"


def test_an_out_in_which_we_may_not_write_is_named():
    # /usr is there for everyone and writable for root alone, whose rights are laid down for a moment.
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        with pytest.raises(
            ConfigError,
            match=r"^/usr/a/clips cannot be written to: no permission to write in /usr; give another --out",
        ):
            refuse_file(Path("/usr/a/clips"))
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("text", ["48", "4_8", "4.8e1", "0.048k"])
def test_steps_are_read_as_people_write_them(text):
    assert whole_number(text) == 48


def test_large_counts_have_short_forms():
    assert [whole_number(text) for text in ("200k", "2M", "1e6")] == [200_000, 2_000_000, 1_000_000]


@pytest.mark.parametrize("text", ["", "many", "1.5", "1e-3", "k", "1e999999999", "inf", "0x10", "1 000"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(ValueError, match="is no whole number, such as"):
        whole_number(text)


def test_a_total_in_short_form_reaches_the_run(run, capsys):
    assert main(["train", "--resume", str(run), "--timesteps", "0.064k", "--trust"]) == 0
    assert json.loads((run / "config.json").read_text())["timesteps"] == 64


@pytest.mark.parametrize("more", [["--learning-rate", "1e-3"], ["--learning-rate=1e-3"], [FILM]])
def test_what_a_run_that_goes_on_cannot_take_is_named_with_what_it_can(run, capsys, more):
    before = contents(run)
    message = refused(["train", *more, "--resume", run], capsys)
    assert f"{more[0]}: a run goes on with the settings that it began with" in message
    assert "takes --timesteps N (a new total), --stop-at R and --trust" in message
    assert contents(run) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--timesteps", "x"], "marl-tools: --timesteps: 'x' is no whole number, such as"),
        (["--n-agents", "x"], "marl-tools: --n-agents: 'x' is none of {None}|INT"),
        (["--gamma", "x"], "marl-tools: --gamma: 'x' is no number"),
        (["--share", "x"], "marl-tools: invalid choice 'x' for argument '--share'"),
        (["surplus"], "marl-tools: Unrecognized options: surplus"),
    ],
)
def test_a_wrong_flag_is_one_sentence_without_names_of_classes(args, message, capsys):
    assert main(["train", "crossing", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.endswith("(marl-tools train --help)\n")
    assert not re.search(r"<class|NoneType|[╭│╰]", error)


def test_the_help_names_the_other_ways_to_train_and_what_resume_takes(capsys):
    for args, words in (
        (
            ["train", "--help"],
            ["--resume RUN", "--config FILE.toml", "rounded up to whole updates", "-2, -3"],
        ),
        (["train", "--resume", "--help"], ["--timesteps", "those already played", "--stop-at", "--trust"]),
        (["runs", "--help"], ["[FOLDER]"]),
    ):
        with pytest.raises(SystemExit) as leave:
            main(args)
        assert leave.value.code == 0
        text = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
        assert [word for word in words if word not in text] == []


def test_every_setting_of_a_run_is_explained(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = re.sub(r"[│ ]+", " ", capsys.readouterr().out)
    helps = dict(re.findall(r"^ (--[\w-]+)[^\n]*\n ([^-\n][^\n]*)", text, re.MULTILINE))
    assert {"--learning-rate", "--gamma", "--clip", "--hidden"} <= set(helps)
    assert [flag for flag, words in helps.items() if words.startswith("(default")] == []


def test_an_evaluation_keeps_those_before_it(run, capsys):
    for seed in ("3", "4", "4", "5"):
        assert main(["evaluate", str(run), "--episodes", "2", "--seed", seed, "--trust"]) == 0
    kept = {path.name: json.loads(path.read_text())["seed"] for path in run.glob("evaluation*.json")}
    assert kept == {
        "evaluation.json": 5,
        "evaluation-1.json": 3,
        "evaluation-2.json": 4,
        "evaluation-3.json": 4,
    }
