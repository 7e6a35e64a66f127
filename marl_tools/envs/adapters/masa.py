"""MASA's Markov stag hunt as a parallel env with a cost, a Markov key and its law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import LawTable, too_many_keys
from marl_tools.core.types import AgentID
from marl_tools.envs.adapters.hunt_game import HuntGame
from marl_tools.envs.adapters.packages import imported
from marl_tools.envs.law import EnumeratedEnv
from marl_tools.envs.render import ring

if TYPE_CHECKING:
    from masa.envs.multiagent.tabular.markov_stag_hunt import MarkovStagHunt

_MODULE = "masa.envs.multiagent.tabular.markov_stag_hunt"
# Its own requirements bring jax and pygame, which overwrites pygame-ce.
INSTALL = "pip install --no-deps masa-safe-rl"
_CELL = 72  # pixels


class HuntEnv(EnumeratedEnv[HuntGame]):
    """MASA's stag hunt, stepped by MASA itself.

    ``infos[agent]["cost"]`` is 1.0 in the step in which the agent is mauled, alone in a stag's cell, else 0.0. A mauling terminates all
    agents, and ``max_cycles`` truncates them, as in MASA. Rewards are MASA's, each agent its own. Observations are described in
    `HuntGame.observe`: MASA's are the same for all agents, so that a network which they share could not tell for whom it acts.

    Raises:
        ConfigError: an unknown ``render_mode``, or no step allowed.
        EnvError: in `step`, an action is missing (MASA would stay put unasked) or not one of the agent's.
    """

    def __init__(self, hunt: MarkovStagHunt, *, name: str, render_mode: str | None = None) -> None:
        game = HuntGame(
            name=name,
            agents=tuple(hunt.possible_agents),
            shape=hunt.grid_size,
            plants=hunt.num_plants_target,
            stags=hunt.num_stags_target,
            roam=hunt.stag_move_prob,
            needed=hunt.min_hunters_for_stag,
        )
        super().__init__(game, hunt.max_moves, render_mode)
        self._hunt = hunt

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode; without a seed its chance follows from the episodes before. ``options`` are ignored."""
        self._hunt.reset(seed=seed)
        self._overridden = frozenset()
        self.agents = list(self._hunt.agents)
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[AgentID, int]) -> Any:
        self._require_state()
        acting = self.agents
        if not acting:
            return {}, {}, {}, {}, {}
        chosen = {agent: self._checked(agent, actions) for agent in acting}
        _, rewards, terminations, truncations, infos = self._hunt.step(chosen)
        self.agents = list(self._hunt.agents)
        costs = {agent: {"cost": float(infos[agent]["mauled"])} for agent in acting}
        return self._look(), rewards, terminations, truncations, costs

    def law_table(self, max_keys: int = 100_000) -> LawTable:
        if self.game.num_starts > max_keys:
            raise too_many_keys(max_keys)
        return super().law_table(max_keys)

    def render(self) -> NDArray[np.uint8]:
        """MASA's own picture (H, W, 3).

        Raises:
            ConfigError: the env was made without a render mode.
        """
        self._require_pictures()
        places = self._hunt.agent_positions.items()
        return ring(
            np.asarray(self._hunt.render(), np.uint8),
            [((x + 0.5) * _CELL, (y + 0.5) * _CELL) for agent, (y, x) in places if agent in self._overridden],
            0.5 * _CELL,
        )

    def close(self) -> None:
        self._hunt.close()

    def _look(self) -> dict[AgentID, NDArray[np.float32]]:
        """Take in where everybody stands: observations."""
        hunt, columns = self._hunt, self.game.shape[1]
        cells = [
            [row * columns + column for row, column in places]
            for places in (
                [hunt.agent_positions[agent] for agent in self.possible_agents],
                hunt.plants,
                hunt.stags,
            )
        ]
        self._state = np.array([self.game.row(*cells)])
        return dict(zip(self.possible_agents, self.game.observe(self._state)[0], strict=True))


def parallel_env(
    *,
    rows: int = 3,
    columns: int = 3,
    num_plants: int = 1,
    max_cycles: int = 50,
    render_mode: str | None = None,
    **rules: Any,
) -> HuntEnv:
    """The stag hunt on a grid so small that its law can be enumerated; MASA's own has 5 by 5 cells, 2 plants and 500 steps.

    ``rules`` are more of `MarkovStagHunt`'s arguments: ``num_agents``, ``num_stags``, ``stag_move_prob``,
    ``min_hunters_for_stag``, ``plant_reward``, ``stag_reward``, ``maul_penalty``.

    Raises:
        MissingExtraError: MASA is not installed.
        ConfigError: an argument that MASA or this adapter refuses.
    """
    module = imported(_MODULE, INSTALL)
    try:
        hunt = module.MarkovStagHunt(
            grid_size=(rows, columns),
            num_plants=num_plants,
            max_moves=max_cycles,
            render_mode=render_mode,
            render_window_size=_CELL * max(rows, columns),
            **rules,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"masa_stag_hunt: {error}") from error
    return HuntEnv(hunt, name="masa_stag_hunt", render_mode=render_mode)
