"""`EnumeratedEnv`: the parts of a parallel env that follow from its `FieldGame`: spaces, keys and the joint law."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.transitions import Key, KeyedView, LawTable, Outcome
from marl_tools.core.types import AgentID
from marl_tools.envs.fields import FieldGame
from marl_tools.envs.tabulate import tabulate

GameT = TypeVar("GameT", bound=FieldGame)


FPS = 4


class EnumeratedEnv(ParallelEnv, Generic[GameT]):
    """A parallel env over a game that implements `core.transitions.Tabulated` and `core.transitions.Observed`.

    Subclasses reset, step and draw; they keep the state of the episode in ``_state`` (1, F).

    Raises:
        ConfigError: an unknown ``render_mode``, or no step allowed.
    """

    def __init__(self, game: GameT, max_cycles: int, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(
                f"render_mode={render_mode!r}: {game.name} draws 'rgb_array', or nothing (None)"
            )
        self.game = game
        self.metadata = {
            "name": game.name,
            "render_modes": ["rgb_array"],
            "render_fps": FPS,
            "is_parallelizable": True,
        }
        self.render_mode = render_mode
        self.max_cycles = at_least(1)("max_cycles", max_cycles)
        self.possible_agents = list(game.agents)
        self.agents: list[AgentID] = []
        self._observation_spaces = {
            agent: Box(0.0, 1.0, (game.obs_size,), np.float32) for agent in game.agents
        }
        self._action_spaces = {agent: Discrete(n) for agent, n in zip(game.agents, game.actions, strict=True)}
        self._overridden: frozenset[AgentID] = frozenset()
        self._state: NDArray[np.int64] | None = None

    def observation_space(self, agent: AgentID) -> Box:
        return self._observation_spaces[agent]

    def action_space(self, agent: AgentID) -> Discrete:
        return self._action_spaces[agent]

    def mark_overrides(self, agents: Collection[AgentID]) -> None:
        """Ring these agents in the pictures from now on, until the next call or reset: a shield changed their action."""
        self._overridden = frozenset(agents)

    def close(self) -> None:
        """Nothing to free; the env can be reset again."""

    def state_key(self) -> Key:
        """The joint Markov state as bytes. Stays that of the end once the episode is over."""
        return self.game.keys(self._require_state())[0]

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

    def _require_state(self) -> NDArray[np.int64]:
        if self._state is None:
            raise EnvError(f"{self.game.name} has no episode yet: call reset() first")
        return self._state

    def _require_pictures(self) -> None:
        """Before `render`."""
        if self.render_mode is None:
            raise ConfigError(f"{self.game.name} was made without pictures: pass render_mode='rgb_array'")
        self._require_state()

    def _checked(self, agent: AgentID, actions: Mapping[AgentID, int]) -> int:
        """The agent's action, or 0 where it has ended."""
        if agent not in self.agents:
            return 0
        if agent not in actions:
            raise EnvError(f"{self.game.name} got no action for live agent {agent!r}")
        action = int(actions[agent])
        if not 0 <= action < self._action_spaces[agent].n:
            raise EnvError(
                f"{self.game.name}: {agent!r} has no action {action}, only {self._action_spaces[agent]}"
            )
        return action
