"""Many copies of an env side by side."""

from marl_tools.vector.serial import SerialVectorEnv, env_groups

__all__ = ["SerialVectorEnv", "env_groups"]
