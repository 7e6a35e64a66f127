"""The command line: ``marl-tools train | evaluate | record | explain | coverage | bench | report | runs | tasks``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from rich.console import Console

from marl_tools import __version__
from marl_tools.core.errors import (
    ConfigError,
    CorruptFileError,
    FileFormatError,
    Interrupted,
    MarlToolsError,
    MissingExtraError,
    did_you_mean,
)
from marl_tools.core.logging import configure_logging
from marl_tools.envs.tasks import print_tasks, task_rows
from marl_tools.experiment.arguments import BenchArgs, ReportArgs, TasksArgs
from marl_tools.experiment.flags import parse

_USAGE = """\
marl-tools: train PettingZoo teams, evaluate and film them.

  marl-tools train ENV [--timesteps N] [--seed S] [--out DIR] ...   learn, evaluate, film
  marl-tools train --config FILE.toml [flags]                       the same from a file; flags win
  marl-tools train --resume RUN [--timesteps N]                     go on with a stopped run
  marl-tools evaluate RUN [--episodes N]                            returns of a trained team, with intervals
  marl-tools record RUN [--episodes N] [--grid 2x2]                 films of a trained team
  marl-tools explain RUN EPISODE STEP                               why the shield decided as it did
  marl-tools coverage RUN                                           how much of the env the shield knows
  marl-tools bench PLAN [--seeds N] [--out DIR] [--jobs N]          methods x tasks x seeds, what is missing of it
  marl-tools report RUN_OR_PLAN [--serve]                           one page with everything; live with --serve
  marl-tools runs [FOLDER]                                          run folders with state, steps, returns, age
  marl-tools tasks                                                  the environments known by name

ENV is a task name (marl-tools tasks) or package.module:function that returns a parallel env.
Every command explains its flags with --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for a run that failed, 2 for a wrong call, 130 for Ctrl-C."""
    args = list(sys.argv[1:] if argv is None else argv)
    # An environment of the user's own lies beside where the command is typed. Last, so that it shadows nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    # A window would need a display; films do not.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not args or args[0] in ("-h", "--help", "help"):
        print(_USAGE)
        return 0 if args else 2
    if args[0] == "--version":
        print(__version__)
        return 0
    configure_logging(log_format="{message}")
    try:
        if args[0] not in _COMMANDS:
            raise ConfigError(f"no command {args[0]!r}.{did_you_mean(args[0], _COMMANDS)}")
        _COMMANDS[args[0]](args[1:])
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except Interrupted as stop:
        return _fail(stop, 130)
    except (ConfigError, CorruptFileError, FileFormatError, MissingExtraError, FileNotFoundError) as error:
        return _fail(error, 2)
    except MarlToolsError as error:
        return _fail(error, 1)
    return 0


def _fail(message: object, code: int) -> int:
    # The notes say where an env was, and how to go on.
    print("\n".join([f"marl-tools: {message}", *getattr(message, "__notes__", ())]), file=sys.stderr)
    return code


def _train(args: list[str]) -> None:
    for folder in _of("experiment.commands").train(args):
        _of("bench.report.command").report_finished_run(folder)


def _on_runs(command: str) -> Callable[[list[str]], None]:
    return lambda args: getattr(_of("experiment.commands"), command)(args)


def _bench(args: list[str]) -> None:
    _of("bench.command").bench(parse(BenchArgs, args, "bench"))


def _report(args: list[str]) -> None:
    _of("bench.report.command").report(parse(ReportArgs, args, "report"))


def _tasks(args: list[str]) -> None:
    if parse(TasksArgs, args, "tasks").json:
        print(json.dumps(task_rows(), indent=2))
    else:
        print_tasks(Console())


def _of(module: str) -> Any:
    # Late: torch takes seconds to import, which `marl-tools tasks` and a wrong call should not.
    return import_module(f"marl_tools.{module}")


_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": _train,
    **{name: _on_runs(name) for name in ("evaluate", "record", "explain", "coverage", "runs")},
    "bench": _bench,
    "report": _report,
    "tasks": _tasks,
}
