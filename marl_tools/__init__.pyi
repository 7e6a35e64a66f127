"""The public names, for type checkers; `__init__.py` looks them up lazily."""

from marl_tools.bench.statistics import session_of_run as session_of_run, trial_metrics as trial_metrics
from marl_tools.core.errors import (
    ConfigError as ConfigError,
    CorruptFileError as CorruptFileError,
    EnvError as EnvError,
    FileFormatError as FileFormatError,
    MarlToolsError as MarlToolsError,
    MissingExtraError as MissingExtraError,
    NonFiniteError as NonFiniteError,
    VideoError as VideoError,
)
from marl_tools.core.factory import EnvFactory as EnvFactory
from marl_tools.core.history import EpisodeBuilder as EpisodeBuilder, History as History
from marl_tools.core.segment_files import prune as prune
from marl_tools.core.segments import read_segment as read_segment
from marl_tools.core.spaces import AgentSpaces as AgentSpaces
from marl_tools.core.types import EpisodeLog as EpisodeLog
from marl_tools.core.wandb import create_base_config as create_base_config
from marl_tools.core.wrappers import (
    AddCost as AddCost,
    AgentTruncation as AgentTruncation,
    EpisodeCap as EpisodeCap,
    EpisodeRecorder as EpisodeRecorder,
    RecordVideo as RecordVideo,
    TrajectoryRecorder as TrajectoryRecorder,
    apply_hidden_episode_cap as apply_hidden_episode_cap,
    infer_episode_cap as infer_episode_cap,
)
from marl_tools.experiment.config import RunConfig as RunConfig
from marl_tools.experiment.run import train as train
from marl_tools.training.attach import attach_shield as attach_shield, certify_policy as certify_policy
from marl_tools.training.evaluate import evaluate as evaluate
from marl_tools.training.explore import ExploringPolicy as ExploringPolicy, Schedule as Schedule
from marl_tools.training.ippo import IPPO as IPPO, IPPOConfig as IPPOConfig
from marl_tools.training.policy import TeamPolicy as TeamPolicy, load_policy as load_policy
from marl_tools.training.record import AgentRecord as AgentRecord
from marl_tools.training.segments import SegmentWindows as SegmentWindows
from marl_tools.vector import SerialVectorEnv as SerialVectorEnv

__version__: str
