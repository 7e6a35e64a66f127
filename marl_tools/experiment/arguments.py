"""What each command of ``marl-tools`` takes, beside the settings of a run; the docstrings are its ``--help``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from marl_tools.core.errors import ConfigError
from marl_tools.experiment.flags import Count


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a stopped run, or with a finished one up to more timesteps.

    Args:
        resume: the run folder.
        timesteps: a new total of env steps, those already played included; None: the run's own.
        stop_at: a new mean return to stop at; None: the run's own.
        trust: import code that the run folder names.
    """

    resume: Path
    timesteps: Count | None = None
    stop_at: float | None = None
    trust: bool = False


def check_resume_flags(args: Sequence[str]) -> None:
    """Refuse what a run that goes on cannot take: its settings are those that it began with.

    Raises:
        ConfigError: names the first such argument.
    """
    rest = iter(args)
    for arg in rest:
        flag, equals, _ = arg.partition("=")
        flag = flag.replace("_", "-")
        if flag in ("--resume", "--timesteps", "--stop-at"):
            if not equals:
                next(rest, None)
        elif flag not in ("--trust", "--no-trust", "-h", "--help"):
            raise ConfigError(
                f"{arg}: a run goes on with the settings that it began with; --resume RUN takes --timesteps N (a new "
                "total), --stop-at R and --trust alone. With other settings, train anew"
            )


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """A command on a run folder.

    Args:
        run: the run folder.
        checkpoint: which of the run's teams: the latest, or the one with the best average return.
        trust: import code that the run folder names.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    checkpoint: Literal["latest", "best"] = "latest"
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class PlayArgs(OfRun):
    """A command that plays episodes with a run's team.

    Args:
        deterministic: play the most likely action in place of a sampled one.
        seed: of the first episode; None: the run's evaluation seed.
    """

    deterministic: bool = False
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateArgs(PlayArgs):
    """Play whole episodes with a trained team on envs of its own and print the returns with their intervals.

    Args:
        episodes: how many episodes.
    """

    episodes: int = 100


@dataclass(frozen=True, kw_only=True)
class RecordArgs(PlayArgs):
    """Film a trained team: one clip an episode, or with --grid several episodes in one.

    Args:
        episodes: how many clips, with consecutive seeds.
        grid: rows x columns of episodes in a clip, such as 2x2.
        out: folder for the clips; None: RUN/videos.
        name: how the clips' names begin.
        format: mp4, webm or gif.
        fps: frames per second; None: the env's own.
        overlay: draw step, return and cost per agent on the frames.
    """

    episodes: int = 1
    grid: str | None = None
    out: Path | None = None
    name: str = "record"
    format: Literal["mp4", "webm", "gif"] = "mp4"
    fps: float | None = None
    overlay: bool = False


@dataclass(frozen=True, kw_only=True)
class ExplainArgs(OfRun):
    """Replay an evaluation episode of a shielded team up to a step and say why the shield let each agent do what it did.

    Args:
        episode: number of the evaluation episode, from 0.
        step: number of the step, from 1.
    """

    episode: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="EPISODE")]
    step: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="STEP")]


@dataclass(frozen=True, kw_only=True)
class CoverageArgs(OfRun):
    """Say how many keys and rows the world model of a shielded team knows, and the visits that it still needs."""


@dataclass(frozen=True, kw_only=True)
class RunsArgs:
    """List the run folders in a folder or below it: state, env steps, returns and age.

    Args:
        folder: where to look.
        json: print JSON in place of a table.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = Path("runs")
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportArgs:
    """Write report.html, one page that needs nothing else, for a run, a plan, or any folder that holds runs.

    Args:
        folder: the run folder, or that of a plan.
        serve: show the page to a browser on this machine instead, and keep it up to date while the run or plan goes on.
        host: where to serve; another address than 127.0.0.1 lets others see it.
        port: None: 8642, or any that is free; 0: any.
        out: the page; None: report.html in the folder.
        videos: films become part of the page as far as 12 MB go, are all linked, or are left out.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_PLAN")]
    serve: bool = False
    host: str = "127.0.0.1"
    port: int | None = None
    out: Path | None = None
    videos: Literal["embed", "link", "none"] = "embed"


@dataclass(frozen=True, kw_only=True)
class TasksArgs:
    """List the environments that are known by name: agents, spaces, cost, cap, and how to install what is missing.

    Args:
        json: print JSON in place of a table.
    """

    json: bool = False


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Run a plan, methods x tasks x seeds: what is done is skipped, what was stopped goes on, what failed is tried again.

    Args:
        plan: a TOML file, or the name of a preset: ippo, quick or shield.
        seeds: how many seeds, counted on from the plan's first; None: those that the plan says.
        out: the plan's folder; None: runs/<name of the plan>.
        executor: "serial": a process a run on this machine; "ray": on a Ray cluster.
        ray_address: of the cluster, such as 10.0.0.1:6379 or auto; None: one is started here.
        jobs: runs at a time, with the serial executor.
        only: parts of runs' names: nothing but runs with one of them in their name.
        retries: further attempts at a run whose process was lost or killed; one that raises an error fails at once.
        dry_run: show what there is to do, and do nothing.
        report: write the plan's report.html at the end.
        trust: import code that the plan names.
    """

    plan: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]
    seeds: int | None = None
    out: Path | None = None
    executor: Literal["serial", "ray"] = "serial"
    ray_address: str | None = None
    jobs: int = 1
    only: tuple[str, ...] = ()
    retries: int = 2
    dry_run: bool = False
    report: bool = True
    trust: bool = False
