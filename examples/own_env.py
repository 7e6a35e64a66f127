"""An environment of one's own, trained by name, shielded and constrained:

    marl-tools train examples.own_env:make_env --timesteps 20000 --env-kwargs size=6
    marl-tools train examples.own_env:make_env --timesteps 20000 --shield ledger --constraint lagrange

Two agents on an icy line meet in the middle. Each sees both positions, moves left, stays or moves right, and earns the closer the two are.
A move may slide one place too far, and an agent that hits the wall at an end of the line has a cost of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from marl_tools.core.transitions import Outcome

SLIDE = 0.1


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
        self.places = self.rng.choice(self.size, 2, replace=False)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]):
        moves = np.array([actions["left"] - 1, actions["right"] - 1])
        aims = self.places + moves * np.where(self.rng.random(2) < SLIDE, 2, 1)
        self.places = np.clip(aims, 0, self.size - 1)
        self.steps += 1
        met = bool(self.places[0] == self.places[1])
        cut = not met and self.steps >= self.max_cycles
        agents, reward = self.agents, 1.0 if met else -0.1
        if met or cut:
            self.agents = []
        hits = zip(agents, self.places != aims, strict=True)
        return (
            self._observe(),
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, met),
            dict.fromkeys(agents, cut),
            {agent: {"cost": float(hit)} for agent, hit in hits},
        )

    def render(self) -> np.ndarray:
        picture = np.full((24, 24 * self.size, 3), 255, np.uint8)
        for place, colour in zip(self.places, ((0, 114, 178), (213, 94, 0)), strict=True):
            picture[4:20, 24 * place + 4 : 24 * place + 20] = colour
        return picture

    def _observe(self) -> dict[str, np.ndarray]:
        line = (self.places / (self.size - 1)).astype(np.float32)
        return {"left": line, "right": line[::-1].copy()}

    # A shield needs this: all that the next step depends on, as bytes, without the clock.
    def state_key(self) -> bytes:
        return _key(self.places)

    # With these three the env can be enumerated, and a shield knows beforehand which outcomes are possible.
    def initial_law(self) -> list[tuple[float, bytes]]:
        starts = [places for places in product(range(self.size), repeat=2) if places[0] != places[1]]
        return [(1 / len(starts), _key(places)) for places in starts]

    def joint_law(self, key: bytes, choices: Sequence[int]) -> list[Outcome]:
        places = np.frombuffer(key, np.int64).tolist()
        left, right = (self._law_of_one(*move) for move in zip(places, choices, strict=True))
        return [
            Outcome(p * q, _key((a, b)), (a_hits, b_hits), (a == b, a == b))
            for ((a, a_hits), p), ((b, b_hits), q) in product(left.items(), right.items())
        ]

    def ended_agents(self, key: bytes) -> tuple[bool, ...]:
        left, right = np.frombuffer(key, np.int64).tolist()
        return left == right, left == right

    def _law_of_one(self, place: int, choice: int) -> dict[tuple[int, bool], float]:
        """Where an agent's move may end, and whether it hits the wall, with the probability of each."""
        law: dict[tuple[int, bool], float] = {}
        for probability, length in ((1 - SLIDE, 1), (SLIDE, 2)):
            aim = place + (choice - 1) * length
            after = min(max(aim, 0), self.size - 1)
            law[after, aim != after] = law.get((after, aim != after), 0.0) + probability
        return law


def _key(places: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray(places, np.int64).tobytes()


def make_env(size: int = 8, render_mode: str | None = None) -> ParallelEnv:
    return Meeting(size, render_mode=render_mode)
