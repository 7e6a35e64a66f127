"""Wrap PettingZoo environments in research code, watch them, and train teams in them.

Names are looked up lazily: ``import marl_tools`` loads neither torch nor moviepy nor wandb.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("marl-tools")

_HOMES = {
    "bench.statistics": ("session_of_run", "trial_metrics"),
    "core.errors": (
        "ConfigError",
        "CorruptFileError",
        "EnvError",
        "FileFormatError",
        "MarlToolsError",
        "MissingExtraError",
        "NonFiniteError",
        "VideoError",
    ),
    "core.factory": ("EnvFactory",),
    "core.history": ("EpisodeBuilder", "History"),
    "core.segment_files": ("prune",),
    "core.segments": ("read_segment",),
    "core.spaces": ("AgentSpaces",),
    "core.types": ("EpisodeLog",),
    "core.wandb": ("create_base_config",),
    "core.wrappers": (
        "AddCost",
        "AgentTruncation",
        "EpisodeCap",
        "EpisodeRecorder",
        "RecordVideo",
        "TrajectoryRecorder",
        "apply_hidden_episode_cap",
        "infer_episode_cap",
    ),
    "experiment.config": ("RunConfig",),
    "experiment.run": ("train",),
    "training.attach": ("attach_shield", "certify_policy"),
    "training.evaluate": ("evaluate",),
    "training.explore": ("ExploringPolicy", "Schedule"),
    "training.ippo": ("IPPO", "IPPOConfig"),
    "training.policy": ("TeamPolicy", "load_policy"),
    "training.record": ("AgentRecord",),
    "training.segments": ("SegmentWindows",),
    "vector": ("SerialVectorEnv",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
