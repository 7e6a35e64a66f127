"""`EnumeratedEnv`: what a parallel env over a `FieldGame` tells of its joint law, key by key or in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import Key, KeyedView, LawTable, Outcome
from marl_tools.envs.fields import FieldGame
from marl_tools.envs.tabulate import tabulate

GameT = TypeVar("GameT", bound=FieldGame)


class EnumeratedEnv(Generic[GameT]):
    """Implements `core.transitions.Tabulated` and `core.transitions.Observed` by its ``game``."""

    game: GameT

    def initial_law(self) -> list[tuple[float, Key]]:
        """Probability and key of each possible start."""
        probability, states = self.game.start_law()
        return list(zip(probability.tolist(), self.game.keys(states), strict=True))

    def joint_law(self, key: Key, choices: Sequence[int]) -> list[Outcome]:
        """All outcomes of a joint action at a key; see `core.transitions.Solvable`."""
        return self.joint_laws([key], [choices])[0]

    def joint_laws(
        self, keys: Sequence[Key], choices: Sequence[Sequence[int]] | NDArray[np.integer]
    ) -> list[list[Outcome]]:
        """`joint_law` of many keys (N) and choices (N, A) in one go, which is far faster. `Game.laws` has arrays.

        Raises:
            ConfigError: a key that is none of this env, or a choice that the agent does not have there.
        """
        game, states = self.game, self.game.states(keys)
        chosen = np.asarray(choices, np.int64)
        ended = game.ended(states)
        # An agent that has ended makes the choice "none"; any other would make two rows of one law.
        wrong = (chosen < 0) | np.where(ended, chosen != game.actions, chosen >= np.array(game.actions))
        if wrong.any():
            row, agent = np.argwhere(wrong)[0]
            allowed = (
                f"only {game.actions[agent]}, none"
                if ended[row, agent]
                else f"0 to {game.actions[agent] - 1}"
            )
            raise ConfigError(
                f"{game.name}: {game.agents[agent]!r} cannot choose {chosen[row, agent]} at key {keys[row]!r}; {allowed}"
            )
        laws = game.laws(states, chosen)
        outcomes: list[list[Outcome]] = [[] for _ in keys]
        columns = (laws.row, laws.probability, laws.violated, laws.ended)
        for (row, probability, violated, ended_), after in zip(
            zip(*(column.tolist() for column in columns), strict=True), game.keys(laws.state), strict=True
        ):
            outcomes[row].append(Outcome(probability, after, tuple(violated), tuple(ended_)))
        return outcomes

    def law_table(self, max_keys: int = 100_000) -> LawTable:
        """All that play can reach, in arrays; see `core.transitions.Tabulated`."""
        return tabulate(self.game, max_keys)

    def ended_agents(self, key: Key) -> tuple[bool, ...]:
        """Which agents have ended at this key and play nothing."""
        return tuple(self.game.ended(self.game.states([key]))[0].tolist())

    def observe_keys(self, keys: Sequence[Key]) -> KeyedView:
        """What each agent sees at these keys, and what it may do there."""
        game, states = self.game, self.game.states(keys)
        observations, masks = game.observe(states), game.masks(states)
        return KeyedView(
            {agent: observations[:, i] for i, agent in enumerate(game.agents)},
            {}
            if masks is None
            else {
                agent: masks[:, i, :n]
                for i, (agent, n) in enumerate(zip(game.agents, game.actions, strict=True))
            },
        )
