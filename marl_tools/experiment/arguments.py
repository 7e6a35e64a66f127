"""What each command of ``marl-tools`` takes, beside the settings of a run; the docstrings are its ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a stopped run, or with a finished one up to more timesteps.

    Args:
        resume: the run folder.
        timesteps: a new total of env steps; None: the run's own.
        trust: import code that the run folder names.
    """

    resume: Path
    timesteps: int | None = None
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class EvaluateArgs:
    """Play whole episodes with a trained team on envs of its own and print the returns with their intervals.

    Args:
        run: the run folder.
        episodes: how many episodes.
        deterministic: play the most likely action in place of a sampled one.
        seed: of the first episode; None: the run's evaluation seed.
        trust: import code that the run folder names.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    episodes: int = 100
    deterministic: bool = False
    seed: int | None = None
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordArgs:
    """Film a trained team: one clip an episode, or with --grid several episodes in one.

    Args:
        run: the run folder.
        episodes: how many clips, with consecutive seeds.
        grid: rows x columns of episodes in a clip, such as 2x2.
        out: folder for the clips; None: RUN/videos.
        name: how the clips' names begin.
        format: mp4, webm or gif.
        fps: frames per second; None: the env's own.
        overlay: draw step, return and cost per agent on the frames.
        deterministic: play the most likely action in place of a sampled one.
        seed: of the first episode; None: the run's evaluation seed.
        trust: import code that the run folder names.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    episodes: int = 1
    grid: str | None = None
    out: Path | None = None
    name: str = "record"
    format: Literal["mp4", "webm", "gif"] = "mp4"
    fps: float | None = None
    overlay: bool = False
    deterministic: bool = False
    seed: int | None = None
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class ExplainArgs:
    """Replay an evaluation episode of a shielded team up to a step and say why the shield let each agent do what it did.

    Args:
        run: the run folder.
        episode: number of the evaluation episode, from 0.
        step: number of the step, from 1.
        trust: import code that the run folder names.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    episode: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="EPISODE")]
    step: Annotated[int, tyro.conf.Positional, tyro.conf.arg(metavar="STEP")]
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class CoverageArgs:
    """Say how many keys and rows the world model of a shielded team knows, and the visits that it still needs.

    Args:
        run: the run folder.
        trust: import code that the run folder names.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    trust: bool = False


@dataclass(frozen=True, kw_only=True)
class TasksArgs:
    """List the environments that are known by name."""
