"""One attempt at a run of a plan as a task of a cluster: what happens on the machine that it is sent to."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from marl_tools.bench.jobs import Job, JobResult, run_job
from marl_tools.core.errors import ConfigError
from marl_tools.experiment.lock import wait_until_free

_LOCK_SECONDS = 180.0
"""For the last signs of an attempt that was lost: its worker may live a little longer than its node, its lock longer still."""
_CARRIED = ("MUJOCO_GL", "PYGAME_HIDE_SUPPORT_PROMPT", "SDL_AUDIODRIVER", "SDL_VIDEODRIVER", "WANDB_MODE")


class Begun(NamedTuple):
    """The first item of an attempt."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a run may count on because it is so where the plan was started.

    Attributes:
        directory: the working directory, which relative paths in settings start from.
        paths: where modules of the user's are imported from.
        variables: of the environment; a machine's own win.
        mark: a file in the plan's folder, and what was written into it for this call.
    """

    directory: Path
    paths: tuple[str, ...]
    variables: Mapping[str, str]
    mark: tuple[Path, str]

    @classmethod
    def here(cls, mark: tuple[Path, str]) -> Surroundings:
        installed = (sys.prefix, sys.base_prefix)
        return cls(
            directory=Path.cwd(),
            paths=tuple(os.path.abspath(path) for path in sys.path if not path.startswith(installed)),
            variables={name: os.environ[name] for name in _CARRIED if name in os.environ},
            mark=mark,
        )

    def enter(self) -> None:
        """Make this process, which serves one plan only, like the one that the plan was started in.

        Raises:
            ConfigError: this machine does not see the plan's folder; what it wrote would be found by nobody.
        """
        path, text = self.mark
        if not _holds(path, text):
            raise ConfigError(
                f"{platform.node()} does not see {path.parent}, which the plan is written to: all nodes of the cluster "
                "must share that folder under the same path (NFS or the like); give another --out"
            )
        if self.directory.is_dir():
            os.chdir(self.directory)
        # Last, so that they shadow nothing.
        sys.path.extend(path for path in self.paths if path not in sys.path)
        for name, value in self.variables.items():
            os.environ.setdefault(name, value)


def _holds(path: Path, text: str) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text("ascii") == text
    return False


def attempt(job: Job, surroundings: Surroundings) -> Iterator[Begun | JobResult]:
    """Say who works at the job, work at it, and say how it ended.

    Raises:
        ConfigError: as `Surroundings.enter`; nothing was written.
    """
    yield Begun(os.getpid(), platform.node())
    surroundings.enter()
    # Who is still there after that is named by the result.
    with suppress(ConfigError):
        wait_until_free(job.folder, seconds=_LOCK_SECONDS)
    yield run_job(job.config, job.folder, job.trusted)
