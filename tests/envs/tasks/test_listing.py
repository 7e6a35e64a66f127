"""The list of tasks: complete, readable at any width, and made without importing an environment."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from marl_tools.envs import find_task, task_names
from marl_tools.envs.tasks import print_tasks, task_rows


def printed(width):
    out = io.StringIO()
    print_tasks(Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_task_is_there_with_its_cost_and_nothing_is_cut_off(width):
    lines = printed(width).splitlines()
    words = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert "…" not in words
    for name in task_names():
        task = find_task(name)
        assert name in words
        if width == 200:
            assert task.violation in words
    assert "caught, or outside the square" in words or width == 60


@pytest.mark.parametrize("width", [80, 200])
def test_what_is_missing_comes_with_the_command_that_installs_it(monkeypatch, width):
    monkeypatch.setattr("marl_tools.envs.tasks.task.find_spec", lambda module: None)
    words = printed(width)
    assert 'pip install "marl-tools[mamujoco]"' in words
    assert "pip install --no-deps momaland" in words


def test_rows_are_plain_and_say_what_the_task_says():
    rows = {row["name"]: row for row in json.loads(json.dumps(task_rows()))}
    assert list(rows) == task_names()
    assert rows["simple_spread"] == {
        "name": "simple_spread",
        "id": "mpe2/simple_spread-v3",
        "description": "cover all landmarks without colliding",
        "agents": 3,
        "n_agents_can_be_set": True,
        "observations": "18 numbers",
        "actions": "5 choices",
        "cost": "another agent is nearer than 0.30",
        "cap": 25,
        "native": True,
        "missing": [],
        "install": "pip install marl-tools",
    }
    assert rows["pistonball"]["cost"] is None


def test_listing_imports_no_environment_and_no_torch():
    code = (
        "import sys; from marl_tools.envs.tasks import task_rows; task_rows()\n"
        "print(sorted({'torch', 'pettingzoo', 'mpe2', 'pygame', 'lle', 'masa', 'momaland', 'magent2', 'mujoco'}"
        " & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
