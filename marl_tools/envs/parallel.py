"""The `ParallelEnv` face of a game: one world, with pictures, a Markov key and the exact joint law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.types import AgentID
from marl_tools.envs.game import Game
from marl_tools.envs.law import EnumeratedEnv
from marl_tools.envs.render import draw


class EpisodeChance:
    """A generator that starts each episode on a stream of its own: Philox (Salmon et al. 2011), keyed by the seed."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._zero = self._bits.state
        self.generator = np.random.Generator(self._bits)

    def rekey(self, seed: int) -> None:
        """Go to the start of the stream of ``seed``, from 0 to 2**64 - 1."""
        self._zero["state"]["key"][0] = seed
        # Setting the state is ten times faster than building a generator.
        self._bits.state = self._zero

    def fill(self, uniforms: NDArray[np.float64], seed: int) -> None:
        """Write the first numbers of the stream of ``seed`` into ``uniforms`` (n,)."""
        self.rekey(seed)
        self.generator.random(out=uniforms)


class GameEnv(EnumeratedEnv[Game]):
    """A `Game` as a parallel env whose law can be enumerated.

    ``infos[agent]["cost"]`` is 1.0 in a step in which the agent violates, else 0.0. ``max_cycles`` steps truncate who is
    left; the clock is no part of `state_key`. The chance of an episode is drawn at `reset`, so that it depends on
    nothing but the seed.

    Raises:
        ConfigError: an unknown ``render_mode``.
        EnvError: in `step`, an action is missing or not one of the agent's.
    """

    def __init__(self, game: Game, render_mode: str | None = None) -> None:
        super().__init__(game, game.max_cycles, render_mode)
        self._chance = EpisodeChance()
        self._chance.rekey(int(np.random.SeedSequence().generate_state(1)[0]))
        self.np_random = self._chance.generator

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode; without a seed its chance follows from the episodes before. ``options`` are ignored."""
        game = self.game
        if seed is not None:
            self._chance.rekey(seed)
        uniforms = self.np_random.random(game.num_uniforms)[None]
        starts = len(game.start_dice)
        self._steps = 0
        self._state = game.start(game.start_dice.roll(uniforms[:, :starts]))
        self._uniforms = uniforms[:, starts:].reshape(game.max_cycles, len(game.dice))
        self._tokens = game.tokens(self._state)[0]
        self._violated = np.zeros(len(game.agents), bool)
        self._overridden = frozenset()
        self.agents = list(game.agents)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[AgentID, int]) -> Any:
        game, acting = self.game, self.agents
        state = self._require_state()
        if not acting:
            return {}, {}, {}, {}, {}
        chosen = np.array([[self._checked(agent, actions) for agent in game.agents]])
        result = game.transition(state, chosen, game.dice.roll(self._uniforms[self._steps][None]))
        self._steps += 1
        self._state, self._tokens, self._violated = result.state, result.tokens[0], result.violated[0]
        ended = dict(zip(game.agents, game.ended(result.state)[0].tolist(), strict=True))
        capped = self._steps >= game.max_cycles
        rewards = dict(zip(game.agents, result.rewards[0].tolist(), strict=True))
        costs = dict(zip(game.agents, result.violated[0].tolist(), strict=True))
        observations = self._observe()
        self.agents = [] if capped else [agent for agent in acting if not ended[agent]]
        return (
            observations,
            {agent: rewards[agent] for agent in acting},
            {agent: ended[agent] for agent in acting},
            {agent: capped and not ended[agent] for agent in acting},
            {agent: {"cost": float(costs[agent])} for agent in acting},
        )

    def render(self) -> NDArray[np.uint8]:
        """The world as an RGB picture (H, W, 3): walls, hazards, goals, agents as lettered discs, crosses for violations.

        Raises:
            ConfigError: the env was made without a render mode.
        """
        self._require_pictures()
        return draw(
            self.game,
            self._tokens,
            violated=self._violated,
            overridden=[agent in self._overridden for agent in self.game.agents],
            caption=self._caption(),
        )

    def _observe(self) -> dict[AgentID, NDArray[np.float32]]:
        rows = dict(zip(self.game.agents, self.game.observe(self._require_state())[0], strict=True))
        return {agent: rows[agent] for agent in self.agents}

    def _caption(self) -> str:
        shielded = [
            self.game.labels[i] for i, agent in enumerate(self.game.agents) if agent in self._overridden
        ]
        return f"step {self._steps}" + (f"   shield overrode {', '.join(shielded)}" if shielded else "")
