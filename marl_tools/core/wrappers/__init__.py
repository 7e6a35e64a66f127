"""Wrappers for any PettingZoo `ParallelEnv`: cost inside, then cap, agent truncation, recorder, video outermost."""

from typing import TYPE_CHECKING, Any

from marl_tools.core.wrappers.agent_truncation import AgentTruncation
from marl_tools.core.wrappers.caps import EpisodeCap, apply_hidden_episode_cap, infer_episode_cap
from marl_tools.core.wrappers.cost import AddCost
from marl_tools.core.wrappers.direct import step_directly
from marl_tools.core.wrappers.recorder import EpisodeRecorder

if TYPE_CHECKING:
    from marl_tools.core.wrappers.record_video_parallel import RecordVideo

__all__ = [
    "AddCost",
    "AgentTruncation",
    "EpisodeCap",
    "EpisodeRecorder",
    "RecordVideo",
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
