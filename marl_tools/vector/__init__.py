"""Many copies of an env side by side."""

from marl_tools.vector.serial import SerialVectorEnv, env_groups
from marl_tools.vector.workers import WorkerVectorEnv

__all__ = ["SerialVectorEnv", "WorkerVectorEnv", "env_groups"]
