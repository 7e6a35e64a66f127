"""Tracking with wandb; the only module that imports it, and only once a run is asked for.

wandb is a copy for looking at; `episodes.jsonl` in the run folder is the record.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from marl_tools.core.base_config import create_base_config
from marl_tools.core.checks import at_least, boolean, one_of, string
from marl_tools.core.errors import ConfigError
from marl_tools.core.points import (
    STEP_METRIC,
    HistoryLike,
    check_steps,
    flatten,
    plain_number,
    rows_of_history,
)
from marl_tools.core.types import EpisodeLog

if TYPE_CHECKING:
    from wandb import Run

__all__ = [
    "STEP_METRIC",
    "WANDB_MODES",
    "WandbTracker",
    "create_base_config",
    "finish",
    "log_history",
    "log_points",
    "log_table",
    "log_video",
    "start_run",
]

WANDB_MODES = ("offline", "online", "disabled")


def start_run(
    algo: str, run_idx: int, base_cfg: Mapping[str, Any], extra_cfg: Mapping[str, Any] | None = None
) -> Run | None:
    """Start run ``run_idx`` of ``algo``, or return None, without importing wandb, if ``use_wandb`` is false.

    Offline unless told otherwise, so it needs no account and never waits for a network: ``wandb_mode="online"`` in
    either config, or the environment variable WANDB_MODE, sends it to the server (``wandb sync`` does so later).

    ``extra_cfg`` goes over ``base_cfg``; both are recorded, with ``algo``, ``run_idx`` and
    ``seed`` (= ``seed_offset + run_idx``). The run is called ``{algo}-{env}-run{idx}``, grouped and tagged by
    ``experiment_tag``. Its id follows from tag, algo, env, index and seed, so running the same again resumes it;
    give ``wandb_id`` or another tag for a fresh one. ``wandb_dir`` is the folder to write to (made if missing),
    ``wandb_project`` and ``wandb_entity`` where it belongs. Call `finish` at the end.

    Raises:
        ConfigError: a key is missing or wrong, the same run is still open here, or wandb refuses to start.
    """
    cfg = {**base_cfg, **(extra_cfg or {})}
    for key in ("use_wandb", "env_name"):
        if key not in cfg:
            raise ConfigError(f"the config has no {key!r}: make it with create_base_config.")
    if not boolean("use_wandb", cfg["use_wandb"]):
        return None
    run_idx = at_least(0)("run_idx", run_idx)
    seed = at_least(0)("seed_offset", cfg.get("seed_offset", 0)) + run_idx
    tag = string("experiment_tag", cfg.get("experiment_tag", ""))
    mode: Any = one_of(*WANDB_MODES)(
        "wandb_mode (or WANDB_MODE)", cfg.get("wandb_mode") or os.environ.get("WANDB_MODE") or "offline"
    )
    directory = cfg.get("wandb_dir")
    if directory is not None:
        Path(directory).mkdir(parents=True, exist_ok=True)

    import wandb

    run_id = cfg.get("wandb_id") or _run_id(tag, algo, cfg["env_name"], run_idx, seed)
    try:
        return wandb.init(
            project=cfg.get("wandb_project", "marl_tools"),
            entity=cfg.get("wandb_entity"),
            id=run_id,
            resume="allow",
            # Without it a second run would be the first one again, and its points land there.
            reinit="create_new",
            name=f"{algo}-{cfg['env_name']}-run{run_idx}",
            group=tag or None,
            tags=[tag[:64]] if tag else None,
            config={**cfg, "algo": algo, "run_idx": run_idx, "seed": seed},
            mode=mode,
            dir=directory,
            # The console is left alone: wandb's capture of it garbles a progress bar.
            settings=wandb.Settings(console="off", silent=mode != "online", x_disable_stats=mode != "online"),
        )
    # Not only `wandb.Error`: refusals of its service and of its settings are exceptions of other families.
    except Exception as error:
        raise ConfigError(f"wandb cannot start run {run_id!r} in mode {mode!r}: {error}") from error


def log_history(
    run: Run | None,
    history: HistoryLike,
    prefix: str = "",
) -> None:
    """Send episodes to ``run``, one point each at ``t_end``; does nothing if ``run`` is None.

    Takes a `History`, a list of `EpisodeLog`, a list of mappings or a dict of equally long lists. Rows without any
    ``t_end`` get their position, from 0, as ``index``. Values per agent arrive as ``prefix/returns/<agent>``.

    Raises:
        ConfigError: lists of unequal length, rows of another type, or ``t_end`` in some rows only.
    """
    if run is None:
        return
    rows = rows_of_history(history)
    if any(STEP_METRIC in row for row in rows):
        log_points(run, rows, prefix, STEP_METRIC)
    else:
        log_points(run, ({**row, "index": index} for index, row in enumerate(rows)), prefix, "index")


def log_points(
    run: Run | None, rows: Iterable[Mapping[str, Any]], prefix: str = "", step_metric: str = STEP_METRIC
) -> None:
    """Send one point a row, ``row[step_metric]`` being its place on the x-axis; in any order, none is dropped.

    Mappings in a row are flattened with slashes, None is left out. Does nothing if ``run`` is None.

    Raises:
        ConfigError: a row has no ``step_metric``, or one that is not a finite number.
    """
    if run is None:
        return
    prefix = prefix.strip("/")
    rows = check_steps(rows, step_metric)
    _declare(run, f"{prefix}/*" if prefix else "*", step_metric)
    for row in rows:
        values = dict(flatten({key: value for key, value in row.items() if key != step_metric}, prefix))
        # Never `step=`: wandb drops what comes out of order and merges what comes twice.
        run.log({**values, step_metric: plain_number(row[step_metric])})


def log_video(run: Run | None, path: str | os.PathLike[str], key: str, t: int) -> None:
    """Send a finished clip (mp4, webm or gif) under ``key``, at env step ``t``; does nothing if ``run`` is None."""
    if run is None:
        return
    import wandb

    path = Path(path)
    _declare(run, key, STEP_METRIC)
    run.log({key: wandb.Video(str(path), format=path.suffix[1:]), STEP_METRIC: t})  # type: ignore[arg-type]


def log_table(
    run: Run | None, key: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], t: int
) -> None:
    """Send a table under ``key``, at env step ``t``; does nothing if ``run`` is None."""
    if run is None:
        return
    import wandb

    _declare(run, key, STEP_METRIC)
    run.log({key: wandb.Table(columns=list(columns), data=[list(row) for row in rows]), STEP_METRIC: t})


def finish(run: Run | None, exit_code: int = 0) -> None:
    """Close the run; does nothing if it is None. A nonzero ``exit_code`` marks it as failed."""
    if run is not None:
        run.finish(exit_code=exit_code)


class WandbTracker:
    """A wandb run as one of a run's `Trackers`."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def points(self, rows: Sequence[Mapping[str, Any]], prefix: str, step_metric: str) -> None:
        log_points(self.run, rows, prefix, step_metric)

    def history(self, episodes: Sequence[EpisodeLog], prefix: str) -> None:
        log_history(self.run, episodes, prefix)

    def evaluation(self, episodes: Sequence[EpisodeLog], name: str) -> None:
        log_history(self.run, episodes, f"eval/{name}")

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], t: int) -> None:
        log_table(self.run, f"table/{name}", columns, rows, t)

    def video(self, path: Path, name: str, t: int) -> None:
        log_video(self.run, path, f"video/{name}", t)

    def finish(self, exit_code: int) -> None:
        finish(self.run, exit_code)


_declared: WeakKeyDictionary[Any, set[tuple[str, str]]] = WeakKeyDictionary()


def _declare(run: Run, pattern: str, step_metric: str) -> None:
    """Tell wandb once what the x-axis of some keys is."""
    known = _declared.setdefault(run, set())
    if (pattern, step_metric) not in known:
        run.define_metric(step_metric, hidden=True)
        run.define_metric(pattern, step_metric=step_metric)
        known.add((pattern, step_metric))


def _run_id(*parts: Any) -> str:
    """The same id for the same parts, readable and unlike any other: wandb forbids some characters in it."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(str(part) for part in parts if part != "")).strip("-")
    return f"{readable[:80]}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}"
