"""One flat set of names over nested settings: which dataclass holds a name, and strict types for values."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typeguard import TypeCheckError, check_type

from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.experiment.flags import Count

Path_ = tuple[str, ...]


class FlatSettings:
    """The flat names of a dataclass and of the dataclasses in its fields.

    Args:
        kind: a dataclass. A field whose default is a dataclass itself contributes that one's names instead of its own.
        hidden: names that are derived, and no settings.
    """

    def __init__(self, kind: type[Any], hidden: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self._owners: dict[str, Path_] = {}
        self._hints: dict[str, Any] = {}
        self._counts: set[str] = set()
        """Those that may be written as 1e6, which is a float in TOML."""
        self._parts: dict[Path_, type[Any]] = {}
        self._walk(kind, (), hidden)

    def _walk(self, kind: type[Any], path: Path_, hidden: tuple[str, ...]) -> None:
        self._parts[path] = kind
        hints, extra = typing.get_type_hints(kind), typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            if dataclasses.is_dataclass(hints[field.name]):
                self._walk(hints[field.name], (*path, field.name), hidden)
            elif field.name not in hidden:
                if Count in (extra[field.name], *typing.get_args(extra[field.name])):
                    self._counts.add(field.name)
                assert field.name not in self._owners, f"two settings are called {field.name}"
                self._owners[field.name] = path
                self._hints[field.name] = hints[field.name]

    @property
    def names(self) -> list[str]:
        return list(self._owners)

    def flatten(self, settings: Any) -> dict[str, Any]:
        """One level of plain values."""
        flat = {}
        for name, path in self._owners.items():
            owner = settings
            for part in path:
                owner = getattr(owner, part)
            value = getattr(owner, name)
            flat[name] = str(value) if isinstance(value, Path) else value
        return flat

    def build(self, flat: Mapping[str, Any]) -> Any:
        """The dataclass with these values; what is not named keeps its default.

        Raises:
            ConfigError: an unknown name (with the nearest known one), or a value of the wrong type.
        """
        values: dict[Path_, dict[str, Any]] = {path: {} for path in self._parts}
        for name, value in flat.items():
            if name not in self._owners:
                raise ConfigError(f"unknown setting {name!r}.{did_you_mean(name, self._owners)}")
            if name in self._counts and isinstance(value, float) and value.is_integer():
                value = int(value)
            values[self._owners[name]][name] = _typed(name, value, self._hints[name])
        # Inner ones first: each becomes a value of the one around it.
        for path in sorted(self._parts, key=len, reverse=True):
            if path:
                values[path[:-1]][path[-1]] = self._parts[path](**values[path])
        return self.kind(**values[()])


def _typed(name: str, value: Any, hint: Any) -> Any:
    """``value`` if it is of the declared type, lists as tuples and strings as paths; no other conversion."""
    if isinstance(value, list):
        value = tuple(value)
    if hint == Path | None and isinstance(value, str):
        value = Path(value)
    try:
        # A bool passes for a number in Python; as a setting it is a slip.
        if isinstance(value, bool) and bool not in (hint, *typing.get_args(hint)):
            raise TypeCheckError("is a bool")
        return check_type(value, hint)
    except TypeCheckError as error:
        plain = getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint)
        raise ConfigError(f"{name}={value!r}: must be {str(plain).replace('typing.', '')}") from error
