"""The copies of a run's env side by side: single ones, or a native batch where there is one."""

from __future__ import annotations

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.types import VectorEnv
from marl_tools.envs.native import GameVectorEnv
from marl_tools.envs.parallel import GameEnv
from marl_tools.vector import SerialVectorEnv


def make_envs(factory: EnvFactory, num_envs: int, *, native: bool = False) -> VectorEnv:
    """``num_envs`` copies of an env.

    Raises:
        ConfigError: ``native``, and the env has no such form.
    """
    return native_envs(factory, num_envs) if native else SerialVectorEnv(factory, num_envs)


def native_envs(factory: EnvFactory, num_envs: int) -> VectorEnv:
    """``num_envs`` worlds stepped in arrays, which play the same episodes as single envs to the bit.

    Raises:
        ConfigError: the env has no native form, or wrappers that one cannot have.
    """
    env = factory()
    game = env.unwrapped
    if not isinstance(game, GameEnv):
        raise ConfigError(f"--native: {env.env_name} has no native form; leave the flag out")
    wrapped = [name for name in ("preprocess", "cost", "cap", "stand_in") if getattr(factory, name)]
    if wrapped:
        raise ConfigError(f"--native: a native env takes no {', '.join(wrapped)}; leave that or the flag out")
    return GameVectorEnv(game.game, num_envs, env_name=env.env_name)
