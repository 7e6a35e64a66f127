"""LLE, the Laser Learning Environment (Molinghen et al. 2024), as a parallel env with a cost, a Markov key and its law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID
from marl_tools.envs.adapters.laser_game import INSTALL, LaserGame
from marl_tools.envs.adapters.packages import imported
from marl_tools.envs.law import EnumeratedEnv
from marl_tools.envs.render import ring

if TYPE_CHECKING:
    from lle import World

LEVELS = (1, 2, 3, 4, 5, 6)
_CELL = 32  # pixels, as LLE draws


class LaserEnv(EnumeratedEnv[LaserGame]):
    """An LLE world as a parallel env.

    ``infos[agent]["cost"]`` is 1.0 in the step in which the agent dies, else 0.0, and ``infos[agent]["action_mask"]`` holds
    what the world allows next; an action that it does not allow is played as staying.

    Every agent earns the team's reward, as in LLE: 1 for each gem and each arrival, 1 more when the last agent arrives,
    -1 for each death. Agents end together. A death, or the last arrival, terminates them; ``max_cycles`` truncates. Who
    has arrived earlier waits on the exit and goes on earning with the team.

    Observations are described in `LaserGame.observe`.

    Raises:
        ConfigError: an unknown ``render_mode``, or no step allowed.
        EnvError: in `step`, an action is missing or not one of the agent's.
    """

    def __init__(self, world: World, *, name: str, max_cycles: int, render_mode: str | None = None) -> None:
        from lle.env import SingleObjective

        super().__init__(LaserGame(world, name), max_cycles, render_mode)
        self._world = world
        self._rewards = SingleObjective(world.n_agents)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode. ``seed`` matters for maps with random starts alone; ``options`` are ignored."""
        if seed is not None:
            # Not through `lle.LLE`, whose reset seeds Python's global generator as well.
            self._world.seed(seed)
        self._world.reset()
        self._rewards.reset()
        self._steps = 0
        self._overridden = frozenset()
        self.agents = list(self.possible_agents)
        observations, masks = self._look()
        return observations, {agent: {"action_mask": mask} for agent, mask in masks.items()}

    def step(self, actions: Mapping[AgentID, int]) -> Any:
        before = self._require_state()
        acting, alive = self.agents, before[0, -len(self.game.agents) :]
        if not acting:
            return {}, {}, {}, {}, {}
        chosen = [self._checked(agent, actions) for agent in acting]
        events = self._world.step(self.game.joint(self._allowed, chosen))
        reward = float(self._rewards.compute_reward(events)[0])
        self._steps += 1
        observations, masks = self._look()
        after = self._require_state()
        died = alive & ~after[0, -len(self.game.agents) :]
        over = bool(self.game.ended(after).all())
        capped = self._steps >= self.max_cycles and not over
        if over or capped:
            self.agents = []
        return (
            observations,
            dict.fromkeys(acting, reward),
            dict.fromkeys(acting, over),
            dict.fromkeys(acting, capped),
            {
                agent: {"cost": float(dead), "action_mask": masks[agent]}
                for agent, dead in zip(acting, died.tolist(), strict=True)
            },
        )

    def render(self) -> NDArray[np.uint8]:
        """LLE's own picture (H, W, 3).

        Raises:
            ConfigError: the env was made without a render mode.
        """
        self._require_pictures()
        places = zip(self.possible_agents, self._world.agents_positions, strict=True)
        return ring(
            self._world.get_image(),
            [((x + 0.5) * _CELL, (y + 0.5) * _CELL) for agent, (y, x) in places if agent in self._overridden],
            0.5 * _CELL,
        )

    def _look(self) -> tuple[dict[AgentID, NDArray[np.float32]], dict[AgentID, NDArray[np.int8]]]:
        """Take in where the world stands: observations and masks."""
        self._state = np.array([self.game.row(self._world.get_state())])
        self._allowed = self.game.allowed(self._world)
        observations = dict(zip(self.possible_agents, self.game.observe(self._state)[0], strict=True))
        masks = np.array(self._allowed, np.int8)
        return observations, dict(zip(self.possible_agents, masks, strict=True))


def parallel_env(
    *,
    level: int = 3,
    map_text: str | None = None,
    max_cycles: int | None = None,
    render_mode: str | None = None,
) -> LaserEnv:
    """A level of LLE, 1 to 6, or a map in LLE's own text format.

    ``max_cycles`` is by default half the number of cells, as in LLE's paper: 78 in all levels.

    Raises:
        MissingExtraError: LLE is not installed.
        ConfigError: no such level, a map that LLE refuses, an unknown ``render_mode``, or no step allowed.
    """
    lle = imported("lle", INSTALL)
    if map_text is None and level not in LEVELS:
        raise ConfigError(f"level={level!r}: LLE has the levels {', '.join(map(str, LEVELS))}")
    try:
        world = lle.World.level(level) if map_text is None else lle.World(map_text)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"map_text is no map of LLE: {error}") from error
    world.reset()
    return LaserEnv(
        world,
        name=f"lle_level_{level}" if map_text is None else "lle_map",
        max_cycles=world.height * world.width // 2 if max_cycles is None else max_cycles,
        render_mode=render_mode,
    )
