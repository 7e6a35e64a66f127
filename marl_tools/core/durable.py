"""Writes that a kill cannot tear: replacement in one step, and JSON lines, one system call a row."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import io
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from marl_tools.core.errors import CorruptFileError, FileFormatError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; what the block makes there, a file or a folder, becomes ``path``.

    On leaving, it is fsynced with all that it holds and takes the place of an older file or folder in one step.
    When the block raises, it is removed and ``path`` stays as it was. Missing parent folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # No suffix of its own: a glob for "*.json" must not find it.
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        if temporary.is_dir():
            for inside in temporary.rglob("*"):
                _fsync(inside)
        _fsync(temporary)
        if temporary.is_dir() and path.is_dir():
            _swap(temporary, path)
        else:
            os.replace(temporary, path)
        _fsync(path.parent)
    finally:
        if temporary.is_dir() and not temporary.is_symlink():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


class JsonLines:
    """Append rows to a ``.jsonl`` file: one whole line in one write each, so a kill loses no finished row.

    One writer per file; use it as a context manager or close it. A last line that an earlier kill left torn is
    moved to ``<name>.torn`` on opening. Rows hold what `plain` knows, NumPy values among it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend_tail(self.path)
        # Unbuffered, in append mode: a `write` is one system call at the end of the file.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row.

        Raises:
            FileFormatError: the row is no mapping, or holds what JSON cannot; nothing was written.
            OSError: the disk took no whole line (full, say); what it took of it is cut off again.
        """
        try:
            line = json_line(row)
        except (TypeError, ValueError, RecursionError) as error:
            raise FileFormatError(f"cannot append to {self.path}: {error}") from error
        self.extend([line])

    def extend(self, lines: Iterable[bytes]) -> None:
        """Write whole lines as they are, all or none of them; see `append`."""
        start = os.fstat(self._file.fileno()).st_size
        try:
            write_whole(self._file, b"".join(lines))
        except OSError:
            # The next row must not be glued to half of this one.
            self._file.truncate(start)
            raise

    def close(self) -> None:
        """Flush to the disk and close; closing again does nothing."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file one by one; a torn last line, left by a kill, is passed over.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: a whole line is not a JSON object; names the file and the line.
    """
    with open(path, "rb") as file:
        yield from rows_of(file, os.fspath(path))


def rows_of(lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
    """`read_jsonl` on lines that are already at hand; ``name`` is for the error."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _parse_row(line)
        if row is not None:
            yield row
        elif line.endswith(b"\n"):
            raise CorruptFileError(
                f"{name}, line {number} is not a JSON object: {line[:80]!r}. The file was left as it is; "
                "mend or delete that line."
            )


def set_rows_aside(
    path: str | os.PathLike[str], aside: str | os.PathLike[str], chosen: Callable[[dict[str, Any]], bool]
) -> int:
    """Move the chosen rows of a JSON-lines file to the end of another; returns how many. A kill midway loses none.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: a row is no JSON object, or ``chosen`` refused it; names the file and the row.
        OSError: the disk is full; the file is as it was.
    """
    path = Path(path)
    _mend_tail(path)
    kept, moved = [], []
    with open(path, "rb") as file:
        for number, line in enumerate((line for line in file if line.strip()), start=1):
            (row,) = rows_of([line], f"{path}, row {number}")
            try:
                (moved if chosen(row) else kept).append(line)
            except CorruptFileError as error:
                raise CorruptFileError(f"{path}, row {number}: {error}") from error
    if moved:
        with JsonLines(aside) as file:
            file.extend(moved)
        with atomic_write(path) as temporary:
            temporary.write_bytes(b"".join(kept))
    return len(moved)


def json_line(row: Any) -> bytes:
    """One mapping or dataclass as a line of JSON. Raises TypeError or ValueError for what JSON cannot hold."""
    if not isinstance(row, Mapping) and not _is_record(row):
        raise TypeError(f"a row is a mapping, not the {type(row).__name__} {repr(row)[:80]}")
    return (json.dumps(row, default=plain) + "\n").encode()


def plain(value: Any) -> Any:
    """One level of a value in terms that JSON knows: the ``default=`` of `json.dumps`.

    NumPy scalars and arrays, paths, dataclasses (by their ``to_json`` if they have one), mappings, sets (sorted).
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if _is_record(value):
        if hasattr(value, "to_json"):
            return value.to_json()
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        try:
            return sorted(value)
        except TypeError:
            return sorted(value, key=lambda item: (type(item).__name__, repr(item)))
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"the {type(value).__name__} {repr(value)[:80]} is not a plain value")


def write_whole(file: io.FileIO, data: bytes) -> None:
    """Write all of ``data`` to an unbuffered file: one system call, unless the disk fills up midway."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def move_new(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename without replacing; FileExistsError when the name is taken."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without hard links: take the name, then move the file over it.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.replace(source, target)
    else:
        os.unlink(source)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _swap(new: Path, old: Path) -> None:
    """Exchange two folders in one step where the system can (Linux's renameat2), else in two."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 and renameat2(here, os.fsencode(new), here, os.fsencode(old), exchange) == 0:
        return
    aside = new.with_suffix(".old")
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except OSError:
        os.rename(aside, old)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _mend_tail(path: Path) -> None:
    """End the file on a whole line: complete a row that lacks only its newline, set anything else aside."""
    if not path.exists():
        return
    with open(path, "r+b") as file:
        end = start = file.seek(0, os.SEEK_END)
        tail = b""
        while start > 0 and b"\n" not in tail:
            start = max(0, start - 65536)
            file.seek(start)
            tail = file.read(end - start)
        torn = tail[tail.rfind(b"\n") + 1 :]
        if not torn:
            return
        # No proper beginning of a JSON object is one itself, so what parses is whole.
        if _parse_row(torn) is not None:
            file.write(b"\n")
            return
        with open(path.with_name(path.name + ".torn"), "ab") as aside:
            aside.write(torn + b"\n")
            aside.flush()
            os.fsync(aside.fileno())
        file.truncate(end - len(torn))


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
