"""The copies of a run's env side by side: single ones here or in workers, or a native batch where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.types import EnvCopies, EpisodeLog, VectorEnv
from marl_tools.envs.native import GameVectorEnv
from marl_tools.envs.parallel import GameEnv
from marl_tools.envs.particles import ParticleVectorEnv, scenario_of
from marl_tools.experiment.stepping import SteppingSettings
from marl_tools.vector import SerialVectorEnv, WorkerVectorEnv


def make_envs(
    factory: EnvFactory, num_envs: int, *, native: bool = False, stepping: SteppingSettings | None = None
) -> VectorEnv:
    """``num_envs`` copies of an env, by default in this process.

    Raises:
        ConfigError: ``native``, and the env has no such form; or workers, and the factory cannot be pickled.
    """
    if native or stepping is None or stepping.workers == 0:
        return slice_envs(factory, range(num_envs), num_envs, native=native)
    return WorkerVectorEnv(
        factory,
        num_envs,
        stepping.workers,
        timeout=stepping.worker_timeout,
        on_worker_death=stepping.on_worker_death,
        pipeline=stepping.pipeline,
    )


def slice_envs(factory: EnvFactory, copies: range, total: int, *, native: bool = False) -> VectorEnv:
    """Some of the ``total`` copies of a run's env, in this process; numbered as they are in the whole run.

    Raises:
        ConfigError: ``native``, and the env has no such form.
    """
    if native:
        return native_envs(factory, len(copies), first=copies.start, total=total)
    return SerialVectorEnv(factory, len(copies), first=copies.start, total=total)


@contextmanager
def closed_after(
    envs: EnvCopies, keep: Callable[[Sequence[EpisodeLog]], None] | None = None
) -> Iterator[None]:
    """Close the envs when the block is left. A fault of theirs does not hide the one that ended the block.

    After such a one, ``keep`` gets the episodes that nobody has been given yet, the open ones interrupted.
    """
    try:
        yield
    except BaseException as error:
        try:
            episodes = envs.close()
            if keep:
                keep(episodes)
        except Exception as fault:
            error.add_note(f"closing the envs failed as well: {fault}")
        raise
    envs.close()


def native_envs(factory: EnvFactory, num_envs: int, *, first: int = 0, total: int | None = None) -> VectorEnv:
    """``num_envs`` worlds stepped in arrays, which play the same episodes as single envs to the bit.

    ``first`` and ``total`` are for a slice of them; see `SerialVectorEnv`.

    Of cost functions each native form knows at most the one that its task brings.

    Raises:
        ConfigError: the env has no native form, or wrappers or arguments that one cannot have.
    """
    names = ("preprocess", "cap", "stand_in", "save_trajectories")
    wrapped = [name for name in names if getattr(factory, name)]
    recorder = replace(factory, cost=None, save_trajectories=None)()
    # What someone else has wrapped around an env is lost in arrays, so only the bare one has a native form.
    env = recorder.env
    scenario = None if wrapped else scenario_of(env)
    if factory.cost and not (scenario and scenario.cost == factory.cost):
        wrapped.append(f"cost {factory.cost}")
    if wrapped:
        raise ConfigError(f"--native: a native env takes no {', '.join(wrapped)}; leave that or the flag out")
    if isinstance(env, GameEnv):
        return GameVectorEnv(env.game, num_envs, env_name=recorder.env_name, first=first, total=total)
    if scenario:
        scenario.charged = factory.cost is not None
        return ParticleVectorEnv(scenario, num_envs, env_name=recorder.env_name, first=first, total=total)
    raise ConfigError(f"--native: {recorder.env_name} has no native form; leave the flag out")
