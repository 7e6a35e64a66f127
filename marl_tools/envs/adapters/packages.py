"""Packages that an adapter needs and that may be missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from marl_tools.core.errors import MissingExtraError


def imported(module: str, install: str) -> ModuleType:
    """The module, imported now.

    Raises:
        MissingExtraError: its package is not installed; the message holds the command ``install``.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{package} cannot be imported, since {error.name!r} is not installed here. Run: {install}"
        ) from error
