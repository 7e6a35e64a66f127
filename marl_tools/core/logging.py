"""Log lines for people: one console that progress bars share, and one file that many processes may append to.

Built on loguru with a logger object of its own; the host program's loguru handlers and root logger stay as they are.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from marl_tools.core.durable import write_whole
from marl_tools.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_LOG_FORMAT = "<dim>{time:YYYY-MM-DD HH:mm:ss}</dim> <level>{level: <8}</level> <cyan>{extra[type]: <10}</cyan> {message}"
"""A loguru format; ``{extra[type]}`` is the tag given to `log`."""

LOG_FILE = "marl_tools.log"

_LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "SUCCESS": 25, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}


class LoggingSettings(NamedTuple):
    """Arguments of `configure_logging` that another process can be given: all but a console sink."""

    min_level: str | int
    logs_dir: str | os.PathLike[str] | None
    console_enabled: bool
    file_enabled: bool
    log_format: str


class _Defaults(NamedTuple):
    console: bool
    file: bool


_defaults: _Defaults | None = None
_settings: LoggingSettings | None = None


def configure_logging(
    *,
    min_level: str | int = "INFO",
    logs_dir: str | os.PathLike[str] | None = None,
    console_enabled: bool = True,
    file_enabled: bool = True,
    console_sink: TextIO | None = None,
    log_format: str = DEFAULT_LOG_FORMAT,
) -> None:
    """Set up where this process's log lines go; calling it again replaces what was set before.

    A spawned worker calls it too, with the same ``logs_dir``: every line is one append, so those of several
    processes never interleave. Colour is used on a terminal only, and not with ``NO_COLOR`` set.

    Args:
        min_level: a level name, or a number as in the standard library (20 is INFO).
        logs_dir: folder for ``marl_tools.log``, made if ``file_enabled``; None: no file.
        console_enabled: whether lines go to the console unless `log` says otherwise.
        file_enabled: whether a log file is kept.
        console_sink: a text stream instead of `console`, which writes to stderr.
        log_format: a loguru format string.

    Raises:
        ConfigError: an unknown level, or a format that loguru cannot read; the earlier set-up stays.
    """
    global _defaults, _settings
    level = _level(min_level)
    _try_format(log_format)
    stream = _ConsoleStream(console_sink)
    log_file = None
    if file_enabled and logs_dir is not None:
        Path(logs_dir).mkdir(parents=True, exist_ok=True)
        log_file = _LogFile(Path(logs_dir) / LOG_FILE)
    logger = _logger()
    logger.remove()
    # `diagnose` would print the values of variables into a traceback, secrets among them.
    common: dict[str, Any] = {"level": level, "format": log_format, "backtrace": False, "diagnose": False}
    logger.add(stream, colorize=stream.colour, filter=lambda record: record["extra"]["console"], **common)
    if log_file:
        logger.add(log_file, colorize=False, filter=lambda record: record["extra"]["file"], **common)
    _defaults = _Defaults(console=console_enabled, file=log_file is not None)
    _settings = LoggingSettings(min_level, logs_dir, console_enabled, file_enabled, log_format)


def logging_settings() -> LoggingSettings | None:
    """What this process was configured with, for ``configure_logging(**settings._asdict())`` in a worker; None: nothing."""
    return _settings


def log(
    message: object,
    *,
    type: str | None = None,
    priority: str | int = "INFO",
    console: bool | None = None,
    file: bool | None = None,
    exception: BaseException | bool | None = None,
) -> None:
    """Write one message, verbatim. Before any `configure_logging`, to the console at INFO and above.

    Args:
        message: printed as ``str(message)``; braces and ``<tags>`` mean nothing in it.
        type: a short tag, shown in a column of its own.
        priority: a level name or number.
        console: whether it goes to the console; None: as configured.
        file: whether it goes to the log file; None: as configured.
        exception: an exception, or True for the one being handled; its traceback follows the message.

    Raises:
        ConfigError: an unknown level, or ``file=True`` when no log file is configured.
    """
    if _defaults is None:
        configure_logging()
    assert _defaults is not None
    if file and not _defaults.file:
        raise ConfigError(
            "log(file=True) but there is no log file: call configure_logging(logs_dir=...) first."
        )
    if exception is True and sys.exc_info()[0] is None:
        exception = None
    _logger().bind(
        type=type or "",
        console=_defaults.console if console is None else console,
        file=_defaults.file if file is None else file,
    ).opt(exception=exception or None, depth=1).log(_level(priority), str(message))


@cache
def console() -> Console:
    """The one rich console of this process, on stderr. Draw progress bars on it, and log lines go above them."""
    from rich.console import Console

    return Console(stderr=True)


@cache
def _logger() -> Any:
    logger = _new_logger()
    atexit.register(logger.remove)
    return logger


def _new_logger() -> Any:
    # loguru has no public way to make a second logger without emptying the first; this is how it makes its own.
    from loguru._logger import Core, Logger

    return Logger(
        core=Core(),
        exception=None,
        depth=0,
        record=False,
        lazy=False,
        colors=False,
        raw=False,
        capture=True,
        patchers=[],
        extra={},
    )


class _ConsoleStream:
    """Lines to a given stream, or else to the shared console, above a live display if there is one."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        if stream is None:
            self.colour = console().is_terminal and not console().no_color
        else:
            isatty = getattr(stream, "isatty", None)
            self.colour = bool(isatty and isatty()) and not os.environ.get("NO_COLOR")

    def write(self, line: str) -> None:
        if self._stream is None and console().is_terminal:
            from rich.text import Text

            line = line.rstrip("\n")
            console().print(Text.from_ansi(line) if self.colour else Text(line), soft_wrap=True)
            return
        stream = self._stream or console().file
        stream.write(line)
        stream.flush()


class _LogFile:
    """A file in append mode, one system call a line: whole lines, also from many processes at once."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(self, line: str) -> None:
        write_whole(self._file, line.encode(errors="backslashreplace"))

    def stop(self) -> None:
        self._file.close()


def _level(level: str | int) -> str | int:
    """A loguru level: a known name, or a number that has none."""
    if isinstance(level, str):
        if level.upper() not in _LEVELS:
            raise ConfigError(f"unknown log level {level!r}.{did_you_mean(level.upper(), _LEVELS)}")
        return level.upper()
    if isinstance(level, bool) or not isinstance(level, int) or level < 0:
        raise ConfigError(f"log level {level!r} is neither a name ({', '.join(_LEVELS)}) nor a number >= 0.")
    names = {number: name for name, number in _LEVELS.items()}
    return names.get(level, level)


def _try_format(log_format: str) -> None:
    trial = _new_logger()
    try:
        trial.add(lambda line: None, format=log_format, catch=False)
        trial.bind(type="").info("")
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"log_format {log_format!r} does not work ({error!r}): see loguru for its fields, "
            "and DEFAULT_LOG_FORMAT for an example."
        ) from error
