"""The law of an LLE world: every outcome comes from the world itself, put into a state and stepped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.envs.adapters.packages import imported
from marl_tools.envs.fields import FieldGame, Floats, Laws
from marl_tools.envs.grid import Bools, Ints

if TYPE_CHECKING:
    from lle import Action, World, WorldState

INSTALL = 'pip install "marl-tools[lle]"'


class LaserGame(FieldGame):
    """A world of lasers, gems and exits. Its state is each agent's cell, each gem's and each agent's flag (alive).

    Beams follow from the agents that stand in them, and whoever is on an exit has arrived: neither is part of the state. A
    step is deterministic. An action that the world does not allow in a state, such as walking into a wall or another agent,
    is played as staying.
    """

    def __init__(self, world: World, name: str) -> None:
        lle = imported("lle", INSTALL)
        self.name = name
        # A copy: the world of an episode must not move when its law is asked for.
        self._world: World = deepcopy(world)
        self._state_type: type[WorldState] = lle.WorldState
        self._variants: list[Action] = sorted(lle.Action.variants(), key=lambda action: action.value)
        self._stay: int = lle.Action.STAY.value
        self.height, self.width = world.height, world.width
        count = world.n_agents
        self.agents = tuple(f"agent_{i}" for i in range(count))
        self.actions = (len(self._variants),) * count
        self.sizes = (self.height * self.width,) * count + (2,) * (world.n_gems + count)
        self._gems = slice(count, count + world.n_gems)
        self._exits = np.zeros(self.height * self.width, bool)
        self._exits[[row * self.width + column for row, column in world.exit_pos]] = True
        cells = np.arange(self.height * self.width)
        places = np.concatenate([cells // self.width, self.height + cells % self.width])
        self._features = np.zeros((len(cells), self.height + self.width), np.float32)
        self._features[np.tile(cells, 2), places] = 1.0
        # Each agent sees itself first, then the others in a circle.
        self._circle = (np.arange(count) + np.arange(count)[:, None]) % count
        self._who = np.eye(count, dtype=np.float32)

    @property
    def obs_size(self) -> int:
        return len(self.agents) * (self.height + self.width + 1) + self._gems.stop - self._gems.start

    def row(self, state: WorldState) -> list[int]:
        """A state of the world as whole numbers (F,)."""
        cells = [row * self.width + column for row, column in state.agents_positions]
        return [*cells, *map(int, state.gems_collected), *map(int, state.agents_alive)]

    def start_law(self) -> tuple[Floats, Ints]:
        """The one start.

        Raises:
            ConfigError: the map draws its starts at random.
        """
        if any(len(starts) > 1 for starts in self._world.random_start_pos):
            raise ConfigError(
                f"{self.name} draws its starts at random, which this law does not tell: use a map with one start an agent, "
                "or --shield-support none"
            )
        self._world.reset()
        return np.ones(1), np.array([self.row(self._world.get_state())])

    def ended(self, state: Ints) -> Bools:
        """All agents end together: when somebody dies, and when everybody has arrived."""
        arrived = self._exits[state[:, : len(self.agents)]].all(axis=1)
        over = arrived | (state[:, self._gems.stop :] == 0).any(axis=1)
        return np.repeat(over[:, None], len(self.agents), axis=1)

    def observe(self, state: Ints) -> NDArray[np.float32]:
        """Zeros and ones (N, A, obs_size): row and column of each agent, oneself first, gems taken, and who one is."""
        n, count = len(state), len(self.agents)
        seen = np.empty((n, count, self.obs_size), np.float32)
        places = count * self._features.shape[1]
        seen[..., :places] = self._features[state[:, :count][:, self._circle]].reshape(n, count, places)
        seen[..., places:-count] = state[:, None, self._gems]
        seen[..., -count:] = self._who
        return seen

    def masks(self, state: Ints) -> Bools:
        """What the world allows; anything to those who have ended."""
        masks = np.ones((len(state), len(self.agents), self.actions[0]), bool)
        live = np.flatnonzero(~self.ended(state)[:, 0])
        for index, world_state in zip(live.tolist(), self._world_states(state[live]), strict=True):
            self._world.set_state(world_state)
            masks[index] = self.allowed(self._world)
        return masks

    def allowed(self, world: World) -> list[list[bool]]:
        """The actions that the world allows each agent now, (A, n)."""
        options = [{action.value for action in options} for options in world.available_actions()]
        return [
            [action in some for action in range(n)] for some, n in zip(options, self.actions, strict=True)
        ]

    def joint(self, allowed: Sequence[Sequence[bool]], chosen: Sequence[int]) -> list[Action]:
        """The actions as the world takes them."""
        return [self._variants[action] for action in self._played(allowed, chosen)]

    def _played(self, allowed: Sequence[Sequence[bool]], chosen: Sequence[int]) -> tuple[int, ...]:
        stay = self._stay
        return tuple([action if may[action] else stay for may, action in zip(allowed, chosen, strict=True)])

    def laws(self, state: Ints, actions: Ints) -> Laws:
        after = state.copy()
        live = np.flatnonzero(~self.ended(state)[:, 0])
        ids, first, group = np.unique(self.ids(state[live]), return_index=True, return_inverse=True)
        rows = np.split(
            live[np.argsort(group, kind="stable")], np.cumsum(np.bincount(group, minlength=len(ids)))[:-1]
        )
        for world_state, members in zip(self._world_states(state[live[first]]), rows, strict=True):
            after[members] = self._successors(world_state, actions[members].tolist())
        harmed = (state[:, self._gems.stop :] == 1) & (after[:, self._gems.stop :] == 0)
        return Laws(np.arange(len(state)), np.ones(len(state)), after, harmed, self.ended(after))

    def _successors(self, before: WorldState, choices: Sequence[Sequence[int]]) -> list[list[int]]:
        """Where each of some joint actions leads from one state."""
        world, known, after = self._world, {}, []
        world.set_state(before)
        allowed = self.allowed(world)
        for choice in choices:
            played = self._played(allowed, choice)
            if played not in known:
                world.set_state(before)
                world.step([self._variants[action] for action in played])
                known[played] = self.row(world.get_state())
            after.append(known[played])
        return after

    def _world_states(self, state: Ints) -> Iterator[WorldState]:
        count, width = len(self.agents), self.width
        for row in state.tolist():
            yield self._state_type(
                [divmod(cell, width) for cell in row[:count]],
                [bool(flag) for flag in row[self._gems]],
                [bool(flag) for flag in row[self._gems.stop :]],
            )
