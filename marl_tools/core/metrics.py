"""Metrics that an env reports in its infos: which keys they have, and what an episode makes of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

METRIC_PREFIXES = ("MARL_LOG_METRIC", "AMAGO_LOG_METRIC")
"""An info key that starts with one of these becomes a metric of the episode; the second is AMAGO's."""

_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "sum": math.fsum,
    "last": lambda values: values[-1],
    "max": max,
}


def metric_name(key: str) -> str:
    """The info key without its prefix."""
    prefix = next(prefix for prefix in METRIC_PREFIXES if key.startswith(prefix))
    return key[len(prefix) :].strip(" _/")


def reduce_metrics(rows: Mapping[str, list[float]]) -> dict[str, float]:
    """One number a metric: the suffix after the last ``:`` names the reduction, mean by default."""
    reduced = {}
    for name, values in rows.items():
        stem, _, suffix = name.rpartition(":")
        if stem and suffix in _REDUCTIONS:
            reduced[stem] = _REDUCTIONS[suffix](values)
        else:
            reduced[name] = _REDUCTIONS["mean"](values)
    return reduced
