"""mpe2's simple_spread in arrays: cover all landmarks without bumping into each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.checks import at_least, proportion
from marl_tools.envs.costs import SPREAD_GAP
from marl_tools.envs.particles.worlds import F64, Body, ParticleWorlds, Scenario, Views

_CAPTURE_RADIUS = 0.1


class Spread(Scenario):
    """``simple_spread_v3``: N agents and as many landmarks.

    Args:
        local_ratio: weight of an agent's own bumps against the shared distance of landmarks to their nearest agents.
        terminate_on_success: end the episode when all landmarks are covered.
    """

    name = "simple_spread"
    cost = "marl_tools.envs.costs:spread"

    def __init__(
        self,
        N: int = 3,
        local_ratio: float = 0.5,
        max_cycles: int = 25,
        continuous_actions: bool = False,
        terminate_on_success: bool = False,
    ) -> None:
        super().__init__(max_cycles, continuous_actions)
        self.agents = tuple(Body(name=f"agent_{i}", size=0.15) for i in range(at_least(1)("N", N)))
        self.landmarks = (Body(),) * N
        self.colliders = N
        self.local_ratio = proportion("local_ratio", local_ratio)
        self.terminate_on_success = terminate_on_success

    def sees(self, rows: Views, agent: int) -> list[NDArray[np.intp]]:
        n = len(self.agents)
        rel, others = rows.rel[:, agent], self.others(agent)
        return [rows.vel[:, agent], rows.pos[:, agent], rel[:, n:].T, rel[:, others].T, rows.words[others]]

    def rewards(self, worlds: ParticleWorlds) -> F64:
        # Subtracted one after the other, as mpe2 does.
        shared = np.subtract.reduce(self._nearest(worlds), axis=0, initial=0.0)
        bumps = (worlds.gap < worlds.touching)[self.contacts].sum(axis=0)
        return shared * (1 - self.local_ratio) - bumps * self.local_ratio

    def costs(self, worlds: ParticleWorlds) -> NDArray[np.bool_]:
        return np.logical_or.reduce((worlds.gap < SPREAD_GAP)[self.contacts], axis=0)

    def succeeded(self, worlds: ParticleWorlds) -> NDArray[np.bool_] | None:
        if not self.terminate_on_success:
            return None
        return np.logical_and.reduce(self._nearest(worlds) < _CAPTURE_RADIUS)

    def _nearest(self, worlds: ParticleWorlds) -> F64:
        """From each landmark to the nearest agent, (landmarks, E)."""
        return np.sqrt(worlds.square[:, len(self.agents) :].min(axis=0))
