"""Checkpoints: one safetensors file, whose header holds the rest as JSON; whole or not at all, and never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import PathLike, atomic_write, create_dir

SCHEMA = 1
_KEY = "marl_tools"


def save_checkpoint(path: PathLike, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write tensors and a JSON-able state to ``path``; an older file is replaced only by a whole new one."""
    from safetensors.torch import save_file

    path = Path(path)
    create_dir(path.parent)
    metadata = {_KEY: json.dumps({"schema": SCHEMA, **state})}
    plain = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(plain, temporary, metadata)
    return path


def load_checkpoint(path: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_checkpoint` wrote. No code in the file is run.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: it is no checkpoint, or a damaged one; it is left as it was.
        ConfigError: a later version of this package wrote it.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        schema = state["schema"]
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptFileError(
            f"{path} is not a readable checkpoint ({error}); it was left as it is"
        ) from error
    if schema != SCHEMA:
        raise ConfigError(
            f"{path} has checkpoint format {schema}; this version reads {SCHEMA}. Upgrade marl-tools."
        )
    return tensors, state
