"""Wrappers for any PettingZoo `ParallelEnv`: cost inside, then cap, agent truncation, recorder, trajectories, video outermost."""

from typing import TYPE_CHECKING, Any

from marl_tools.core.wrappers.agent_truncation import AgentTruncation
from marl_tools.core.wrappers.caps import EpisodeCap, apply_hidden_episode_cap, infer_episode_cap
from marl_tools.core.wrappers.cost import AddCost
from marl_tools.core.wrappers.direct import step_directly
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.core.wrappers.trajectories import AgentStep, TrajectoryRecorder

if TYPE_CHECKING:
    from marl_tools.core.wrappers.record_video_parallel import RecordVideo

__all__ = [
    "AddCost",
    "AgentStep",
    "AgentTruncation",
    "EpisodeCap",
    "EpisodeRecorder",
    "RecordVideo",
    "TrajectoryRecorder",
    "apply_hidden_episode_cap",
    "infer_episode_cap",
    "step_directly",
]


def __getattr__(name: str) -> Any:
    # The video module is resolved when asked for: it brings moviepy.
    if name == "RecordVideo":
        from marl_tools.core.wrappers.record_video_parallel import RecordVideo

        return RecordVideo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
