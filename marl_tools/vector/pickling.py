"""Factories on their way to another process: pickled up front, and where that fails the part to blame is named."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from marl_tools.core.errors import ConfigError


def pickle_factory(make_env: Any) -> bytes:
    """What a worker process makes its envs from.

    Raises:
        ConfigError: it cannot be pickled, and the innermost part that cannot is named; or what it is made of is defined where
            no other process can read it.
    """
    try:
        pickled = pickle.dumps(make_env)
    except Exception as error:
        path, culprit, reason = _innermost(type(make_env).__name__, make_env, error)
        raise ConfigError(
            f"{path} = {culprit!r} cannot be sent to a worker process ({reason}): use a function or class at the top of a "
            "module, or its name 'package.module:function', or leave workers at 0"
        ) from error
    if b"__main__" in pickled and not _main_is_in_a_file():
        raise ConfigError(
            f"{make_env!r} is made of what an interactive session, a notebook or a script from a pipe defines, which a worker "
            "process cannot see: put that into a module, or leave workers at 0"
        )
    return pickled


def _main_is_in_a_file() -> bool:
    main = sys.modules["__main__"]
    return main.__spec__ is not None or os.path.isfile(getattr(main, "__file__", None) or "")


def _innermost(path: str, value: Any, error: Exception) -> tuple[str, Any, Exception]:
    for name, part in _parts(value):
        try:
            pickle.dumps(part)
        except Exception as inner:
            return _innermost(path + name, part, inner)
    return path, value, error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from (("(function)", value.func), ("(arguments)", value.args), ("(arguments)", value.keywords))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
