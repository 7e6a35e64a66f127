"""SuperSuit's preprocessing by name, so that a config file or a flag can ask for it.

The only module that knows SuperSuit, which is unmaintained: what replaces it has to change nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.core.wrappers.base import ParallelWrapper


class PreprocessStep(NamedTuple):
    """One step as written (``"resize=84x84"``), and the SuperSuit call that it stands for."""

    text: str
    function: str
    args: tuple[Any, ...]


class _Kind(NamedTuple):
    function: str
    expects: str
    parse: Callable[[str], tuple[Any, ...]]


def _nothing(value: str) -> tuple[()]:
    if value:
        raise ValueError
    return ()


def _channel(value: str) -> tuple[str]:
    if value not in ("full", "R", "G", "B"):
        raise ValueError
    return (value,)


def _dtype(value: str) -> tuple[str]:
    if not value or np.dtype(value).kind not in "biuf":
        raise ValueError
    return (value,)


def _count(value: str) -> tuple[int]:
    if int(value) < 1:
        raise ValueError
    return (int(value),)


def _size(value: str) -> tuple[int, int]:
    width, height = value.split("x")
    return (*_count(width), *_count(height))


def _range(value: str) -> tuple[float, float]:
    low, high = map(float, value.split(","))
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError
    return low, high


_KINDS = {
    "agent_indicator": _Kind("agent_indicator_v0", "no value", _nothing),
    "clip_actions": _Kind("clip_actions_v0", "no value", _nothing),
    "clip_reward": _Kind("clip_reward_v0", "LOW,HIGH with LOW < HIGH", _range),
    "color_reduction": _Kind("color_reduction_v0", "full, R, G or B", _channel),
    "dtype": _Kind("dtype_v0", "a NumPy number type such as float32", _dtype),
    "flatten": _Kind("flatten_v0", "no value", _nothing),
    "frame_stack": _Kind("frame_stack_v1", "a whole number of frames above 0", _count),
    "normalize_obs": _Kind("normalize_obs_v0", "LOW,HIGH with LOW < HIGH", _range),
    "pad_action_space": _Kind("pad_action_space_v0", "no value", _nothing),
    "pad_observations": _Kind("pad_observations_v0", "no value", _nothing),
    "resize": _Kind("resize_v1", "WIDTHxHEIGHT in pixels", _size),
}


def parse_preprocess(steps: Iterable[str]) -> tuple[PreprocessStep, ...]:
    """Read steps written ``name`` or ``name=value``, without building anything.

    ``agent_indicator``, ``clip_actions``, ``clip_reward=-1,1``, ``color_reduction=full`` (or R, G, B),
    ``dtype=float32``, ``flatten``, ``frame_stack=4``, ``normalize_obs=0,1``, ``pad_action_space``,
    ``pad_observations`` and ``resize=84x84`` (width, height).

    Raises:
        ConfigError: an unknown name, or a value that the step cannot take.
    """
    if isinstance(steps, str):
        raise ConfigError(
            f"preprocess takes a sequence of steps, got the string {steps!r}; write ({steps!r},)."
        )
    return tuple(map(_parse, steps))


def preprocess(env: Any, steps: Iterable[str]) -> Any:
    """``env`` under the steps of `parse_preprocess`, the first one innermost.

    Raises:
        ConfigError: as `parse_preprocess`, or a step that does not fit the spaces of ``env``.
    """
    for step in parse_preprocess(steps):
        env = _apply(step, env)
    return env


class OwnObservations(ParallelWrapper):
    """Hand out copies: SuperSuit's frame stack writes each step into the array that it gave out for the last one."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = self.env.reset(seed=seed, options=options)
        return {agent: np.copy(obs) for agent, obs in observations.items()}, infos

    def step(self, actions: dict[str, Any]) -> Any:
        observations, *rest = self.env.step(actions)
        return {agent: np.copy(obs) for agent, obs in observations.items()}, *rest


def _parse(text: str) -> PreprocessStep:
    name, _, value = re.sub(r"\s", "", str(text)).partition("=")
    if name not in _KINDS:
        raise ConfigError(f"unknown preprocessing step {name!r}.{did_you_mean(name, _KINDS)}")
    kind = _KINDS[name]
    try:
        args = kind.parse(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"preprocessing step {name!r} takes {kind.expects}, got {value!r}.") from error
    return PreprocessStep(text, kind.function, args)


def _apply(step: PreprocessStep, env: Any) -> Any:
    import supersuit

    build = getattr(supersuit, step.function)
    try:
        wrapped = build(env, *step.args)
        for agent in env.possible_agents:
            wrapped.observation_space(agent)
            wrapped.action_space(agent)
    except AssertionError as error:
        spaces = {str(env.observation_space(agent)) for agent in env.possible_agents}
        raise ConfigError(
            f"preprocessing step {step.text!r} does not fit {env}: {str(error) or 'wrong kind of space'}. "
            f"Observation spaces before it: {', '.join(sorted(spaces))}."
        ) from error
    return OwnObservations(wrapped) if step.function == "frame_stack_v1" else wrapped
