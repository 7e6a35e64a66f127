"""mpe2's simple_reference and simple_speaker_listener in arrays: who knows the goal has to say it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.checks import proportion
from marl_tools.envs.particles.worlds import F64, Body, ParticleWorlds, Scenario, Views

_REFERENCE_COLOURS = np.full((3, 3), 0.25) + 0.5 * np.eye(3)
_SPEAKER_COLOURS = np.full((3, 3), 0.15) + 0.5 * np.eye(3)


class Reference(Scenario):
    """``simple_reference_v3``: each of two agents knows the landmark of the other.

    Args:
        local_ratio: weight of the own landmark's distance against the mean of both.
    """

    name = "simple_reference"

    def __init__(
        self, local_ratio: float = 0.5, max_cycles: int = 25, continuous_actions: bool = False
    ) -> None:
        super().__init__(max_cycles, continuous_actions)
        self.agents = tuple(Body(name=f"agent_{i}", speaks=True) for i in range(2))
        self.landmarks = (Body(),) * 3
        self.choices, self.words, self.own_rows = (3, 3), 10, 2 * 3
        self.local_ratio = proportion("local_ratio", local_ratio)

    def sees(self, rows: Views, agent: int) -> list[NDArray[np.intp]]:
        colour = rows.own.reshape(2, 3)[agent]
        return [rows.vel[:, agent], rows.rel[:, agent, 2:].T, colour, rows.words[1 - agent]]

    def look(self, worlds: ParticleWorlds) -> None:
        worlds.state.own[...] = _REFERENCE_COLOURS[worlds.choices].swapaxes(1, 2).reshape(6, -1)

    def rewards(self, worlds: ParticleWorlds) -> F64:
        # An agent earns by the way that is left to the other one.
        left = worlds.square[[[1], [0]], 2 + worlds.choices, worlds.every]
        own = -np.sqrt(left)
        return (own[0] + own[1]) / 2 * (1 - self.local_ratio) + own * self.local_ratio


class SpeakerListener(Scenario):
    """``simple_speaker_listener_v4``: one knows the landmark and cannot move, the other can."""

    name = "simple_speaker_listener"

    def __init__(self, max_cycles: int = 25, continuous_actions: bool = False) -> None:
        super().__init__(max_cycles, continuous_actions)
        speaker = Body(name="speaker_0", size=0.075, movable=False, speaks=True)
        self.agents = speaker, Body(name="listener_0", size=0.075)
        self.landmarks = (Body(size=0.04),) * 3
        self.choices, self.words, self.own_rows = (3,), 3, 3

    def sees(self, rows: Views, agent: int) -> list[NDArray[np.intp]]:
        if agent == 0:
            return [rows.own]
        return [rows.vel[:, 1], rows.rel[:, 1, 2:].T, rows.words[0]]

    def look(self, worlds: ParticleWorlds) -> None:
        worlds.state.own[...] = _SPEAKER_COLOURS[worlds.choices[0]].T

    def rewards(self, worlds: ParticleWorlds) -> F64:
        left = worlds.square[1, 2 + worlds.choices[0], worlds.every]
        return np.stack([-left, -left])
