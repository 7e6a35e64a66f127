"""The trackers of a run, and its evaluations and certificate as tables for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_tools.core import wandb
from marl_tools.core.errors import ConfigError
from marl_tools.core.tensorboard import TensorBoardTracker
from marl_tools.core.trackers import Tracker, Trackers
from marl_tools.experiment.config import RunConfig
from marl_tools.training.certificate import TEAM

Table = tuple[list[str], list[list[Any]]]
"""Columns and rows."""


def start_trackers(config: RunConfig, folder: Path, *, frames: int) -> Trackers:
    """Those that the settings ask for, of a run that stands at ``frames`` env steps.

    Raises:
        ConfigError: wandb refuses to start.
        MissingExtraError: TensorBoard is not installed.
    """
    trackers: dict[str, Tracker] = {}
    if config.use_tensorboard:
        trackers["TensorBoard"] = TensorBoardTracker(folder / "tensorboard", frames=frames)
    try:
        extra = {"wandb_dir": folder, "seed_offset": 0}
        run = wandb.start_run("ippo", config.seed, config.to_base(), extra)
    except ConfigError:
        Trackers(trackers).finish(exit_code=1)
        raise
    if run is not None:
        trackers["wandb"] = wandb.WandbTracker(run)
    return Trackers(trackers)


def evaluation_table(summary: Mapping[str, Any]) -> Table:
    """Mean returns with their intervals, and mean costs, of the agents and of their mean; see `Evaluation.summary`."""
    returns, costs = summary["returns"], summary["costs"]
    columns = ["agent", "mean return", "low", "high", "mean cost", "episodes"]
    rows = {"mean over agents": (returns["mean_over_agents"], costs["mean_over_agents"])}
    rows |= {agent: (row, costs["agents"][agent]) for agent, row in returns["agents"].items()}
    return columns, [
        [agent, row["mean"], *(row["interval"] or (None, None)), cost["mean"], summary["episodes"]]
        for agent, (row, cost) in rows.items()
    ]


def certificate_table(certificate: Mapping[str, Any], max_risk: float) -> Table:
    """Violation probabilities within each horizon with their intervals, the shield's bounds, and the risk that agents are allowed."""
    columns = ["steps", "who", "violations", "episodes", "estimate", "low", "high", "bound", "allowed"]
    horizons = {horizon["h"]: horizon["subjects"] for horizon in certificate["horizons"]}
    return columns, [
        [
            steps,
            subject,
            row["violations"],
            row["episodes"],
            row.get("estimate"),
            *row.get("interval", (None, None)),
            row.get("bound"),
            None if subject == TEAM else max_risk,
        ]
        for steps, subjects in horizons.items()
        for subject, row in subjects.items()
    ]
