"""Experiment configuration and tracking; the only module that imports wandb, and only once a run is asked for.

wandb is a copy for looking at; `episodes.jsonl` in the run folder is the record.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from marl_tools.core.checks import Check, at_least, between, boolean, increasing, name, one_of, string
from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.core.history import History
from marl_tools.core.types import EpisodeLog

if TYPE_CHECKING:
    from wandb import Run

STEP_METRIC = "t_end"
"""The x-axis of every episode: env steps of the whole run, as in `EpisodeLog`."""

WANDB_MODES = ("offline", "online", "disabled")
_VERSIONS = ("v0",)


def create_base_config(
    env_name: str,
    num_envs: int,
    n_agents: int,
    timesteps: int,
    num_runs: int,
    rollouts: int,
    learning_epochs: int,
    mini_batches: int,
    learning_rate: float,
    max_risk: float,
    use_wandb: bool,
    shield_patience: int = 64,
    shield_opponent_mode: str = "monotone_floor",
    shield_reward_mode: str = "bayesian",
    shield_credible_delta: float = 0.05,
    shield_credible_schedule: str = "summable",
    experiment_tag: str = "",
    seed_offset: int = 0,
    wm_version: str = "v0",
    om_version: str = "v0",
    ippo_version: str = "v0",
    lag_version: str = "v0",
    shield_version: str = "v0",
    final_policy_eval_episodes: int = 0,
    final_policy_eval_horizons: tuple[int, ...] = (1, 10, 50, 100, 200),
    final_policy_eval_seed_offset: int = 1_000_000,
    final_policy_eval_confidence: float = 0.95,
    **overrides: Any,
) -> dict[str, Any]:
    """A checked dict of everything that describes an experiment; further keys pass through ``overrides``.

    ``rollouts`` is the number of env steps per env and update, ``timesteps`` the total over all envs, ``max_risk``
    the allowed probability of a violation, ``*_version`` the generation of world model, opponent model, IPPO,
    Lagrangian and shield.

    Raises:
        ConfigError: a value that cannot work, or an override that looks like a misspelt argument.
    """
    config = locals() | overrides
    del config["overrides"]
    for key in overrides:
        _refuse_near_miss(key)
    return {key: _CHECKS[key](key, value) if key in _CHECKS else value for key, value in config.items()}


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
    history: History | Iterable[EpisodeLog] | Iterable[Mapping[str, Any]] | Mapping[str, Sequence[Any]],
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
    rows = _rows(history)
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
    rows = list(rows)
    for number, row in enumerate(rows):
        step = row.get(step_metric)
        if not isinstance(step, int | float | np.number) or isinstance(step, bool) or not np.isfinite(step):
            raise ConfigError(
                f"row {number} has {step_metric}={step!r}: a point needs a finite number there."
            )
    _declare(run, f"{prefix}/*" if prefix else "*", step_metric)
    for row in rows:
        values = dict(_flatten({key: value for key, value in row.items() if key != step_metric}, prefix))
        # Never `step=`: wandb drops what comes out of order and merges what comes twice.
        run.log({**values, step_metric: _number(row[step_metric])})


def log_video(run: Run | None, path: str | os.PathLike[str], key: str, t: int) -> None:
    """Send a finished clip (mp4, webm or gif) under ``key``, at env step ``t``; does nothing if ``run`` is None."""
    if run is None:
        return
    import wandb

    path = Path(path)
    _declare(run, key, STEP_METRIC)
    run.log({key: wandb.Video(str(path), format=path.suffix[1:]), STEP_METRIC: t})  # type: ignore[arg-type]


def finish(run: Run | None, exit_code: int = 0) -> None:
    """Close the run; does nothing if it is None. A nonzero ``exit_code`` marks it as failed."""
    if run is not None:
        run.finish(exit_code=exit_code)


_declared: WeakKeyDictionary[Any, set[tuple[str, str]]] = WeakKeyDictionary()


def _declare(run: Run, pattern: str, step_metric: str) -> None:
    """Tell wandb once what the x-axis of some keys is."""
    known = _declared.setdefault(run, set())
    if (pattern, step_metric) not in known:
        run.define_metric(step_metric, hidden=True)
        run.define_metric(pattern, step_metric=step_metric)
        known.add((pattern, step_metric))


def _rows(history: Any) -> list[Mapping[str, Any]]:
    if isinstance(history, Mapping):
        lengths = {}
        for key, values in history.items():
            if isinstance(values, str) or not hasattr(values, "__len__"):
                raise ConfigError(f"history[{key!r}] is {values!r}: a dict of lists needs a list there.")
            lengths[key] = len(values)
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"the lists of history differ in length: {lengths}.")
        return [dict(zip(history, values, strict=True)) for values in zip(*history.values(), strict=True)]
    rows: list[Mapping[str, Any]] = []
    for entry in history:
        if isinstance(entry, EpisodeLog):
            rows.append(_episode_row(entry))
        elif isinstance(entry, Mapping):
            rows.append(entry)
        else:
            raise ConfigError(f"history holds a {type(entry).__name__}: it takes EpisodeLogs or mappings.")
    return rows


def _episode_row(log: EpisodeLog) -> dict[str, Any]:
    """What is worth a curve: numbers, and the team figures that a log derives."""
    row = log.to_json()
    for key in ("env_name", "split", "ends", "t_start"):
        del row[key]
    team = {name: getattr(log, name) for name in ("team_return", "mean_return", "team_cost")}
    return {**row, **team, "violated": log.violated, "interrupted": log.interrupted}


def _flatten(row: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            yield from _flatten(value, name)
        elif value is not None:
            yield name, _number(value)


def _number(value: Any) -> Any:
    """NumPy scalars and flags as plain numbers; anything else as it is."""
    if isinstance(value, np.generic):
        value = value.item()
    return int(value) if isinstance(value, bool) else value


def _run_id(*parts: Any) -> str:
    """The same id for the same parts, readable and unlike any other: wandb forbids some characters in it."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(str(part) for part in parts if part != "")).strip("-")
    return f"{readable[:80]}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}"


_CHECKS: dict[str, Check] = {
    "env_name": name,
    "experiment_tag": string,
    "use_wandb": boolean,
    "learning_rate": between(0, math.inf),
    "max_risk": between(0, 1),
    "shield_credible_delta": between(0, 1),
    "final_policy_eval_confidence": between(0, 1),
    "final_policy_eval_horizons": increasing,
    "shield_opponent_mode": one_of("oracle", "uniform", "empirical", "worst_case", "monotone_floor"),
    "shield_reward_mode": one_of("none", "penalty", "bayesian", "bayesian_potential"),
    "shield_credible_schedule": one_of("constant", "summable", "geometric", "ppr"),
}
_CHECKS |= dict.fromkeys(
    ["num_envs", "n_agents", "timesteps", "num_runs", "rollouts", "learning_epochs", "mini_batches"],
    at_least(1),
)
_CHECKS |= dict.fromkeys(
    ["shield_patience", "seed_offset", "final_policy_eval_episodes", "final_policy_eval_seed_offset"],
    at_least(0),
)
_CHECKS |= dict.fromkeys(
    ["wm_version", "om_version", "ippo_version", "lag_version", "shield_version"], one_of(*_VERSIONS)
)


def _refuse_near_miss(key: str) -> None:
    """An override one slip away from an argument is a typo; one that extends its name with a word is not."""
    named = [name for name in signature(create_base_config).parameters if name != "overrides"]
    extends = any(key.startswith(f"{name}_") or key.endswith(f"_{name}") for name in named)
    if not extends and get_close_matches(key.lower(), named, n=1, cutoff=0.85):
        raise ConfigError(f"create_base_config has no argument {key!r}.{did_you_mean(key.lower(), named)}")
