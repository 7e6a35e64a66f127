"""What has to be right around Ray while it starts or joins a cluster: address, environment, a folder, signals. Imports no Ray."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from marl_tools.core.errors import ConfigError

_PROBE_SECONDS = 5.0
_LONGEST_FOLDER = 40
"""Letters: Ray puts Unix sockets some 65 letters deeper, and the system allows 107."""
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # What Ray will do by default one day, and warns of until then.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # By default workers yield to everything else on the machine, and next to anything busy come to a standstill.
    "RAY_worker_niceness": "0",
}
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def probe(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would try for minutes.

    Raises:
        ConfigError: what is wrong with it.
    """
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise ConfigError(f"{address!r} is no address of a Ray cluster: give host:port of its head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster at {address} ({error}): start one there by: ray start --head --port {port}"
        ) from error


@contextmanager
def ray_environment(*, own: bool) -> Iterator[None]:
    """What Ray reads when it is imported and when it starts (``own``) or joins a cluster; what is set already stays.

    Clusters guard themselves with a token by default since 2.60, but Ray looks for the one in the home folder by itself only
    where no address is given. A process keeps to what it was told about that when it imported Ray.
    """
    if "ray" not in sys.modules and (own or _has_token()):
        # For good: Ray looks it up as long as it is connected, and again when it is the next time.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    missing = _SETTINGS.keys() - os.environ.keys()
    os.environ.update({name: _SETTINGS[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _has_token() -> bool:
    return any(os.environ.get(name) for name in _TOKENS) or (Path.home() / ".ray" / "auth_token").is_file()


@contextmanager
def short_temp_dir() -> Iterator[Path]:
    """A folder for logs and sockets of a cluster of our own, gone afterwards."""
    folder = Path(tempfile.gettempdir()) / f"marl-ray-{secrets.token_hex(4)}"
    if len(str(folder)) > _LONGEST_FOLDER:
        folder = Path("/tmp") / folder.name
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def without_daemon_messages(ray: ModuleType) -> Iterator[None]:
    """Ray prints to stdout what its daemons say of each lost worker, whatever the log level; errors tell it here."""
    worker = ray._private.worker
    printed = getattr(worker, "print_to_stdstream", None)
    if printed is None:
        yield
        return
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = printed


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Ray puts a handler of its own that exits at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
