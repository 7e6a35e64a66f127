"""Episodes and figures as points of curves: what all trackers are sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marl_tools.core.errors import ConfigError
from marl_tools.core.history import History
from marl_tools.core.types import EpisodeLog

STEP_METRIC = "t_end"
"""The x-axis of every episode: env steps of the whole run, as in `EpisodeLog`."""

HistoryLike = History | Iterable[EpisodeLog] | Iterable[Mapping[str, Any]] | Mapping[str, Sequence[Any]]


def rows_of_history(history: HistoryLike) -> list[Mapping[str, Any]]:
    """One row an episode, or a row of numbers as it is.

    Raises:
        ConfigError: lists of unequal length, or rows of another type.
    """
    if isinstance(history, Mapping):
        lengths = {}
        for key, values in history.items():
            if isinstance(values, str) or not hasattr(values, "__len__"):
                raise ConfigError(f"history[{key!r}] is {values!r}: a dict of lists needs a list there.")
            lengths[key] = len(values)
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"the lists of history differ in length: {lengths}.")
        return [
            dict(zip(map(str, history), values, strict=True))
            for values in zip(*history.values(), strict=True)
        ]
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


def flatten(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and plain values, names of what is nested joined by slashes; None is left out."""
    for key, value in row.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            yield from flatten(value, name)
        elif value is not None:
            yield name, plain_number(value)


def plain_number(value: Any) -> Any:
    """NumPy scalars and flags as plain numbers; anything else as it is."""
    if isinstance(value, np.generic):
        value = value.item()
    return int(value) if isinstance(value, bool) else value


def check_steps(rows: Iterable[Mapping[str, Any]], step_metric: str) -> list[Mapping[str, Any]]:
    """The rows, each of which has a place on the x-axis.

    Raises:
        ConfigError: a row has no ``step_metric``, or one that is not a finite number.
    """
    rows = list(rows)
    for number, row in enumerate(rows):
        step = row.get(step_metric)
        if not isinstance(step, int | float | np.number) or isinstance(step, bool) or not np.isfinite(step):
            raise ConfigError(
                f"row {number} has {step_metric}={step!r}: a point needs a finite number there."
            )
    return rows
