"""What makes two runs the same run: their resolved settings, without where they are written."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from marl_tools.core.durable import plain
from marl_tools.core.errors import ConfigError
from marl_tools.experiment.config import RunConfig

_ELSEWHERE = ("out", "wandb_id")
_DIGITS = 8


def plain_settings(config: RunConfig) -> dict[str, Any]:
    """The flat settings as JSON gives them back, without the run folder and the id at wandb.

    Raises:
        ConfigError: a setting that JSON cannot hold, such as a date among ``env_kwargs``.
    """
    flat = {name: value for name, value in config.to_flat().items() if name not in _ELSEWHERE}
    try:
        return json.loads(json.dumps(flat, default=plain))
    except TypeError as error:
        raise ConfigError(
            f"{error}: a setting is a number, a string, true or false, or a list or table of them"
        ) from error


def fingerprint(config: RunConfig) -> str:
    """8 hexadecimal digits of SHA-256 over the canonical JSON of `plain_settings`: keys sorted, nothing optional in between.

    The same settings give the same digits in every process and Python version.
    """
    text = json.dumps(plain_settings(config), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def differing_settings(one: RunConfig, other: RunConfig) -> list[str]:
    """Names of the settings in which two runs differ, sorted; empty for the same run."""
    left, right = plain_settings(one), plain_settings(other)
    return sorted(name for name in left if left[name] != right[name])
