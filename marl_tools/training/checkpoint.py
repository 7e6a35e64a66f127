"""Checkpoint files: one safetensors file, whose header holds the rest as JSON; whole or not at all, never a pickle.

What a run keeps of them, and which one is read, is told by `training.checkpoint_folder`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_tools.core.durable import plain
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import PathLike, atomic_write, create_dir

SCHEMA = 3
_KEY, _DIGEST, _ARRAY, _TEXT = "marl_tools", "sha256", "$array", "$text"


def save_checkpoint(path: PathLike, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> str:
    """Write tensors and a state to ``path``; an older file is replaced only by a whole new one.

    The state is plain JSON with NumPy arrays, of numbers or text, anywhere in it. Returns the SHA-256 of the file, in hexadecimal.
    """
    from safetensors.torch import save

    from marl_tools import __version__

    path = Path(path)
    create_dir(path.parent)
    own = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    state = _take_arrays({"schema": SCHEMA, "version": __version__, **state}, own)
    text = json.dumps(state, default=plain)
    data = save(own, {_KEY: text, _DIGEST: _digest(text, own.items())})
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def load_checkpoint(path: PathLike) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_checkpoint` wrote. No code in the file is run, and no changed bit passes.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: it is no checkpoint, or a damaged one; it is left as it was.
        ConfigError: another version of this package wrote it, in a format that this one does not read.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            text = _field(header, _KEY, str)
            state = json.loads(text)
            schema = _field(state, "schema", int)
            if schema != SCHEMA:
                raise _another_version(path, schema, state.get("version"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _field(header, _DIGEST, str) != _digest(text, tensors.items()):
            raise ValueError(f"field {_DIGEST!r} is the checksum of other content")
        return tensors, _put_arrays(state, tensors)
    except (SafetensorError, ConfigError, OSError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise CorruptFileError(
            f"{path} is not a readable checkpoint ({error}); it was left as it is"
        ) from error


def _another_version(path: Path, schema: int, writer: Any) -> ConfigError:
    from marl_tools import __version__

    by = f"marl-tools {writer}" if isinstance(writer, str) else "another version of marl-tools"
    remedy = "upgrade marl-tools" if schema > SCHEMA else f"use {by}, or train anew"
    return ConfigError(
        f"{path} has checkpoint format {schema}, written by {by}; this is marl-tools {__version__}, which reads format "
        f"{SCHEMA}: {remedy}."
    )


def _field(mapping: Any, name: str, kind: type) -> Any:
    if not isinstance(mapping, Mapping):
        raise ValueError(f"its state is a {type(mapping).__name__}, not a mapping")
    if type(value := mapping.get(name)) is not kind:
        raise ValueError(f"field {name!r} is {str(value)[:80]!r}, not a value of type {kind.__name__}")
    return value


def _digest(text: str, tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Of all that a checkpoint holds, in an order of its own: safetensors sorts by size and name."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        # As bytes: NumPy knows fewer kinds of numbers than torch. An empty tensor that was an array is no view of any.
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _take_arrays(value: Any, tensors: dict[str, Tensor], place: str = "$state") -> Any:
    """``value`` with its arrays moved to ``tensors``, each named by its place."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "U":
        return {_TEXT: value.tolist()}
    if isinstance(value, np.ndarray):
        tensors[place] = torch.from_numpy(np.array(value, order="C"))
        return {_ARRAY: place}
    if isinstance(value, Mapping):
        return {key: _take_arrays(item, tensors, f"{place}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_arrays(item, tensors, f"{place}/{index}") for index, item in enumerate(value)]
    return value


def _put_arrays(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Inverse of `_take_arrays`."""
    if isinstance(value, list):
        return [_put_arrays(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_ARRAY}:
        if not isinstance(place := value[_ARRAY], str) or place not in tensors:
            raise ValueError(f"field {_ARRAY!r} names no tensor: {place!r}")
        return tensors.pop(place).numpy()
    if value.keys() == {_TEXT}:
        return np.array(value[_TEXT], str)
    return {key: _put_arrays(item, tensors) for key, item in value.items()}
