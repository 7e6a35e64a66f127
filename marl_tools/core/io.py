"""Save and load by suffix, without ever running a stranger's code.

A file appears under its name only when whole; `atomic_write`, `JsonLines` and `read_jsonl` live in `core.durable`.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marl_tools.core.durable import JsonLines, atomic_write, json_line, plain, read_jsonl, rows_of
from marl_tools.core.errors import ConfigError, CorruptFileError, FileFormatError, did_you_mean

__all__ = ["JsonLines", "atomic_write", "create_dir", "load_from_file", "load_from_file_if_exists"]
__all__ += ["read_jsonl", "read_toml", "save_to_file"]

PathLike = str | os.PathLike[str]


def create_dir(path: PathLike) -> Path:
    """Make a directory with its parents, if it is not there yet, and return it."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def save_to_file(obj: Any, dir: PathLike, filename: PathLike, *, allow_pickle: bool = False) -> Path:
    """Write ``obj`` to ``dir/filename`` in the format of the suffix, atomically; returns the path.

    - ``.json``: plain values, NumPy values, paths (as strings), dataclasses, sets (sorted). Keys come back as
      strings and tuples as lists. NaN and infinities are written as the bare words NaN, Infinity and -Infinity,
      which Python and pandas read back and strict JSON parsers refuse.
    - ``.jsonl``: an iterable of mappings, one a line, each as in ``.json``.
    - ``.csv``: an iterable of mappings. Every value comes back as a string, so that an agent called "000" stays
      one; None and a missing key come back as "".
    - ``.txt``: a string, kept to the byte.
    - ``.npz``: a mapping of names to arrays, arrays of objects excepted.
    - ``.safetensors``: a flat mapping of names to tensors or arrays; tensors come back, on the CPU.
    - ``.pt``: tensors among plain values in dicts, lists and tuples. Arrays come back as tensors, NumPy scalars
      as numbers, paths as strings, dataclasses as dicts, sets as lists.
    - ``.pkl``, ``.pickle``: anything, only with ``allow_pickle=True``.
    - ``.toml``: read only.

    Raises:
        FileFormatError: the suffix is unknown, read only or a pickle unasked for, or cannot hold ``obj``.
        ConfigError: ``filename`` leads out of ``dir``.
    """
    path = _inside(dir, filename)
    file_format = _format(path, allow_pickle)
    if file_format.encode is None:
        raise FileFormatError(f"cannot save {path}: {path.suffix} files are only read here; save as .json.")
    try:
        data = file_format.encode(obj)
    except (TypeError, ValueError, AttributeError, RuntimeError, pickle.PicklingError) as error:
        raise FileFormatError(
            f"cannot save a {type(obj).__name__} as {path}: {_brief(error)}. {path.suffix} holds {file_format.holds}."
        ) from error
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
    return path


def load_from_file(dir: PathLike, filename: PathLike, *, allow_pickle: bool = False) -> Any:
    """Read back what `save_to_file` wrote. Runs no code that a file holds, unless it is a pickle asked for.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: it cannot be read as what its suffix says; it is left as it was.
        FileFormatError: the suffix is unknown, or a pickle unasked for.
        ConfigError: ``filename`` leads out of ``dir``.
    """
    path = _inside(dir, filename)
    file_format = _format(path, allow_pickle)
    data = path.read_bytes()
    try:
        return file_format.decode(data)
    except ImportError:
        raise
    # Damaged bytes make the parsers fail in every way there is: struct, zlib, key, index, memory errors.
    except Exception as error:
        raise CorruptFileError(
            f"cannot read {path} as {path.suffix} ({file_format.holds}): {_brief(error)}. "
            "The file was left as it is."
        ) from error


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file that somebody named, as opposed to one that was saved; ``what`` says what it should be.

    Raises:
        ConfigError: it cannot be read.
        CorruptFileError: it is no TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{path} is not TOML: {error}") from error


def load_from_file_if_exists(
    directory: PathLike, filename: PathLike, default: Any = None, *, allow_pickle: bool = False
) -> Any:
    """`load_from_file`, or ``default`` if the file is missing. One that is there but broken still raises."""
    try:
        return load_from_file(directory, filename, allow_pickle=allow_pickle)
    except FileNotFoundError:
        return default


def _inside(dir: PathLike, filename: PathLike) -> Path:
    name = Path(filename)
    if name.is_absolute() or ".." in name.parts or not name.name:
        raise ConfigError(
            f"file name {str(filename)!r} leads out of {str(dir)!r}: give a plain name, or one in a subfolder."
        )
    return Path(dir) / name


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")


def _to_json(obj: Any) -> bytes:
    return (json.dumps(obj, default=plain, indent=2) + "\n").encode()


def _to_jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    if isinstance(rows, Mapping | str):
        raise TypeError("rows are a list of mappings")
    return b"".join(map(json_line, rows))


def _from_jsonl(data: bytes) -> list[dict[str, Any]]:
    return list(rows_of(io.BytesIO(data), "file"))


def _to_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    rows = list(rows)
    text = io.StringIO(newline="")
    columns: dict[str, None] = {}
    for row in rows:
        columns |= dict.fromkeys(row.keys())
    writer = csv.DictWriter(text, list(columns))
    if columns:
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()


def _from_csv(data: bytes) -> list[dict[str, str]]:
    reader = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
    columns = next(reader, [])
    if len(set(columns)) < len(columns):
        raise ValueError(f"a column is named twice in {columns}")
    rows = []
    for values in reader:
        if len(values) != len(columns):
            raise ValueError(f"line {reader.line_num} has {len(values)} values for {len(columns)} columns")
        rows.append(dict(zip(columns, values, strict=True)))
    return rows


def _to_txt(text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"got a {type(text).__name__}")
    return text.encode()


def _to_npz(arrays: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _from_npz(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _to_safetensors(tensors: Mapping[str, Any]) -> bytes:
    import torch
    from safetensors.torch import save

    def own(value: Any) -> torch.Tensor:
        # The format refuses tensors that share memory, as tied weights do: each gets its own.
        if isinstance(value, torch.Tensor):
            return value.detach().cpu().clone().contiguous()
        return _tensor(value)

    return save({name: own(value) for name, value in tensors.items()})


def _from_safetensors(data: bytes) -> dict[str, Any]:
    from safetensors.torch import load

    return load(data)


def _to_pt(obj: Any) -> bytes:
    import torch

    # `torch.load(weights_only=True)` takes no other types: what it would refuse is refused here, at saving.
    leaves = (bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, type(None))

    def loadable(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach()
        if isinstance(value, np.ndarray):
            return _tensor(value)
        if type(value) in leaves:
            return value
        if type(value) in (list, tuple):
            return type(value)(map(loadable, value))
        if isinstance(value, Mapping):
            return {loadable(key): loadable(item) for key, item in value.items()}
        return loadable(plain(value))

    buffer = io.BytesIO()
    torch.save(loadable(obj), buffer)
    return buffer.getvalue()


def _from_pt(data: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _tensor(array: Any) -> Any:
    import torch

    # A copy: torch takes no negative strides, and warns of arrays that are read only.
    return torch.from_numpy(np.array(array, order="C"))


class _Format(NamedTuple):
    holds: str
    encode: Callable[[Any], bytes] | None
    decode: Callable[[bytes], Any]


_PICKLE = _Format("any Python object", pickle.dumps, pickle.loads)
_FORMATS = {
    ".json": _Format("plain values", _to_json, json.loads),
    ".jsonl": _Format("mappings of plain values, one a line", _to_jsonl, _from_jsonl),
    ".toml": _Format("settings", None, lambda data: tomllib.loads(data.decode())),
    ".csv": _Format("mappings with the same keys", _to_csv, _from_csv),
    ".txt": _Format("one string", _to_txt, bytes.decode),
    ".npz": _Format("a mapping of names to arrays that are not of objects", _to_npz, _from_npz),
    ".safetensors": _Format("a flat mapping of names to tensors", _to_safetensors, _from_safetensors),
    ".pt": _Format("tensors and plain values", _to_pt, _from_pt),
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
}


def _format(path: Path, allow_pickle: bool) -> _Format:
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        hint = did_you_mean(suffix, _FORMATS) if suffix else ""
        raise FileFormatError(
            f"file name {path.name!r} has an unknown suffix {suffix!r}.{hint} Known: {', '.join(sorted(_FORMATS))}."
        )
    if _FORMATS[suffix] is _PICKLE and not allow_pickle:
        raise FileFormatError(
            f"{path} is a pickle, which runs the code that it holds when it is loaded: pass allow_pickle=True "
            "for a file that you made yourself, or use .json, .npz or .safetensors."
        )
    return _FORMATS[suffix]
