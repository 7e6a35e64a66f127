"""What holds for the package as a whole: its import budget, its single importers, its size and its pins."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import marl_tools

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "marl_tools").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEAVY = ("torch", "ray", "wandb", "moviepy", "matplotlib", "pandas")

every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def imported_packages(path):
    """Top-level names that a module imports anywhere, also inside its functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize(
    "statement",
    [
        "import marl_tools",
        "from marl_tools.core.wrappers import *",
        "import marl_tools.core.wrappers.record_video_parallel, marl_tools.core.wandb",
        "from marl_tools.envs import *; find_task('pistonball')",
    ],
)
def test_importing_the_package_loads_nothing_heavy(statement):
    code = f"{statement}\nimport sys\nprint(sorted(set({HEAVY!r}) & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["wandb", "moviepy", "supersuit", "tensorboard", "ray"])
def test_only_one_module_knows_a_package_that_may_have_to_be_replaced(package):
    importers = [str(path.relative_to(ROOT)) for path in MODULES if package in imported_packages(path)]
    assert len(importers) == 1, importers


@every_module
def test_a_module_opens_with_what_lives_in_it(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) or not tree.body, "the module has no docstring"


LONGER = {
    # Why a file may be longer than the rest, and how long.
    "safety/shield.py": 360,  # the ledger's whole life in one object: begin, decide, pay, observe, refresh
}


@every_module
def test_a_module_fits_in_300_lines_unless_there_is_a_reason(path):
    lines = path.read_text().count("\n")
    assert lines <= LONGER.get(str(path.relative_to(ROOT / "marl_tools")), 300)


def test_the_installed_version_is_the_one_the_package_states():
    assert marl_tools.__version__ == PROJECT["version"] == version("marl-tools")


def test_the_package_ships_its_types():
    assert (ROOT / "marl_tools" / "py.typed").is_file()


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_every_constraint_is_one_exact_public_version():
    for pin in pins():
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        # A local version (`+cpu`) exists on no public index.
        assert Version(specifier.version).local is None, pin


def test_every_dependency_is_pinned_to_a_version_that_the_project_accepts():
    pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins()}
    extras = [line for group in PROJECT["optional-dependencies"].values() for line in group]
    for requirement in map(Requirement, PROJECT["dependencies"] + extras):
        name = canonicalize_name(requirement.name)
        if name != "marl-tools":
            assert name in pinned, f"constraints.txt has no {name}"
            assert pinned[name] in requirement.specifier, f"{requirement} is pinned to {pinned[name]}"
