"""mpe2's simple_adversary and simple_push in arrays: some agents know the goal, an adversary does not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.checks import at_least
from marl_tools.envs.particles.worlds import F64, Body, ParticleWorlds, Scenario, Views

_PUSH_COLOURS = np.array([[0.1, 0.1 + 0.8, 0.1], [0.1, 0.1, 0.1 + 0.8]])
"""Of the landmarks of simple_push, (2, 3)."""


class _OneGoal(Scenario):
    """A landmark drawn at each reset is the goal; the first own rows are its place as each agent sees it."""

    def goal_rows(self, rows: Views) -> NDArray:
        """(2, A, ...)."""
        a = len(self.agents)
        return rows.own[: 2 * a].reshape(2, a, *rows.own.shape[1:])

    def look(self, worlds: ParticleWorlds) -> None:
        goal = len(self.agents) + worlds.choices[0]
        self.goal_rows(worlds.state)[...] = worlds.state.rel[:, :, goal, worlds.every]

    def distances(self, worlds: ParticleWorlds) -> F64:
        """Of each agent to the goal, (A, E)."""
        return np.sqrt(worlds.square[:, len(self.agents) + worlds.choices[0], worlds.every])


class Adversary(_OneGoal):
    """``simple_adversary_v3``: N agents earn by the nearest one's way to the goal and by that of the adversary.

    Args:
        N: how many good agents, and landmarks.
    """

    name = "simple_adversary"

    def __init__(self, N: int = 2, max_cycles: int = 25, continuous_actions: bool = False) -> None:
        super().__init__(max_cycles, continuous_actions)
        good = tuple(Body(name=f"agent_{i}", size=0.15) for i in range(at_least(1)("N", N)))
        self.agents = (Body(name="adversary_0", size=0.15), *good)
        self.landmarks = (Body(size=0.08),) * N
        self.choices = (N,)
        self.own_rows = 2 * len(self.agents)

    def sees(self, rows: Views, agent: int) -> list[NDArray[np.intp]]:
        rel = rows.rel[:, agent]
        seen = [rel[:, len(self.agents) :].T, rel[:, self.others(agent)].T]
        return [self.goal_rows(rows)[:, agent], *seen] if agent else seen

    def rewards(self, worlds: ParticleWorlds) -> F64:
        adversary, *good = self.distances(worlds)
        rewards = np.empty((len(self.agents), worlds.num_envs))
        rewards[0] = -adversary
        rewards[1:] = adversary - np.min(good, axis=0)
        return rewards


class Push(_OneGoal):
    """``simple_push_v3``: an adversary, who has to guess the goal, keeps an agent away from it."""

    name = "simple_push"

    def __init__(self, max_cycles: int = 25, continuous_actions: bool = False) -> None:
        super().__init__(max_cycles, continuous_actions)
        self.agents = Body(name="adversary_0"), Body(name="agent_0")
        self.landmarks = (Body(),) * 2
        self.colliders, self.choices = 2, (2,)
        self.own_rows = 2 * 2 + 3 + _PUSH_COLOURS.size

    def sees(self, rows: Views, agent: int) -> list[NDArray[np.intp]]:
        vel, rel = rows.vel[:, agent], rows.rel[:, agent]
        landmarks, other = rel[:, 2:].T, rel[:, 1 - agent]
        if agent == 0:
            return [vel, landmarks, other]
        colour, colours = rows.own[4:7], rows.own[7:]
        return [vel, self.goal_rows(rows)[:, agent], colour, landmarks, colours, other]

    def look(self, worlds: ParticleWorlds) -> None:
        super().look(worlds)
        own, goal = worlds.state.own, worlds.choices[0]
        # The agent wears the goal's colour, which is none of the three but the first.
        own[4:7] = 0.25
        own[5 + goal, worlds.every] += 0.5
        own[7:] = _PUSH_COLOURS.reshape(-1, 1)

    def rewards(self, worlds: ParticleWorlds) -> F64:
        adversary, agent = self.distances(worlds)
        return np.stack([agent - adversary, -agent])
