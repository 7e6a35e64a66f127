"""An environment of one's own, trained by name:

    marl-tools train examples.own_env:make_env --timesteps 20000 --env-kwargs size=6

Two agents on a line meet in the middle. Each sees both positions, moves left, stays or moves right, and earns the closer the two are.
"""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Meeting(ParallelEnv):
    metadata = {"name": "meeting_v0", "render_fps": 10}  # noqa: RUF012

    def __init__(self, size: int = 8, max_cycles: int = 25, render_mode: str | None = None) -> None:
        self.size, self.max_cycles, self.render_mode = size, max_cycles, render_mode
        self.possible_agents = ["left", "right"]
        self.observation_spaces = {agent: Box(0.0, 1.0, (2,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: Discrete(3) for agent in self.possible_agents}
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict | None = None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.steps = 0
        self.places = self.rng.integers(0, self.size, 2)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]):
        moves = [actions["left"] - 1, actions["right"] - 1]
        self.places = np.clip(self.places + moves, 0, self.size - 1)
        self.steps += 1
        met = bool(self.places[0] == self.places[1])
        cut = not met and self.steps >= self.max_cycles
        agents, reward = self.agents, 1.0 if met else -0.1
        if met or cut:
            self.agents = []
        return (
            self._observe(),
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, met),
            dict.fromkeys(agents, cut),
            {agent: {} for agent in agents},
        )

    def render(self) -> np.ndarray:
        picture = np.full((24, 24 * self.size, 3), 255, np.uint8)
        for place, colour in zip(self.places, ((0, 114, 178), (213, 94, 0)), strict=True):
            picture[4:20, 24 * place + 4 : 24 * place + 20] = colour
        return picture

    def _observe(self) -> dict[str, np.ndarray]:
        line = (self.places / (self.size - 1)).astype(np.float32)
        return {"left": line, "right": line[::-1].copy()}


def make_env(size: int = 8, render_mode: str | None = None) -> ParallelEnv:
    return Meeting(size, render_mode=render_mode)
