"""The command line: what it prints, and that a wrong call is one clear message and exit code 2, never a traceback."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from marl_tools import __version__
from marl_tools.cli import main
from marl_tools.envs.tasks import task_names
from marl_tools.training.checkpoint import SCHEMA
from tests.core.film import decode, facts, run_script

FILM = "tests.core.film:Film"
TINY = ["--timesteps", "48", "--num-envs", "2", "--rollouts", "8", "--hidden", "8", "--learning-epochs", "1"]
QUIET = ["--final-policy-eval-episodes", "0", "--video-episodes", "0"]


def call(args, capsys):
    """Exit code, stdout and stderr of a command; tyro leaves by SystemExit."""
    try:
        code = main([str(arg) for arg in args])
    except SystemExit as leave:
        code = leave.code
    out, err = capsys.readouterr()
    return code, out, err


def refused(args, capsys):
    """The message of a wrong call."""
    code, out, err = call(args, capsys)
    assert code == 2, out + err
    text = re.sub(r"[\s│╭╮╰╯─]+", " ", out + err)
    assert "Traceback" not in text
    return text


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", FILM, *TINY, *QUIET, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A run folder that a test may spoil."""
    return shutil.copytree(trained, tmp_path / "run")


# --- help ---------------------------------------------------------------------------------------------------------


def test_no_command_is_the_usage_and_a_wrong_call_and_help_is_the_usage_and_none(capsys):
    code, out, _ = call([], capsys)
    assert (code, "marl-tools train ENV" in out) == (2, True)
    for word in ("-h", "--help", "help"):
        assert call([word], capsys)[:2] == (0, out)
    assert call(["--version"], capsys)[:2] == (0, f"{__version__}\n")


def test_the_package_runs_as_the_program_does():
    call = [sys.executable, "-m", "marl_tools"]
    told = subprocess.run([*call, "--version"], check=True, capture_output=True, text=True)
    assert told.stdout == f"{__version__}\n"
    assert subprocess.run(call, check=False, capture_output=True).returncode == 2


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("train", ["--timesteps", "--num-envs", "--seed", "--out", "--learning-rate", "--share", "--hidden"]),
        ("evaluate", ["--episodes", "--deterministic", "--trust"]),
        ("record", ["--episodes", "--grid", "--format", "--overlay", "--fps"]),
        ("tasks", []),
    ],
)
def test_every_command_explains_its_flags_by_the_settings_own_names(command, flags, capsys):
    code, out, _ = call([command, "--help"], capsys)
    assert code == 0
    assert f"marl-tools {command}" in out
    for flag in flags:
        assert flag in out
    assert not re.search(r"--[\w-]+\.", out), "a flag is called as the setting is, however deep it lives"


def test_resume_has_a_help_of_its_own(capsys):
    code, out, _ = call(["train", "--resume", "x", "--help"], capsys)
    assert (code, "--timesteps" in out, "--learning-rate" in out) == (0, True, False)


def test_tasks_are_listed_by_name(capsys):
    code, out, _ = call(["tasks"], capsys)
    assert code == 0
    assert all(name in out for name in task_names())


# --- what goes right ----------------------------------------------------------------------------------------------


def test_train_prints_returns_before_and_after_and_where_the_files_are(tmp_path, capsys):
    folder = tmp_path / "run"
    args = ["train", FILM, *TINY, "--final-policy-eval-episodes", "2", "--out", folder]
    code, out, err = call(args, capsys)
    assert code == 0, err
    assert re.search(r"mean over agents\W+15\.000\W+15\.000", out)
    assert "random" in out
    assert "trained" in out
    assert "agent_1" in out
    assert f"run folder  {folder}" in out
    assert f"video       {folder}/videos/final-episode-0.mp4" in out
    assert "\x1b" not in out + err, "no terminal, no colours"
    assert "48/48 steps" in err


def test_a_config_file_is_a_run_and_flags_win(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(
        f'env = "{FILM}"\ntimesteps = 32\nnum_envs = 2\nrollouts = 8\nhidden = [8]\nseed = 4\n'
        "final_policy_eval_episodes = 0\nvideo_episodes = 0\n[env_kwargs]\nmax_cycles = 3\n"
    )
    for index, args in enumerate(
        (["--config", file, "--timesteps", "16"], [f"--config={file}", "--timesteps", "16"])
    ):
        folder = tmp_path / str(index)
        code, _, err = call(["train", *args, "--out", folder], capsys)
        assert code == 0, err
        flat = json.loads((folder / "config.json").read_text())
        assert (flat["timesteps"], flat["seed"], flat["hidden"]) == (16, 4, [8])
        assert flat["env_kwargs"] == {"max_cycles": 3}


def test_an_env_on_the_command_line_wins_over_the_files(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text('env = "simple_tag"\ntimesteps = 16\nrollouts = 8\nnum_envs = 2\n')
    for args in ([FILM, "--config", file], ["--config", file, FILM], ["--seed", "3", FILM, "--config", file]):
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        code, _, err = call(["train", *args, *QUIET, "--out", folder], capsys)
        assert code == 0, err
        assert json.loads((folder / "config.json").read_text())["env"] == FILM


def test_env_arguments_keep_their_types(tmp_path, capsys):
    args = ["train", FILM, *TINY, *QUIET, "--env-kwargs", "n=3", "max_cycles=4", "--out", tmp_path / "run"]
    assert call(args, capsys)[0] == 0
    flat = json.loads((tmp_path / "run" / "config.json").read_text())
    assert flat["env_kwargs"] == {"n": 3, "max_cycles": 4}


def test_evaluate_prints_intervals_and_keeps_them(run, capsys):
    code, out, err = call(["evaluate", run, "--episodes", "3", "--seed", "9", "--trust"], capsys)
    assert code == 0, err
    assert re.search(r"mean over agents\W+15\.000\W+15\.000 to 15\.000", out)
    saved = json.loads((run / "evaluation.json").read_text())
    assert (saved["seed"], saved["episodes"], saved["policy"]) == (9, 3, "trained")
    code, out, _ = call(["evaluate", run, "--episodes", "1", "--deterministic", "--trust"], capsys)
    assert code == 0
    assert json.loads((run / "evaluation.json").read_text())["seed"] == 1_000_000


def test_record_makes_a_clip_an_episode_and_prints_each(run, capsys):
    code, out, err = call(["record", run, "--episodes", "2", "--overlay", "--trust"], capsys)
    assert code == 0, err
    clips = [run / "videos" / f"record-episode-{i}.mp4" for i in range(2)]
    assert out.split() == [str(clip) for clip in clips]
    assert all(len(decode(clip)) == 6 for clip in clips)


def test_record_plays_a_grid_in_one_clip_of_any_format_and_place(run, tmp_path, capsys):
    args = ["record", run, "--grid", "2x2", "--format", "gif", "--fps", "10", "--name", "quad", "--trust"]
    code, out, err = call([*args, "--out", tmp_path / "films"], capsys)
    assert code == 0, err
    clip = tmp_path / "films" / "quad-2x2.gif"
    assert out.strip() == str(clip)
    frames = decode(clip)
    assert frames.shape == (6, 128, 192, 3)
    assert "10 fps" in facts(clip)


def test_resume_goes_on_with_a_run(run, capsys):
    code, out, err = call(["train", "--resume", run, "--timesteps", "64", "--trust"], capsys)
    assert code == 0, err
    assert f"run folder  {run}" in out
    assert json.loads((run / "done.json").read_text())["timesteps"] == 64


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian", "simple_spread"], r"no command 'trian'\. Did you mean 'train'\?"),
        (["train", "simple_spreed"], r"No task is named 'simple_spreed'\. Did you mean 'simple_spread'\?"),
        (["train", "simple_spread", "--timestep", "5"], r"--timestep\b.*--timesteps"),
        (["train", "simple_spread", "--lr", "5"], r"--lr"),
        (["train", "simple_spread", "--timesteps", "many"], r"--timesteps.*many"),
        (
            ["train", "simple_spread", "--timesteps", "0"],
            r"timesteps=0: must be a whole number of at least 1",
        ),
        (["train", "simple_spread", "--gamma", "2"], r"gamma=2\.0: must lie between 0 and 1"),
        (
            ["train", "simple_spread", "--share", "all"],
            r"'all' for argument '--share'\. Expected one of \('group', 'none'\)",
        ),
        (["train", "simple_spread", "--env-kwargs", "N"], r"'N' is no key=value, such as N=4"),
        (["train", "simple_spread", "--env-kwargs", "M=4"], r"does not take the keyword argument 'M'"),
        (["train", "simple_spread", "--preprocess", "resiz=3x3"], r"resiz"),
        (["train", "simple_tag", "--n-agents", "9"], r"n_agents=9, but simple_tag has 4"),
        (["train"], r"a task name such as simple_spread, or package\.module:function"),
        (["train", "no.such.module:make"], r"no module named 'no'"),
        (["train", "tests.probe_envs:Prob"], r"has no 'Prob'\. Did you mean 'Probe'\?"),
        (["train", "a:b:c"], r"Write package\.module:function"),
        (["train", "--config"], r"--config needs a TOML file after it"),
        (["train", "--config", "none.toml"], r"cannot read the config file none\.toml: No such file"),
        (["evaluate"], r"run|RUN"),
        (["evaluate", "nowhere"], r"nowhere is not a run folder: it has no config\.json"),
        (["record", "nowhere"], r"nowhere is not a run folder"),
        (["train", "--resume", "nowhere"], r"nowhere is not a run folder"),
        (["tasks", "--all"], r"--all"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_and_what_to_do(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.search(message, refused(args, capsys))
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'env = "simple_spread"\nlearning_rte = 1',
            r"unknown setting 'learning_rte'\. Did you mean 'learning_rate'",
        ),
        ('env = "simple_spread"\ntimesteps = "9"', r"timesteps='9': must be int"),
        ("env = ", r"run\.toml is not TOML"),
        ("seed = 3", r"no env is given"),
    ],
)
def test_a_wrong_config_file_says_so(tmp_path, capsys, text, message):
    (tmp_path / "run.toml").write_text(text)
    assert re.search(message, refused(["train", "--config", tmp_path / "run.toml"], capsys))


def test_a_folder_that_is_taken_or_impossible_is_a_wrong_call(run, tmp_path, capsys):
    message = refused(["train", FILM, *TINY, "--out", run], capsys)
    assert re.search(
        r"is not empty: give another --out, or go on with it by: marl-tools train --resume", message
    )
    (tmp_path / "file").write_text("")
    message = refused(["train", FILM, *TINY, "--out", tmp_path / "file" / "below"], capsys)
    assert f"{tmp_path / 'file'} is a file" in message


@pytest.mark.parametrize("command", ["evaluate", "record"])
def test_a_run_without_a_sound_checkpoint_is_a_wrong_call(run, capsys, command):
    checkpoint = run / "checkpoints" / "latest.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    assert "is not a readable checkpoint" in refused([command, run, "--trust"], capsys)
    checkpoint.unlink()
    assert f"no checkpoint at {checkpoint}" in refused([command, run, "--trust"], capsys)


@pytest.mark.parametrize("command", ["evaluate", "record"])
def test_a_checkpoint_of_another_env_is_refused_with_both_named(run, capsys, command):
    config = json.loads((run / "config.json").read_text())
    other = {**config, "env": "tests.envs_for_tests:Team", "env_kwargs": {"n": 2, "max_cycles": 5}}
    (run / "config.json").write_text(json.dumps(other))
    message = refused([command, run, "--trust"], capsys)
    assert re.search(r"is of a team for film_v0, but its config\.json names team_v0", message)
    (run / "config.json").write_text(json.dumps({**config, "env_kwargs": {"n": 3}}))
    message = refused([command, run, "--trust"], capsys)
    assert re.search(
        r"film_v0 with other agents or spaces: agent_0, agent_1 with .* agent_0, agent_1, agent_2", message
    )


@pytest.mark.parametrize("command", ["evaluate", "record"])
def test_a_checkpoint_of_another_version_is_refused_with_both_named(run, capsys, command):
    checkpoint = run / "checkpoints" / "latest.safetensors"
    state = {"schema": 77, "version": "9.9"}
    save_file({"x": torch.ones(1)}, checkpoint, {"marl_tools": json.dumps(state)})
    message = refused([command, run, "--trust"], capsys)
    assert (
        f"format 77, written by marl-tools 9.9; this is marl-tools {__version__}, which reads format {SCHEMA}"
        in message
    )


def test_the_best_team_is_evaluated_when_asked_for(run, capsys):
    assert call(["evaluate", run, "--checkpoint", "best", "--episodes", "2", "--trust"], capsys)[0] == 0
    assert json.loads((run / "evaluation.json").read_text())["checkpoint"] == "best"
    (run / "checkpoints" / "best.safetensors").unlink()
    message = refused(["evaluate", run, "--checkpoint", "best", "--trust"], capsys)
    assert "no update has been the best yet; use the latest" in message


def test_an_env_whose_picture_raises_is_one_message(run, capsys, monkeypatch):
    monkeypatch.setattr("tests.core.film.Film.render", lambda self: 1 / 0)
    for grid in ([], ["--grid", "1x2"]):
        code, out, err = call(["record", run, *grid, "--trust"], capsys)
        assert code == 1
        assert "marl-tools: tests.core.film:Film could not be filmed: ZeroDivisionError(" in err
        assert "Traceback" not in out + err


def test_a_damaged_run_folder_is_a_wrong_call(run, capsys):
    (run / "config.json").write_text('{"env": 3}')
    assert "env=3: must be str" in refused(["evaluate", run], capsys)
    (run / "config.json").write_text("{")
    assert "config.json" in refused(["evaluate", run], capsys)
    (run / "config.json").write_text("[]")
    refused(["evaluate", run], capsys)


@pytest.mark.parametrize("command", [["evaluate"], ["record"], ["train", "--resume"]])
def test_code_named_by_a_run_folder_is_imported_only_when_trusted(run, capsys, command):
    assert re.search(r"tests\.core\.film:Film.*--trust", refused([*command, run], capsys))


@pytest.mark.parametrize("grid", ["2", "0x2", "2x", "axb", "2x2x2", "-1x2", "100x1"])
def test_a_grid_that_is_none_is_a_wrong_call(run, capsys, grid):
    assert re.search(
        r"write rows x columns, as in 2x2", refused(["record", run, f"--grid={grid}", "--trust"], capsys)
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["evaluate", "--episodes", "0"], "episodes=0"),
        (["evaluate", "--episodes", "2.5"], "--episodes"),
        (["evaluate", "--seed=-1"], "seed=-1"),
        (["record", "--episodes", "0"], "episodes=0"),
        (["record", "--format", "avi"], "--format"),
        (["record", "--fps", "0"], "fps"),
        (["record", "--fps", "0", "--grid", "1x2"], "fps"),
        (["record", "--name", "a/b"], "a/b"),
        (["record", "--name", "a/b", "--grid", "1x2"], "a/b"),
    ],
)
def test_a_wrong_flag_of_evaluate_and_record_is_named(run, capsys, args, message):
    assert message in refused([args[0], run, *args[1:], "--trust"], capsys)


def test_a_missing_extra_is_named_with_the_command_that_installs_it(capsys, monkeypatch, tmp_path):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "marl_tools.envs.tasks.task.find_spec", lambda name: None if name == "pymunk" else real(name)
    )
    message = refused(["train", "pistonball", "--out", tmp_path / "run"], capsys)
    assert "pymunk" in message
    assert 'pip install "marl-tools[butterfly]"' in message


# --- runs that fail -----------------------------------------------------------------------------------------------


def test_a_run_that_fails_is_code_1_with_one_message(tmp_path, capsys):
    args = ["train", "tests.probe_envs:Broken", *TINY, *QUIET, "--out", tmp_path / "run"]
    code, out, err = call(args, capsys)
    assert code == 1
    assert re.search(r"^marl-tools: update 0: broken_v0: observation of agent 'agent_1'", err, re.MULTILINE)
    assert "Traceback" not in out + err


def test_an_env_that_breaks_the_contract_is_named_with_its_copy_seed_and_step(tmp_path, capsys, monkeypatch):
    from tests.envs_for_tests import Team

    original = Team.step

    def without_rewards(self, actions):
        observations, _, *rest = original(self, actions)
        return observations, {}, *rest

    monkeypatch.setattr(Team, "step", without_rewards)
    code, _, err = call(["train", FILM, *TINY, *QUIET, "--out", tmp_path / "run"], capsys)
    assert code == 1
    assert re.search(
        r"gave no reward for live agent 'agent_0'\nin copy 0 of .*, episode seed \d+, step 1\n", err
    )


def test_ctrl_c_is_code_130_with_how_to_go_on(tmp_path, capsys, monkeypatch):
    from marl_tools.training.ippo import IPPO

    def stop(self, rollout):
        raise KeyboardInterrupt

    monkeypatch.setattr(IPPO, "update", stop)
    code, _, err = call(["train", FILM, *TINY, *QUIET, "--out", tmp_path / "run"], capsys)
    assert code == 130
    assert f"Go on with: marl-tools train --resume {tmp_path / 'run'}" in err
    monkeypatch.undo()
    assert call(["train", "--resume", tmp_path / "run", "--trust"], capsys)[0] == 0


def test_ctrl_c_outside_of_training_is_code_130_as_well(run, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("marl_tools.training.evaluate.play_episode", stop)
    code, _, err = call(["evaluate", run, "--trust"], capsys)
    assert (code, err.strip()) == (130, "marl-tools: stopped")


def test_the_installed_command_works_without_a_display_or_colours(trained, tmp_path):
    script = run_script(
        "import sys; from marl_tools.cli import main; sys.exit(main())",
        # Arguments reach `main` through sys.argv, as from a shell.
        "evaluate",
        trained,
        "--episodes",
        "2",
        "--trust",
        cwd=tmp_path,
    )
    assert script.returncode == 0, script.stderr
    assert "15.000" in script.stdout
    assert "\x1b" not in script.stdout + script.stderr
    assert "pygame" not in script.stdout
