"""The set-up that ./scripts/test and ./scripts/demo share, with stand-ins for Python and pip."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[1] / "scripts" / "_setup.sh"
BASH = shutil.which("bash")


def bash(script, cwd, **env):
    return subprocess.run(
        [BASH, "-euo", "pipefail", "-c", f"source {SETUP}; {script}"],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )


def executable(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_shim_that_starts_nothing_is_passed_over_for_a_python_that_runs(tmp_path):
    executable(tmp_path / "python3.11", "echo 'not installed' >&2; exit 127")
    executable(tmp_path / "python3", f'exec "{sys.executable}" "$@"')
    found = bash("find_python", tmp_path, PATH=str(tmp_path))
    assert (found.returncode, found.stdout.strip()) == (0, "python3")


@pytest.mark.parametrize("env", [{}, {"PYTHON": "/nowhere/python3.11"}])
def test_without_a_usable_python_the_message_says_what_to_install(tmp_path, env):
    executable(tmp_path / "python3.11", "exit 1")
    found = bash("find_python; echo went on", tmp_path, PATH=str(tmp_path), **env)
    assert found.returncode == 1
    assert "went on" not in found.stdout
    assert env.get("PYTHON", "python3.13") in found.stderr
    assert "set PYTHON=" in found.stderr


@pytest.fixture
def project(tmp_path):
    """A folder with a .venv whose python notes what it is asked to run."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "constraints.txt").write_text("numpy==2.0\n")
    executable(tmp_path / ".venv/bin/python", '[ "$1" = -c ] || echo "$@" >>calls')
    (tmp_path / ".venv/bin/activate").write_text(f'VIRTUAL_ENV="{tmp_path.resolve()}/.venv"\n')
    return tmp_path


def installs(project, extra):
    """What one `ensure_venv` installs, and its result."""
    calls = project / "calls"
    calls.unlink(missing_ok=True)
    run = bash(f"ensure_venv {extra}", project, PATH="/usr/bin:/bin")
    return calls.read_text().splitlines() if calls.exists() else [], run


def test_torch_goes_first_and_everything_is_held_to_the_constraints(project):
    calls, run = installs(project, "dev")
    assert run.returncode == 0, run.stderr
    assert [call.split()[4] for call in calls] == ["torch", "-e", "--no-deps"]
    assert ".[dev]" in calls[1]
    assert all(call.endswith("-c constraints.txt") for call in calls)


def test_a_second_run_installs_nothing_and_says_so(project):
    installs(project, "dev")
    calls, run = installs(project, "dev")
    assert calls == []
    assert "up to date" in run.stdout


def test_the_demo_reuses_what_the_tests_installed_but_not_the_other_way_round(project):
    installs(project, "envs")
    assert installs(project, "dev")[0]
    assert installs(project, "envs")[0] == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_installs_again(project, name):
    installs(project, "dev")
    with (project / name).open("a") as file:
        file.write("# changed\n")
    assert installs(project, "dev")[0]


def test_a_failed_install_shows_its_output_and_is_tried_again(project):
    installs(project, "dev")
    (project / "constraints.txt").write_text("numpy==2.1\n")
    executable(
        project / ".venv/bin/python", '[ "$1" = -c ] || { echo "$@" >>calls; echo "no wheel"; exit 1; }'
    )
    for _ in range(2):
        calls, run = installs(project, "dev")
        assert calls
        assert run.returncode != 0
        assert "no wheel" in run.stderr
        assert "setup.log" in run.stderr


def test_a_folder_that_was_copied_with_its_venv_gets_a_new_one(project, tmp_path_factory):
    installs(project, "dev")
    moved = shutil.copytree(project, tmp_path_factory.mktemp("elsewhere") / "copy")
    executable(moved / "python3", '[ "$1" = -c ] || echo "$@" >>calls; exit 0')
    run = bash("ensure_venv dev", moved, PATH="/usr/bin:/bin", PYTHON="./python3")
    assert "-m venv --clear .venv" in (moved / "calls").read_text(), run.stdout
