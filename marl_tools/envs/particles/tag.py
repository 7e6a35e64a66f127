"""mpe2's simple_tag in arrays: slow predators chase a fast prey among obstacles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.checks import at_least
from marl_tools.envs.costs import ARENA, CATCH_GAP, PREDATOR_GAP
from marl_tools.envs.particles.worlds import F64, Body, ParticleWorlds, Scenario, Views

_CATCH = 10.0


class Tag(Scenario):
    """``simple_tag_v3``: all predators earn by each catch, the prey pays for it and for leaving the square.

    Args:
        num_good: how many prey.
        num_adversaries: how many predators.
        num_obstacles: landmarks that nobody can pass.
        terminate_on_success: end the episode when all prey are caught at once.
    """

    name = "simple_tag"
    cost = "marl_tools.envs.costs:tag"

    def __init__(
        self,
        num_good: int = 1,
        num_adversaries: int = 3,
        num_obstacles: int = 2,
        max_cycles: int = 25,
        continuous_actions: bool = False,
        terminate_on_success: bool = False,
    ) -> None:
        super().__init__(max_cycles, continuous_actions)
        self.predators = at_least(1)("num_adversaries", num_adversaries)
        self.agents = (
            *(
                Body(name=f"adversary_{i}", size=0.075, accel=3.0, max_speed=1.0)
                for i in range(self.predators)
            ),
            *(
                Body(name=f"agent_{i}", size=0.05, accel=4.0, max_speed=1.3)
                for i in range(at_least(1)("num_good", num_good))
            ),
        )
        obstacles = at_least(0)("num_obstacles", num_obstacles)
        self.landmarks = (Body(size=0.2, spread=0.9),) * obstacles
        self.colliders = len(self.agents) + obstacles
        self.terminate_on_success = terminate_on_success
        # For each prey, the pairs that it makes with the predators.
        self._chases = [
            [self.pairs.index((predator, prey)) for predator in range(self.predators)]
            for prey in range(self.predators, len(self.agents))
        ]
        # For each predator, those that it makes with the other ones.
        self._brushes = [
            [self.pairs.index((min(i, j), max(i, j))) for j in range(self.predators) if j != i]
            for i in range(self.predators)
        ]

    def sees(self, rows: Views, agent: int) -> list[NDArray[np.intp]]:
        n = len(self.agents)
        rel, others = rows.rel[:, agent], self.others(agent)
        prey = [other for other in others if other >= self.predators]
        return [
            rows.vel[:, agent],
            rows.pos[:, agent],
            rel[:, n:].T,
            rel[:, others].T,
            rows.vel[:, prey].T,
        ]

    def rewards(self, worlds: ParticleWorlds) -> F64:
        catches = self._catches(worlds).sum(axis=1)
        rewards = np.empty((len(self.agents), worlds.num_envs))
        rewards[: self.predators] = _CATCH * catches.sum(axis=0)
        prey = rewards[self.predators :]
        np.multiply(catches, -_CATCH, out=prey)
        for outside in _outside(np.abs(worlds.state.pos[:, self.predators : len(self.agents)])):
            prey -= outside
        return rewards

    def costs(self, worlds: ParticleWorlds) -> NDArray[np.bool_]:
        charged = np.zeros((len(self.agents), worlds.num_envs), bool)
        if self.predators > 1:
            charged[: self.predators] = (worlds.gap < PREDATOR_GAP)[self._brushes].any(axis=1)
        prey = charged[self.predators :]
        np.any((worlds.gap < CATCH_GAP)[self._chases], axis=1, out=prey)
        prey |= (np.abs(worlds.state.pos[:, self.predators : len(self.agents)]) > ARENA).any(axis=0)
        return charged

    def succeeded(self, worlds: ParticleWorlds) -> NDArray[np.bool_] | None:
        if not self.terminate_on_success:
            return None
        return np.logical_and.reduce(self._catches(worlds).any(axis=1))

    def _catches(self, worlds: ParticleWorlds) -> NDArray[np.bool_]:
        """Which predators touch which prey, (prey, predators, E)."""
        return (worlds.gap < worlds.touching)[self._chases]


def _outside(place: F64) -> F64:
    """What a coordinate costs, by its absolute value: nothing inside 0.9, then steeply more, 10 at most."""
    fine = np.where(place < 0.9, 0.0, (place - 0.9) * 10)
    return np.where(place < 1.0, fine, np.minimum(np.exp(2 * place - 2), 10))
