"""MOMAland's CrazyRL surround as a task with one reward: drones close in on a point without crashing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.base import ParallelWrapper
from marl_tools.envs.adapters.packages import imported

# What it asks for includes pygame, which would overwrite PettingZoo's pygame-ce.
INSTALL = "pip install --no-deps momaland"
_STEPS = 200
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_SIDE, _MARGIN = 360, 12


class Surround(ParallelWrapper):
    """The weighted sum of the env's two rewards, agents under plain names, one kind of end, and a picture.

    The env names its agents by NumPy strings, reports a crash in its last step as a truncation as well, and draws only in a
    window of its own.
    """

    def __init__(self, env: Any, weights: Sequence[float], render_mode: str | None) -> None:
        super().__init__(env)
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(
                f"render_mode={render_mode!r}: surround draws 'rgb_array' here, or nothing (None)"
            )
        self._weights = _two_numbers(weights)
        self.metadata = {**env.metadata, "render_modes": ["rgb_array"]}
        self.render_mode = render_mode
        self.max_cycles = _STEPS

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode; they all start alike, whatever the ``seed``."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return _named(observations), _named(infos)

    def step(self, actions: dict[AgentID, Any]) -> Any:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return (
            _named(observations),
            {str(agent): float(self._weights @ reward) for agent, reward in rewards.items()},
            _named(terminations),
            {str(agent): cut and not terminations[agent] for agent, cut in truncations.items()},
            _named(infos),
        )

    def render(self) -> NDArray[np.uint8] | None:
        """The drones from above, and from the side below it: (H, W, 3)."""
        if self.render_mode is None:
            return None
        from PIL import Image, ImageDraw

        raw: Any = self.unwrapped
        half = _SIDE // 2
        picture = Image.new("RGB", (_SIDE, _SIDE + half), "white")
        pen = ImageDraw.Draw(picture)
        pen.line((0, _SIDE, _SIDE, _SIDE), fill="#DDD9CF", width=2)
        pen.line((0, _SIDE + half - _MARGIN, _SIDE, _SIDE + half - _MARGIN), fill="#B5651D", width=2)
        scale = (half - _MARGIN) / raw.size
        bodies = [
            (raw.target_location, "#F2C14E"),
            *zip(raw.agent_location.values(), cycle(_COLOURS), strict=False),
        ]
        for (x, y, z), colour in bodies:
            for row in (half - y * scale, _SIDE + half - _MARGIN - z * (half - 2 * _MARGIN) / 3):
                column = half + x * scale
                pen.ellipse((column - 5, row - 5, column + 5, row + 5), fill=colour, outline="#202020")
        return np.array(picture)


def _two_numbers(weights: Sequence[float]) -> NDArray[np.float64]:
    with suppress(TypeError, ValueError):
        numbers = np.array(weights, float)
        if numbers.shape == (2,) and np.isfinite(numbers).all():
            return numbers
    raise ConfigError(
        f"weights={weights!r}: give two numbers, such as [0.5, 0.5], for closing in on the target and for keeping apart"
    )


def _named(by_agent: dict[Any, Any]) -> dict[AgentID, Any]:
    return {str(agent): value for agent, value in by_agent.items()}


def parallel_env(
    weights: Sequence[float] = (0.5, 0.5), render_mode: str | None = None, **kwargs: Any
) -> Surround:
    """Drones around a fixed target, 200 steps at most.

    Args:
        weights: of the reward for coming nearer to the target and of that for the mean distance to the other drones.
        kwargs: MOMAland's own, such as ``size``.

    Raises:
        MissingExtraError: MOMAland is not installed.
        ConfigError: ``weights`` that are not two finite numbers, or an unknown ``render_mode``.
    """
    module = imported("momaland.envs.crazyrl.surround.surround_v0", INSTALL)
    return Surround(module.parallel_env(**kwargs), weights, render_mode)
