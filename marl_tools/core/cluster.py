"""Ray, and the only module that imports it: joining or starting a cluster, tasks, streams and actors on it, waits that end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from marl_tools.core.errors import ConfigError, MissingExtraError, WorkerError
from marl_tools.core.logging import log
from marl_tools.core.placement import Node, Resources
from marl_tools.core.ray_surroundings import (
    probe,
    ray_environment,
    short_temp_dir,
    sigterm_kept,
    without_daemon_messages,
)

__all__ = ["CancelledError", "Cluster", "Node", "Resources", "WorkerLostError", "connect"]

_OBJECT_STORE_BYTES = 256 * 2**20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class WorkerLostError(WorkerError):
    """The process, or the whole node, that a task or an actor ran on is gone; nothing that the task did is to blame."""


class Cluster:
    """A cluster that this process is joined to; made by `connect`. Handles of tasks and actors are Ray's own.

    No call waits for ever: a node that vanished may leave tasks and actors pending, so whoever waits has to look up now and then.
    """

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._remote: dict[Any, Any] = {}

    @property
    def address(self) -> str:
        """``host:port`` of the head."""
        return self._ray.get_runtime_context().gcs_address

    def nodes(self) -> list[Node]:
        """All that ever joined; those that left or died are no longer ``alive``."""
        return [
            Node(
                id=node["NodeID"],
                host=node["NodeManagerHostname"],
                alive=node["Alive"],
                resources=node["Resources"],
            )
            for node in self._ray.nodes()
        ]

    def free(self) -> dict[str, float]:
        """What no task or actor holds at the moment, summed over the nodes."""
        return self._ray.available_resources()

    def submit(self, function: Callable[..., Any], *args: Any, resources: Resources, name: str = "") -> Any:
        """Call ``function(*args)`` in a worker process: a handle for `ready`, `result` and `cancel`. Nothing is retried.

        The function is found by its module and name over there, one from a script is sent along.
        """
        return self._task(function, resources, name).remote(*args)

    def stream(
        self, function: Callable[..., Iterator[Any]], *args: Any, resources: Resources, name: str = ""
    ) -> Any:
        """As `submit` for a generator function, whose items are told one by one: `ready`, then `item`."""
        return self._task(function, resources, name, num_returns="streaming").remote(*args)

    def actor(self, kind: type, *args: Any, resources: Resources, spread: bool = False) -> Any:
        """An object of the class ``kind`` in a worker process of its own.

        ``handle.method.remote(...)`` gives what `ready` and `result` take. Its calls run one after another. An actor that is lost
        is not started again. ``spread``: over the nodes, instead of filling one after the other.
        """
        return (
            self._remote_of(kind)
            .options(
                **resources.options(),
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy="SPREAD" if spread else "DEFAULT",
            )
            .remote(*args)
        )

    def ready(self, handles: Sequence[Any], *, timeout: float, count: int = 1) -> list[Any]:
        """Those of the handles that have come to an end, or to another item, as soon as ``count`` have; at most ``timeout`` s."""
        if not handles:
            return []
        count = min(count, len(handles))
        return self._ray.wait(list(handles), num_returns=count, timeout=timeout, fetch_local=False)[0]

    def result(self, handle: Any, *, timeout: float) -> Any:
        """What the task or call returned.

        Raises:
            TimeoutError: nothing within ``timeout`` seconds; it may be asked again.
            WorkerLostError: it will never return.
            CancelledError: by `cancel`.
            Exception: what it raised itself, with the traceback over there as a note.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle, timeout=timeout)
        except errors.GetTimeoutError:
            raise TimeoutError(f"no answer from the cluster within {timeout:g} s") from None
        except errors.TaskCancelledError:
            raise CancelledError from None
        except errors.RayTaskError as error:
            if not isinstance(error.cause, Exception):
                raise
            error.cause.add_note(f"On the cluster:\n{_COLOUR.sub('', str(error))}")
            raise error.cause from None
        except self._losses as error:
            raise WorkerLostError(_first_sentence(error)) from error

    def item(self, stream: Any, *, timeout: float) -> Any:
        """The next item of a stream.

        Raises:
            StopIteration: there are no more.
            Others as `result`.
        """
        return self.result(next(stream), timeout=timeout)

    def cancel(self, handle: Any, *, force: bool = False) -> None:
        """Raise KeyboardInterrupt in a task, once it is out of compiled code; with ``force`` kill its process at once.

        One that has not begun never will.
        """
        self._ray.cancel(handle, force=force)

    def kill(self, actor: Any) -> None:
        """End an actor's process at once; an actor that is gone already is no error."""
        self._ray.kill(actor)

    def _task(self, function: Callable[..., Any], resources: Resources, name: str, **options: Any) -> Any:
        if name:
            options["name"] = name
        return self._remote_of(function).options(**resources.options(), max_retries=0, **options)

    def _remote_of(self, what: Callable[..., Any]) -> Any:
        """Ray's wrapper, made once: it sends the code over when it is first used."""
        if what not in self._remote:
            self._remote[what] = self._ray.remote(what)
        return self._remote[what]

    @cached_property
    def _losses(self) -> tuple[type[Exception], ...]:
        errors = self._ray.exceptions
        return (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.LocalRayletDiedError,
            errors.OutOfMemoryError,
            errors.RayActorError,
            errors.ObjectLostError,
            errors.RaySystemError,
        )


@contextmanager
def connect(
    address: str | None = None, *, cpus: int | None = None, object_store: int = _OBJECT_STORE_BYTES
) -> Iterator[Cluster]:
    """Join the cluster at ``address``, or start one on this machine; at the end it is left, or ended with all its processes.

    Args:
        address: ``host:port`` of the head, "auto" for one that runs on this machine, "local" for a new one. None: what
            ``RAY_ADDRESS`` says, else "local". A process that has joined one by itself keeps it.
        cpus: that a cluster of this machine offers to tasks; by default as many as this process may use.
        object_store: bytes of shared memory that it may hold results and messages in.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: there is no such cluster, it refused us, or a cluster of this machine could not be started.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    own = address == "local"
    with ray_environment(own=own):
        ray = _import_ray()
    with ExitStack() as stack:
        stack.enter_context(without_daemon_messages(ray))
        if ray.is_initialized():
            _check_joined(ray, address)
        else:
            probe(address)
            log("starting Ray on this machine" if own else f"joining the Ray cluster {address}", type="ray")
            folder = stack.enter_context(short_temp_dir()) if own else None
            stack.callback(ray.shutdown)
            with ray_environment(own=own), sigterm_kept():
                _init(ray, address, _local_options(folder, cpus, object_store) if folder else {})
        yield Cluster(ray)


def _import_ray() -> ModuleType:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingExtraError('Ray is not installed: pip install "marl-tools[ray]"') from error
    return ray


def _check_joined(ray: ModuleType, address: str) -> None:
    joined = Cluster(ray).address
    if address not in ("local", "auto", joined):
        raise ConfigError(f"this process is in the cluster at {joined}: ray.shutdown() before {address}")


def _local_options(folder: Path, cpus: int | None, object_store: int) -> dict[str, Any]:
    return {
        "num_cpus": cpus or len(os.sched_getaffinity(0)),
        "object_store_memory": object_store,
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }


def _init(ray: ModuleType, address: str, options: Mapping[str, Any]) -> None:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **options)
    # Ray raises its own errors, built-in ones and plain exceptions, by how far it has come.
    except Exception as error:
        raise ConfigError(
            f"cannot join the Ray cluster {address}: {_first_sentence(error)} If it runs, it may ask for a token: copy "
            "~/.ray/auth_token of its head, or set RAY_AUTH_TOKEN; and Ray and Python must be of its versions"
            if address != "local"
            else f"cannot start Ray on this machine: {_first_sentence(error)}"
        ) from error


def _first_sentence(error: BaseException) -> str:
    """Ray's messages go on for paragraphs."""
    lines = (line.strip() for line in str(error).splitlines())
    line = next(filter(None, lines), type(error).__name__)
    return f"{line.partition('. ')[0].rstrip('.')[:300]}."
