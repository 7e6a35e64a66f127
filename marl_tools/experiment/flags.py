"""How flags are read: counts such as 200k, key=value pairs, and a mistake as one sentence instead of a box."""

from __future__ import annotations

import io
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from decimal import Decimal
from typing import Annotated, Any

import tyro

from marl_tools.core.errors import ConfigError

_COUNT = re.compile(r"(-?\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d{1,2})?)([kM]?)")
_SCALES = {"": 1, "k": 1000, "M": 1_000_000}
_RULE = re.compile(r"[─-]+")
_READABLE = (
    (r"^Error parsing ", ""),
    (r"no type matching (\S+) could be instantiated from \[(.*?)\]\..*", r"\2 is none of \1"),
    (r"invalid literal for int\(\) with base 10: (.*)", r"\1 is no whole number"),
    (r"could not convert string to float: (.*)", r"\1 is no number"),
)
"""tyro's words for a value of the wrong kind, and ours, without names of Python's classes."""


def whole_number(text: str) -> int:
    """A count as people write it: 200000, 200_000, 200k, 2M or 1e6.

    Raises:
        ValueError: it is none, or not whole.
    """
    match = _COUNT.fullmatch(text)
    number = Decimal(match[1].replace("_", "")) * _SCALES[match[2]] if match else Decimal("0.5")
    if number != number.to_integral_value():
        raise ValueError(f"{text!r} is no whole number, such as 200000, 200_000, 200k or 1e6")
    return int(number)


Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda texts: whole_number(texts[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A whole number that may be written as 200k or 1e6."""


def _read_pairs(pairs: list[str]) -> dict[str, Any]:
    """key=value arguments; a value is TOML where it parses as that, else the text itself."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is no key=value, such as N=4")
        try:
            settings[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = text
    return settings


Pairs = Annotated[
    Mapping[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="KEY=VALUE ...",
        instance_from_str=_read_pairs,
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda value: [f"{key}={item}" for key, item in value.items()],
    ),
]
"""Settings by name, written key=value."""


def parse(
    kind: type[Any],
    args: Sequence[str],
    command: str,
    *,
    default: Any = None,
    description: str | None = None,
) -> Any:
    """``kind`` from flags. For --help, tyro prints it and leaves with code 0.

    Raises:
        ConfigError: a mistake in the flags.
    """
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(
                kind,
                args=args,
                prog=f"marl-tools {command}",
                description=description,
                # Flags carry the settings' own names, however deep they live.
                config=(tyro.conf.OmitArgPrefixes,),
                **({} if default is None else {"default": default}),
            )
    except SystemExit as leave:
        if not leave.code:
            raise
        raise ConfigError(f"{_sentence(said.getvalue())} (marl-tools {command} --help)") from None


def _sentence(box: str) -> str:
    """What a box of tyro's says, without its title, its frame and the help that it repeats."""
    sections: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        # The frame is drawn in ASCII where the terminal knows no more.
        text = line.strip("│╰╯ ")
        if _RULE.fullmatch(text):
            sections.append([])
        else:
            sections[-1].append(text)
    texts = [" ".join(filter(None, lines)) for lines in sections]
    text = " ".join(text for text in texts if text and not re.match(r"(Argument|For full) helptext", text))
    for theirs, ours in _READABLE:
        text = re.sub(theirs, ours, text)
    return text
