"""Particle worlds in arrays: the state of many copies of an mpe2 world, its physics, and what a scenario adds to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.checks import at_least
from marl_tools.core.types import AgentID
from marl_tools.envs.particles.draws import SeededDraws

F64 = NDArray[np.float64]

# mpe2's World: time step, damping, and the softened contact between bodies.
_DT, _KEPT = 0.1, 1 - 0.25
_CONTACT_FORCE, _CONTACT_MARGIN = 1e2, 1e-3
# So many margins apart the contact is log(1 + exp(-800)), which is 0.0.
_OUT_OF_REACH = -800.0


@dataclass(frozen=True, kw_only=True)
class Body:
    """An agent or a landmark; the defaults are mpe2's.

    Attributes:
        name: of an agent.
        size: its radius.
        spread: it starts at a uniform place in [-spread, spread]^2.
        movable: whether forces move it; landmarks never move.
        accel: the force of one unit of action.
        max_speed: None for no limit.
        speaks: whether its action holds a word as well.
    """

    name: AgentID = ""
    size: float = 0.05
    spread: float = 1.0
    movable: bool = True
    accel: float = 5.0
    max_speed: float | None = None
    speaks: bool = False


class Views(NamedTuple):
    """The rows of a state block, by what they mean. The last axis runs over worlds, if there are any."""

    vel: NDArray  # (2, A)
    pos: NDArray  # (2, bodies)
    rel: NDArray  # (2, A, bodies): the place of each body as each agent sees it
    words: NDArray  # (A, words): what each agent said in the last step
    own: NDArray  # (own_rows,): the scenario's


class Scenario(ABC):
    """What makes one task of particle worlds: who is there, what they see and what they earn.

    Attributes:
        agents, landmarks: the bodies, in mpe2's order.
        max_cycles: steps after which an episode is truncated.
        continuous_actions: Box actions in place of Discrete ones.
        colliders: how many bodies, counted from the first agent, push each other.
        choices: how many values each integer has that a reset draws before the places.
        words: length of an utterance; of those who cannot speak it is all zeros.
        cost: the reference of the cost function for single envs that `costs` equals to the bit; empty if there is none.
        charged: whether `costs` are asked for.
        own_rows: how many rows of the state block it fills itself in `look`.
    """

    name: ClassVar[str]
    cost: ClassVar[str] = ""
    charged: bool = False
    agents: tuple[Body, ...]
    landmarks: tuple[Body, ...]
    colliders: int = 0
    choices: tuple[int, ...] = ()
    words: int = 2
    own_rows: int = 0

    def __init__(self, max_cycles: int, continuous_actions: bool) -> None:
        self.max_cycles = at_least(1)("max_cycles", max_cycles)
        self.continuous_actions = continuous_actions

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of bodies of which at least one is pushed when they touch, in mpe2's order."""
        return [(i, j) for i in range(len(self.agents)) for j in range(i + 1, self.colliders)]

    @cached_property
    def partners(self) -> NDArray[np.intp]:
        """The bodies that each agent may touch, in order, (partners, A)."""
        rows = [[j for j in range(self.colliders) if j != i] for i in range(len(self.agents))]
        return np.array(rows, np.intp).reshape(len(rows), -1).T

    @cached_property
    def contacts(self) -> NDArray[np.intp]:
        """The pairs that each agent makes with its partners, (partners, A)."""
        rows = [
            [self.pairs.index((min(i, j), max(i, j))) for i, j in enumerate(row)]
            for row in self.partners.tolist()
        ]
        return np.array(rows, np.intp).reshape(self.partners.shape)

    def others(self, agent: int) -> list[int]:
        """All agents but that one."""
        return [other for other in range(len(self.agents)) if other != agent]

    @abstractmethod
    def sees(self, rows: Views, agent: int) -> list[NDArray[np.intp]]:
        """The rows of the state block that an agent observes; ``rows`` holds their numbers."""

    @abstractmethod
    def rewards(self, worlds: ParticleWorlds) -> F64:
        """What each agent earns by the state that a step led to, (A, E)."""

    def look(self, worlds: ParticleWorlds) -> None:  # noqa: B027 - a scenario without rows of its own has nothing to fill
        """Fill ``worlds.state.own`` from the rest of the state."""

    def costs(self, worlds: ParticleWorlds) -> NDArray[np.bool_]:
        """Who is charged for the state that a step led to, (A, E)."""
        raise NotImplementedError(f"{self.name} has no cost")

    def succeeded(self, worlds: ParticleWorlds) -> NDArray[np.bool_] | None:
        """In which worlds the episode ends by success, (E,); None where that never happens."""
        return None


class ParticleWorlds:
    """E worlds of a scenario. The last axis of every array runs over the worlds.

    After `start` and `move` call `look`, which brings all that is derived from places up to date: ``state.rel``, ``square`` (squared
    distances (A, bodies, E)) and ``gap`` (distances (pairs, E) of the scenario's pairs).
    """

    def __init__(self, scenario: Scenario, num_envs: int) -> None:
        self.scenario, self.num_envs = scenario, num_envs
        bodies = (*scenario.agents, *scenario.landmarks)
        self._agents, self._bodies = len(scenario.agents), len(bodies)
        a, m = self._agents, self._bodies
        self.block = np.zeros((2 * a + 2 * m + 2 * a * m + a * scenario.words + scenario.own_rows, num_envs))
        self.state = self._views(self.block)
        self.choices = np.zeros((len(scenario.choices), num_envs), np.int64)
        """What the resets drew, (choices, E)."""
        self.every = np.arange(num_envs)
        """The numbers of all worlds (E,), to pick in each a body of its own."""
        self.square = np.zeros((a, m, num_envs))
        self._draws = SeededDraws(scenario.choices, 2 * m)
        self._spread = np.array([[body.spread] for body in bodies])
        self._steps = np.zeros((2, a, num_envs))
        self._accel = np.array([[agent.accel] for agent in scenario.agents])
        self._limited = [i for i, agent in enumerate(scenario.agents) if agent.max_speed is not None]
        self._limits = np.array([[scenario.agents[i].max_speed] for i in self._limited], float)
        first, second = np.array(scenario.pairs, np.intp).reshape(-1, 2).T
        self._pair_rows = first * m + second
        sizes = np.array([[body.size] for body in bodies])
        self.touching = sizes[first] + sizes[second]
        """The distance at which the bodies of each pair touch, (pairs, 1)."""
        self.gap = np.zeros((len(scenario.pairs), num_envs))
        self._contact_rows = np.arange(a) * m + scenario.partners
        # Of each agent, the push of its action, then those of the bodies that it may touch.
        self._forces = np.zeros((2, 1 + len(scenario.partners), a, num_envs))

    def rows_seen(self) -> list[NDArray[np.intp]]:
        """For each agent the rows of `block` that make its observation."""
        rows = self._views(np.arange(len(self.block)))
        return [
            np.concatenate([part.ravel() for part in self.scenario.sees(rows, i)])
            for i in range(self._agents)
        ]

    def start(self, worlds: NDArray[np.int64], seeds: list[int]) -> None:
        """Put some worlds where mpe2's reset with these seeds puts them."""
        self.choices[:, worlds], numbers = self._draws.draw(seeds)
        state, places = self.state, numbers.reshape(self._bodies, 2, len(worlds))
        # As NumPy's `uniform` does it: low + (high - low) * number.
        for axis in range(2):
            state.pos[axis][:, worlds] = -self._spread + 2 * self._spread * places[:, axis]
        state.vel[:, :, worlds] = 0.0
        state.words[:, :, worlds] = 0.0

    def move(self, push: F64) -> None:
        """One time step, in which agents push (2, A, E) in units of their own force; immovable ones push 0."""
        state, moved = self.state, self._steps
        force = push * self._accel
        if self.scenario.pairs:
            force = self._collide(force)
        np.multiply(state.vel, _DT, out=moved)
        state.pos[:, : self._agents] += moved
        np.multiply(state.vel, _KEPT, out=state.vel)
        np.multiply(force, _DT, out=moved)
        np.add(state.vel, moved, out=state.vel)
        if self._limited:
            self._limit_speed()

    def look(self) -> None:
        state = self.state
        np.subtract(state.pos[:, None], state.pos[:, : self._agents, None], out=state.rel)
        np.multiply(state.rel[0], state.rel[0], out=self.square)
        self.square += state.rel[1] * state.rel[1]
        if self.scenario.pairs:
            np.take(
                self.square.reshape(-1, self.num_envs), self._pair_rows, axis=0, out=self.gap, mode="clip"
            )
            np.sqrt(self.gap, out=self.gap)
        self.scenario.look(self)

    def _collide(self, force: F64) -> F64:
        """``force`` (2, A, E) and the contact forces."""
        forces, contact, contacts = self._forces, self._forces[:, 1:], self.scenario.contacts
        # Minus (distance - touching), over the margin.
        overlap = (self.gap - self.touching) / -_CONTACT_MARGIN
        depth = np.zeros_like(overlap)
        np.logaddexp(0, overlap, out=depth, where=overlap > _OUT_OF_REACH)
        depth *= _CONTACT_MARGIN
        forces[:, 0] = force
        contact[...] = self.state.rel.reshape(2, -1, self.num_envs)[:, self._contact_rows]
        contact *= _CONTACT_FORCE
        contact /= self.gap[contacts]
        contact *= depth[contacts]
        # One after the other, as mpe2 adds them; `np.add.reduce` may add in pairs, and then the last bits differ.
        return np.subtract.reduce(forces, axis=1)

    def _limit_speed(self) -> None:
        vel = self.state.vel[:, self._limited]
        speed = np.sqrt(vel[0] * vel[0] + vel[1] * vel[1])
        fast = speed > self._limits
        if fast.any():
            np.divide(vel, speed, out=vel, where=fast)
            np.multiply(vel, self._limits, out=vel, where=fast)
            self.state.vel[:, self._limited] = vel

    def _views(self, block: NDArray) -> Views:
        """The parts of a block (rows, ...)."""
        a, m = self._agents, self._bodies
        shapes = ((2, a), (2, m), (2, a, m), (a, self.scenario.words), (self.scenario.own_rows,))
        ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
        parts = np.split(block, ends[:-1])
        return Views(
            *(part.reshape(*shape, *block.shape[1:]) for part, shape in zip(parts, shapes, strict=True))
        )
