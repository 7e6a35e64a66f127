"""Native twins of mpe2's particle envs: many worlds stepped in arrays, the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import (
    AssertOutOfBoundsWrapper,
    ClipOutOfBoundsWrapper,
    OrderEnforcingWrapper,
)

from marl_tools.core.errors import ConfigError
from marl_tools.core.wrappers.direct import VERIFIED, DirectParallel
from marl_tools.envs.particles.goals import Adversary, Push
from marl_tools.envs.particles.spread import Spread
from marl_tools.envs.particles.tag import Tag
from marl_tools.envs.particles.vector import ParticleVectorEnv
from marl_tools.envs.particles.words import Reference, SpeakerListener
from marl_tools.envs.particles.worlds import Scenario

__all__ = [
    "Adversary",
    "ParticleVectorEnv",
    "Push",
    "Reference",
    "Scenario",
    "SpeakerListener",
    "Spread",
    "Tag",
    "scenario_of",
]

_SCENARIOS: dict[str, Callable[..., Scenario]] = {
    f"mpe2.{scenario.name}.{scenario.name}": scenario
    for scenario in (Spread, Tag, Adversary, Push, Reference, SpeakerListener)
}
_LAYERS = (OrderEnforcingWrapper, AssertOutOfBoundsWrapper, ClipOutOfBoundsWrapper)
# They change the picture alone, and films are made by mpe2's own env.
_OF_THE_PICTURE = ("render_mode", "dynamic_rescaling")
_UNSUPPORTED = ("benchmark_data", "curriculum", "num_agent_neighbors", "num_landmark_neighbors")


def scenario_of(env: Any) -> Scenario | None:
    """The scenario of a parallel env as mpe2 makes it; None if it has no twin, or if something is wrapped around it.

    Raises:
        ConfigError: the twin lacks what the env was made with, or this mpe2 is none that it was compared with.
    """
    if type(env) not in (aec_to_parallel_wrapper, DirectParallel):
        return None
    raw: Any = env.aec_env
    while isinstance(raw, _LAYERS):
        raw = raw.env
    scenario = _SCENARIOS.get(type(raw).__module__)
    if scenario is None or type(raw).__qualname__ != "raw_env":
        return None
    name, releases = raw.metadata["name"], VERIFIED["mpe2"]
    if version("mpe2") not in releases:
        raise ConfigError(
            f"--native: the native form of {name} is that of mpe2 {' or '.join(releases)}, and mpe2 {version('mpe2')} is "
            "installed; leave the flag out"
        )
    kwargs = {key: value for key, value in raw._ezpickle_kwargs.items() if key not in _OF_THE_PICTURE}
    for setting in _UNSUPPORTED:
        if kwargs.pop(setting, None):
            raise ConfigError(
                f"--native: the native form of {name} has no {setting}; leave {setting} or the flag out"
            )
    return scenario(**kwargs)
