"""Every error that this package raises on purpose, and the did-you-mean that goes with unknown names.

::

    MarlToolsError
    ├── ConfigError(ValueError)         a setting, flag or argument that cannot work
    ├── EnvError(RuntimeError)          an environment that broke the PettingZoo contract
    ├── FileFormatError(ValueError)     a file of an unknown or refused kind
    ├── CorruptFileError(ValueError)    a file that cannot be read; it stays as it was
    ├── MissingExtraError(ImportError)  an optional package that is not installed
    ├── NonFiniteError(ArithmeticError) NaN or infinity in an observation, a reward or a loss
    ├── DiskFullError(OSError)          a run that stopped for want of room on its disk
    ├── WorkerError(RuntimeError)       a worker process that died or hung
    └── VideoError(RuntimeError)        a clip that could not be written
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class MarlToolsError(Exception):
    """Base class: ``except MarlToolsError`` catches all that is raised on purpose here."""


class ConfigError(MarlToolsError, ValueError):
    """A setting that cannot work; the message names the value and the remedy."""


class EnvError(MarlToolsError, RuntimeError):
    """An environment that broke the PettingZoo contract; the message names env and agent."""


class FileFormatError(MarlToolsError, ValueError):
    """A file suffix that is unknown, or refused for safety."""


class CorruptFileError(MarlToolsError, ValueError):
    """A file whose content cannot be read. The file is left as it was."""


class MissingExtraError(MarlToolsError, ImportError):
    """An optional package is missing; the message holds the install command."""


class NonFiniteError(MarlToolsError, ArithmeticError):
    """NaN or infinity where a number was needed."""


class DiskFullError(MarlToolsError, OSError):
    """The disk took no more; what was finished before is whole, and the message says how to go on."""


class WorkerError(MarlToolsError, RuntimeError):
    """A worker process died, or did not answer in time; the message names it, its end and its copies of the env."""


class Interrupted(MarlToolsError):
    """Work was stopped by Ctrl-C or SIGTERM after its state was saved; the message says how to go on."""


class VideoError(MarlToolsError, RuntimeError):
    """A clip could not be encoded or saved."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the nearest known name, or the sorted list of what is known."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(known)}."
