"""Run folders read for the report: nothing that they hold is trusted, run or changed, and what is damaged is told, not raised."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from marl_tools.bench.plan_folder import PLAN, RUNS, is_run_id
from marl_tools.bench.report.clips import Clip, find_clips
from marl_tools.bench.report.curves import EpisodeCurves
from marl_tools.bench.report.wording import text
from marl_tools.bench.run_figures import RunReading, TrainingTotals
from marl_tools.core.durable import rows_of
from marl_tools.core.errors import ConfigError, CorruptFileError, MarlToolsError
from marl_tools.core.io import load_from_file
from marl_tools.core.run_logs import EPISODES, UPDATES, not_a_run
from marl_tools.experiment.runs import RunSummary, summarise_run
from marl_tools.experiment.stopping import ERROR_FILE

_NOTES = ("config.json", "versions.json", "certificate.json", "done.json", ERROR_FILE)
_EVALUATIONS = ("evaluation-random.json", "evaluation-trained.json")
_LONGEST_NOTE = 2**24  # bytes; no run writes a small file of this size


class Reading:
    """One run folder as far as it can be read; `refresh` reads on.

    ``notes`` are its small files by stem, mappings or absent. ``problems`` says in sentences what could not be read.
    ``method`` and ``task`` are those of its plan; a run that no plan names has them from its settings.
    """

    def __init__(
        self, folder: Path, run_id: str | None = None, *, method: str = "", task: str = "", seed: Any = None
    ) -> None:
        self.folder, self.id = folder, run_id or folder.resolve().name
        self.method, self.task, self.planned_seed = method, task, seed
        self._seen: tuple[Any, ...] | None = None
        self._forget()

    def _forget(self) -> None:
        self.notes: dict[str, Mapping[str, Any]] = {}
        self.updates: list[Mapping[str, Any]] = []
        self.clips: list[Clip] = []
        self.curves, self.training = EpisodeCurves(1), TrainingTotals(1)
        self._damage: dict[str, str] = {}
        self._logs = {name: _Tail(self.folder / name) for name in (EPISODES, UPDATES)}

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings; empty where they are damaged."""
        return self.notes.get("config", {})

    @property
    def problems(self) -> list[str]:
        return list(self._damage.values())

    @property
    def state(self) -> str:
        """That of `RunSummary`, or "waiting" for a run of a plan that has not begun."""
        return self.summary.state if self._seen else "waiting"

    def refresh(self) -> bool:
        """Read what came since the last time; returns whether anything did."""
        seen = self._signature()
        if seen == self._seen:
            return False
        self._seen = seen
        if any(log.replaced() for log in self._logs.values()):
            # Rewound to a checkpoint, or another run in its place.
            self._forget()
        self._read_notes()
        if not self.updates and not self.training.episodes:
            self.curves = EpisodeCurves(self._expected_steps())
            self.training = TrainingTotals(_whole(self.config.get("ma_window"), 1))
        self._read_on(EPISODES, self._take_episode)
        self._read_on(UPDATES, self.updates.append)
        self.clips = find_clips(self.folder)
        self.summary = (
            summarise_run(self.folder) if seen else RunSummary(folder=str(self.folder), state="interrupted")
        )
        return True

    @property
    def known(self) -> RunReading | None:
        """What a comparison need not read again; None where episodes are damaged or gone, which it is to find itself."""
        whole = EPISODES not in self._damage and (self.folder / EPISODES).exists()
        return RunReading(self.summary, self.training) if self._seen and whole else None

    def _take_episode(self, row: Mapping[str, Any]) -> None:
        self.curves.add(row)
        self.training.add(row)

    def _expected_steps(self) -> int:
        """Env steps rounded up to whole updates, as a run plays them."""
        steps, copies, rollouts = (
            _whole(self.config.get(name), 1) for name in ("timesteps", "num_envs", "rollouts")
        )
        return -(-steps // (copies * rollouts)) * copies * rollouts

    def _read_notes(self) -> None:
        for name in (*_NOTES, *_EVALUATIONS):
            self.notes.pop(Path(name).stem, None)
            self._damage.pop(name, None)
            try:
                self.notes[Path(name).stem] = read_note(self.folder, name)
            except FileNotFoundError:
                pass
            except (MarlToolsError, OSError) as error:
                self._damage[name] = str(error)

    def _read_on(self, name: str, take: Callable[[dict[str, Any]], None]) -> None:
        if name in self._damage:
            return
        try:
            for row in self._logs[name].rows():
                take(row)
        except FileNotFoundError:
            pass
        except (CorruptFileError, OSError) as error:
            where = "" if name in str(error) else f"{self.folder / name}: "
            self._damage[name] = f"{where}{error} What came before it is shown."

    def _signature(self) -> tuple[Any, ...]:
        """Name, size and time of all that is read; the empty tuple where there is no folder."""
        seen = []
        for folder in (self.folder, self.folder / "videos"):
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(OSError):
                        status = entry.stat()
                        seen.append((entry.name, status.st_size, status.st_mtime_ns, status.st_ino))
        return tuple(sorted(seen))


class Collection:
    """The run folders of a plan, or of any folder that holds some; `refresh` finds new ones and reads on.

    Raises:
        ConfigError: there is neither plan nor run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: Mapping[str, Any] = {}
        self.problems: list[str] = []
        self.runs: dict[str, Reading] = {}
        self.refresh()
        if not self.plan and not self.runs:
            raise not_a_run(folder)

    @property
    def name(self) -> str:
        """That of the plan, or of the folder."""
        return text(self.plan.get("name", self.folder.resolve().name), 80)

    def refresh(self) -> list[Reading]:
        """Read on in all runs; returns those in which something changed."""
        self._read_plan()
        for run_id, known in self._found():
            self.runs.setdefault(run_id, known)
        return [run for run in self.runs.values() if run.refresh()]

    def _read_plan(self) -> None:
        self.problems = []
        try:
            self.plan = read_note(self.folder, PLAN)
        except FileNotFoundError:
            pass
        except (MarlToolsError, OSError) as error:
            self.problems.append(str(error))

    def _found(self) -> Iterator[tuple[str, Reading]]:
        """Runs that the plan names, then any others that are there."""
        named = self.plan.get("runs")
        root = self.folder / RUNS
        for row in named if isinstance(named, list) else []:
            run_id = row.get("id") if isinstance(row, dict) else None
            if not is_run_id(run_id):
                self.problems.append(
                    f"{self.folder / PLAN}: a run has the id {str(run_id)[:80]!r}, which is no name"
                )
                continue
            method, task = (str(row.get(name, "")) for name in ("method", "task"))
            yield run_id, Reading(root / run_id, run_id, method=method, task=task, seed=row.get("seed"))
        taken = {run.folder for run in self.runs.values()}
        for path, folders, files in os.walk(self.folder):
            folders.sort()  # a file system has an order of its own
            if "config.json" in files:
                folders.clear()
                if Path(path) not in taken:
                    run_id = Path(path).relative_to(self.folder).as_posix().removeprefix("runs/")
                    yield run_id, Reading(Path(path), run_id)


def open_folder(folder: Path) -> Reading | Collection:
    """A run folder, or a folder of them, read for the first time.

    Raises:
        ConfigError: there is no such folder, or neither run nor plan in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: name a run folder, or the folder of a plan")
    if (folder / PLAN).exists() or not any(
        (folder / name).exists() for name in ("config.json", UPDATES, EPISODES)
    ):
        return Collection(folder)
    run = Reading(folder)
    run.refresh()
    return run


def read_note(folder: Path, name: str) -> Mapping[str, Any]:
    """A small JSON file of names and values.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFileError: it is no such JSON, or as large as none is.
    """
    if (folder / name).stat().st_size > _LONGEST_NOTE:
        raise CorruptFileError(
            f"{folder / name} has more than {_LONGEST_NOTE} bytes: no run writes such a file"
        )
    note = load_from_file(folder, name)
    if not isinstance(note, dict):
        raise CorruptFileError(f"{folder / name} holds a {type(note).__name__}, not values by name")
    return note


class _Tail:
    """A growing JSON-lines file: each call of `rows` goes on where the last one stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = self._file = 0

    def replaced(self) -> bool:
        """Whether another file has its name now, or it has become shorter."""
        with suppress(OSError):
            status = self.path.stat()
            return self._file not in (0, status.st_ino) or status.st_size < self._at
        return self._file != 0

    def rows(self) -> Iterator[dict[str, Any]]:
        """New whole rows; a torn last line waits for its end."""
        with open(self.path, "rb") as file:
            self._file = os.fstat(file.fileno()).st_ino
            file.seek(self._at)
            yield from rows_of(
                self._whole_lines(file), f"{self.path}{f' beyond byte {self._at}' if self._at else ''}"
            )

    def _whole_lines(self, file: BinaryIO) -> Iterator[bytes]:
        for line in file:
            if not line.endswith(b"\n"):
                return
            self._at += len(line)
            yield line


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 < value < 2**31 else otherwise
