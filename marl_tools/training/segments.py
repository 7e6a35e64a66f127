"""Saved trajectories as torch batches: windows of fixed length, drawn at random or all of them once."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError
from marl_tools.core.segment_files import segment_files
from marl_tools.core.segments import AgentSegment, Segment, read_meta, read_segment
from marl_tools.core.types import AgentID

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class SegmentBatch:
    """B windows of L transitions. Row k of a window is real where ``valid``; what comes after is padding, 0 everywhere.

    ``obs[:, k]`` is what ``actions[:, k]`` was chosen on, ``obs[:, k + 1]`` what it led to, the true final observation
    included. After a row that is ``terminated`` there is nothing; after one that is ``truncated``, ``cut`` or the last valid one
    of its window, the value of the next observation stands for the rest.
    """

    obs: Tensor  # (B, L + 1, ...)
    actions: Tensor  # (B, L, ...) as the env got them
    rewards: Tensor  # (B, L) float32
    costs: Tensor  # (B, L) float32, NaN where the env gave none
    terminated: Tensor  # (B, L) bool
    truncated: Tensor  # (B, L) bool
    cut: (
        Tensor  # (B, L) bool: the segment ends here, and the agent goes on in the next one or was interrupted
    )
    valid: Tensor  # (B, L) bool
    t: Tensor  # (B, L) int64: steps of the episode before this one
    action_mask: Tensor | None  # (B, L + 1, choices) bool; None: none of the segments has masks
    agents: tuple[AgentID, ...]  # (B,)

    @property
    def next_obs(self) -> Tensor:
        """(B, L, ...): what each action led to."""
        return self.obs[:, 1:]

    @property
    def bootstrap(self) -> Tensor:
        """(B, L) bool: where a value of `next_obs` is due: at every real row that did not terminate."""
        return self.valid & ~self.terminated

    def to(self, device: torch.device | str) -> SegmentBatch:
        """The same batch elsewhere."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v.to(device) for k, v in tensors.items() if isinstance(v, Tensor)})


class _Stretch(NamedTuple):
    """One agent's transitions in one file."""

    path: Path
    agent: AgentID
    steps: int
    folder: int


class SegmentWindows(IterableDataset[SegmentBatch]):
    """Batches of windows out of folders of segments; endless, and the same again for the same seed and files.

    Iterating draws windows with replacement, each transition as likely as any other to be a window's first, and shorter
    windows at the ends padded; a window never leaves its segment. `once` goes through every transition exactly once.
    With a `DataLoader` use ``batch_size=None``; its workers draw different windows.

    Args:
        folders: where the segments are (see `core.segment_files.segment_files`): one folder, several, or folders with weights:
            the probabilities that a window comes from there. Without weights every transition counts the same.
        length: transitions in a window.
        batch_size: windows in a batch.
        seed: of the draws.
        agents: only these agents, or those for which a function of the name says so.
        cache_bytes: files that were read lately stay in memory up to this size, but one always does.

    Files are read when they are needed, beside `cached` ones only their lengths are in memory; `refresh` finds new ones. One that
    `prune` has taken away meanwhile is passed over.

    Raises:
        ConfigError: no transition in the folders, or weights that are none; when drawing, agents of unlike shapes.
        CorruptFileError: a damaged file, when it is indexed or read.
    """

    def __init__(
        self,
        folders: PathLike | Sequence[PathLike] | Mapping[PathLike, float],
        *,
        length: int,
        batch_size: int = 64,
        seed: int = 0,
        agents: Sequence[AgentID] | Callable[[AgentID], bool] | None = None,
        cache_bytes: int = 2**28,
    ) -> None:
        super().__init__()
        self.length = at_least(1)("length", length)
        self.batch_size = at_least(1)("batch_size", batch_size)
        self.seed = at_least(0)("seed", seed)
        self._cache_bytes = at_least(0)("cache_bytes", cache_bytes)
        self.weights = _checked_weights(folders) if isinstance(folders, Mapping) else None
        listed = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
        self.folders = [Path(folder) for folder in listed]
        self._wanted = agents if callable(agents) or agents is None else frozenset(agents).__contains__
        self._open: OrderedDict[Path, Segment] = OrderedDict()
        self._open_bytes = 0
        self._indexed: dict[Path, list[_Stretch]] = {}
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict(), "_open_bytes": 0}

    @property
    def transitions(self) -> int:
        """Transitions that can be drawn."""
        return sum(stretch.steps for stretch in self._stretches)

    def refresh(self) -> None:
        """Look at the folders again: new files count from now on, and deleted ones no more."""
        known, self._indexed = self._indexed, {}
        for number, folder in enumerate(self.folders):
            for path in segment_files(folder):
                try:
                    self._indexed[path] = known.get(path) or self._index(path, number)
                except FileNotFoundError:
                    continue
        self._stretches = [stretch for stretches in self._indexed.values() for stretch in stretches]
        if not self._stretches:
            where = ", ".join(map(str, self.folders))
            of_runs = [
                folder / "trajectories" for folder in self.folders if (folder / "trajectories").is_dir()
            ]
            meant = f", such as {of_runs[0]}" if of_runs else ""
            raise ConfigError(
                f"no transitions in {where}: give the folder that a TrajectoryRecorder saved to{meant}"
            )
        self._ends = np.cumsum(self._probabilities())

    def __iter__(self) -> Iterator[SegmentBatch]:
        worker = get_worker_info()
        rng = np.random.default_rng([self.seed, worker.id if worker else 0])
        while True:
            windows = []
            while len(windows) < self.batch_size:
                index = np.searchsorted(self._ends, rng.random() * self._ends[-1], side="right")
                stretch = self._stretches[min(index, len(self._stretches) - 1)]
                start = int(rng.integers(stretch.steps))
                window = self._window(stretch, start)
                if window is not None:
                    windows.append(window)
            yield self._batch(windows)

    def once(self) -> Iterator[SegmentBatch]:
        """Every transition exactly once: all windows that begin at multiples of ``length``, shuffled file by file."""
        rng = np.random.default_rng(self.seed)
        windows = []
        files = list(self._indexed.values())
        for number in rng.permutation(len(files)):
            starts = [
                (stretch, at) for stretch in files[number] for at in range(0, stretch.steps, self.length)
            ]
            for index in rng.permutation(len(starts)):
                window = self._window(*starts[index])
                if window is None:
                    break
                windows.append(window)
                if len(windows) == self.batch_size:
                    yield self._batch(windows)
                    windows = []
        if windows:
            yield self._batch(windows)

    def _index(self, path: Path, folder: int) -> list[_Stretch]:
        rows = read_meta(path)["agents"]
        wanted = self._wanted or (lambda _: True)
        return [
            _Stretch(path, row["name"], row["steps"], folder)
            for row in rows
            if row["steps"] and wanted(row["name"])
        ]

    def _probabilities(self) -> NDArray[np.float64]:
        """Of each stretch, in proportion to its transitions, within its folder if folders have weights."""
        steps = np.array([stretch.steps for stretch in self._stretches], float)
        if self.weights is None:
            return steps
        folder = np.array([stretch.folder for stretch in self._stretches])
        totals = np.bincount(folder, steps, minlength=len(self.folders))
        for path, weight, total in zip(self.folders, self.weights, totals, strict=True):
            if weight and not total:
                raise ConfigError(f"{path} has a weight of {weight:g} but no transitions: leave it out")
        return steps / totals[folder] * np.array(self.weights)[folder]

    def _window(self, stretch: _Stretch, start: int) -> _Window | None:
        segment = self._segment(stretch.path)
        if segment is None:
            return None
        return _Window(stretch, segment.agents[stretch.agent], start, min(self.length, stretch.steps - start))

    def _segment(self, path: Path) -> Segment | None:
        """The file, from memory if it was read lately; None if it is gone."""
        if path not in self._open:
            try:
                segment = self._open[path] = read_segment(path)
            except FileNotFoundError:
                return None
            self._open_bytes += segment.nbytes
            while self._open_bytes > self._cache_bytes and len(self._open) > 1:
                self._open_bytes -= self._open.popitem(last=False)[1].nbytes
        self._open.move_to_end(path)
        return self._open[path]

    def _batch(self, windows: list[_Window]) -> SegmentBatch:
        first, length = windows[0], self.length
        for window in windows:
            if window.form != first.form:
                raise ConfigError(
                    f"{window.title} and {first.title} have unlike observations, actions or masks and do not fit into "
                    "one batch: choose one kind with agents="
                )

        def stacked(name: str, rows: int, dtype: Any = None) -> Tensor:
            like = getattr(first.data, name)
            padded = np.zeros((len(windows), rows, *like.shape[1:]), dtype or like.dtype)
            for row, (_, data, start, steps) in zip(padded, windows, strict=True):
                steps += rows - length
                row[:steps] = getattr(data, name)[start : start + steps]
            return torch.from_numpy(padded)

        valid, cut = np.zeros((2, len(windows), length), bool)
        for row, (_, data, start, steps) in enumerate(windows):
            valid[row, :steps] = True
            cut[row, steps - 1] = start + steps == len(data) and not (data.term[-1] or data.trunc[-1])
        return SegmentBatch(
            obs=stacked("obs", length + 1),
            actions=stacked("act", length),
            rewards=stacked("rew", length, np.float32),
            costs=stacked("cost", length, np.float32),
            terminated=stacked("term", length),
            truncated=stacked("trunc", length),
            cut=torch.from_numpy(cut),
            valid=torch.from_numpy(valid),
            t=stacked("t", length),
            action_mask=None if first.data.mask is None else stacked("mask", length + 1),
            agents=tuple(window.stretch.agent for window in windows),
        )


class _Window(NamedTuple):
    """``steps`` transitions of one agent from ``start`` on."""

    stretch: _Stretch
    data: AgentSegment
    start: int
    steps: int

    @property
    def form(self) -> tuple[Any, ...]:
        """What has to be equal within a batch."""
        data = self.data
        mask = None if data.mask is None else data.mask.shape[1:]
        return data.obs.shape[1:], data.obs.dtype, data.act.shape[1:], data.act.dtype, mask

    @property
    def title(self) -> str:
        return f"{self.stretch.agent} in {self.stretch.path}"


def _checked_weights(folders: Mapping[PathLike, float]) -> tuple[float, ...]:
    weights = tuple(float(weight) for weight in folders.values())
    if not np.isfinite(weights).all() or min(weights, default=0.0) < 0 or sum(weights) <= 0:
        raise ConfigError(f"folders={dict(folders)!r}: weights are finite, at least 0, and not all 0")
    return weights
