"""A run's saved trajectories: its settings for them, and what becomes of them when it goes on from a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from marl_tools.core.durable import move_new
from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.logging import log
from marl_tools.core.run_logs import EPISODES, read_episodes
from marl_tools.core.segment_files import PROTECTED, REPLAYED, by_writer, segment_files
from marl_tools.core.segments import read_meta
from marl_tools.core.types import EpisodeLog
from marl_tools.core.wrappers.trajectories import check_segment

FOLDER = "trajectories"


@dataclass(frozen=True, kw_only=True)
class TrajectorySettings:
    """What a run saves of its training episodes.

    Args:
        trajectories: save every transition to RUN/trajectories, for learning from it later (docs/trajectories.md).
        trajectory_segment: least and greatest number of steps in a file; the end of an episode ends one as well.
        trajectory_format: "npz-compressed" is smaller and takes more time.
    """

    trajectories: bool = False
    trajectory_segment: tuple[int, int] = (100, 200)
    trajectory_format: Literal["npz", "npz-compressed"] = "npz"

    def __post_init__(self) -> None:
        check_segment("trajectory_segment", self.trajectory_segment)

    def check(self, *, native: bool) -> None:
        """Refuse what does not go together with a run's other settings.

        Raises:
            ConfigError: it says what to leave out.
        """
        if self.trajectories and native:
            raise ConfigError(
                "trajectories with native: a native env steps arrays of many worlds, and has no single one to record; "
                "leave --native or --trajectories out"
            )

    def saving(self, factory: EnvFactory, run: Path) -> EnvFactory:
        """The factory of the envs that are trained in: as ``factory``, but it saves to the run folder if it has to."""
        if not self.trajectories:
            return factory
        return dataclasses.replace(
            factory,
            save_trajectories=str(run / FOLDER),
            segment=self.trajectory_segment,
            trajectory_format=self.trajectory_format,
        )


def saved_before(run: Path) -> list[Path]:
    """The segments that earlier sittings of a run left, but for protected ones. To be asked for before its envs take a step."""
    return [path for path in segment_files(run / FOLDER) if path.parent.name != PROTECTED]


def set_segments_aside(run: Path, files: Sequence[Path], *, lost: Sequence[EpisodeLog] = ()) -> None:
    """Move to ``trajectories/replayed`` what files and log would not agree on.

    Those are the ``files`` of episodes that the run's log does not know: they were not over at the checkpoint from which the
    run goes on, and are played again, or anew. Of ``lost`` episodes, which were played again in vain, that is set aside too.

    Raises:
        CorruptFileError: a file is damaged.
        OSError: it cannot be moved.
    """
    known: set[tuple[int, int]] = set()
    if files and (run / EPISODES).exists():
        known = {
            (episode.env_index, episode.episode)
            for episode in read_episodes(run / EPISODES)
            if episode.split == "train"
        }
    moved = sum(_move_latest(run, written, lambda key: key not in known) for written in by_writer(files))
    if moved:
        log(f"{moved} segments later than the checkpoint moved to {FOLDER}/{REPLAYED}", type="resume")
    if lost:
        again, keys = set(saved_before(run)) - set(files), {(gone.env_index, gone.episode) for gone in lost}
        moved = sum(_move_latest(run, written, lambda key: key in keys) for written in by_writer(again))
        log(
            f"{moved} segments of a repetition that went otherwise moved to {FOLDER}/{REPLAYED}",
            type="resume",
        )


def _move_latest(run: Path, written: list[Path], chosen: Callable[[tuple[int, int]], bool]) -> int:
    """Move one writer's latest files, back to the first that has to stay: episodes follow one another. Returns how many."""
    for moved, path in enumerate(reversed(written)):
        meta = read_meta(path)
        if not chosen((meta["env_index"], meta["episode"])):
            return moved
        folder = run / FOLDER / REPLAYED / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for number in count():
            try:
                move_new(path, folder / (f"{path.stem}-{number}.npz" if number else path.name))
                break
            except FileExistsError:
                continue
    return len(written)
