"""What a shielded team learns of its env and of its own policies: both models, and what is still to be counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.transitions import Key, TransitionTable, joint_index
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.cost import cost_is_missing
from marl_tools.models.opponent import OpponentMode, OpponentModel
from marl_tools.models.world import WorldModel

Arrays = dict[str, NDArray[Any]]


class TeamModels:
    """World and opponent model of one team.

    Draws and proposals are kept as they come and counted many steps at a time, which is far cheaper; whoever asks for a
    model gets it with all of them counted. Only ids of keys are given at once.

    Args:
        actions: number of actions of each agent, in team order.
        delta: probability that a bound on the others' behaviour may be wrong.
        mode: see `OpponentModel`.
        env_name: kept with the models, so that those of another env are refused.
        support: which outcomes are possible, ``(keys, table)`` of all rows; see `WorldModel`.
    """

    def __init__(
        self,
        actions: Sequence[int],
        delta: float,
        *,
        mode: OpponentMode,
        env_name: str,
        support: tuple[Sequence[Key], TransitionTable] | None,
    ) -> None:
        self.actions, self.env_name = tuple(actions), env_name
        self._world = WorldModel(self.actions, env_name=env_name, support=support)
        self._opponents = OpponentModel(self.actions, delta, mode=mode, env_name=env_name)
        self._declared = _topology(self._world.state()) if self._world.closed else None
        self._draws: list[tuple[NDArray[Any], ...]] = []
        self._proposals: list[tuple[NDArray[Any], ...]] = []

    @property
    def world(self) -> WorldModel:
        """The world model, all draws counted.

        Raises:
            ConfigError: the env led to what its declared support excludes.
        """
        if self._draws:
            columns = [np.concatenate(column) for column in zip(*self._draws, strict=True)]
            self._draws.clear()
            self._world.add_ids(*columns)
        return self._world

    @property
    def opponents(self) -> OpponentModel:
        """The opponent model, all proposals counted."""
        if self._proposals:
            keys, known, proposed = (np.concatenate(column) for column in zip(*self._proposals, strict=True))
            self._proposals.clear()
            for agent in range(len(self.actions)):
                rows = known[:, agent]
                self._opponents.add(keys[rows], agent, proposed[rows, agent])
        return self._opponents

    counts_floors = True
    premise = ""
    """What a bound rests on beyond what every bound of a shield does."""

    @property
    def guaranteed(self) -> bool:
        """Whether the bounds on the others' behaviour are more than a guess."""
        return self._opponents.guaranteed

    @property
    def num_keys(self) -> int:
        """How many keys are known."""
        return len(self._world.keys)

    @property
    def num_rows(self) -> int:
        """How many rows are visited or declared."""
        return self.world.num_rows

    def find_keys(self, keys: Sequence[Key]) -> NDArray[np.int32]:
        """Ids (N,) of keys for a frozen shield, which learns of none: -1 where unknown."""
        return self._world.key_ids(keys)

    def draws(
        self, agent: int, key_ids: NDArray[np.integer], choices: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Draws so far (N,) of joint choices (N, A), those on which the bound of ``agent`` rests."""
        return self.world.draws(key_ids, joint_index(self.actions, choices))

    def key_ids(self, keys: Sequence[Key]) -> NDArray[np.int32]:
        """Ids (N,) of keys; those that were never met get the next ones."""
        return self._world.key_ids(keys, create=True)

    def add_draws(
        self,
        key_ids: NDArray[np.integer],
        choices: NDArray[np.integer],
        next_key_ids: NDArray[np.integer],
        violated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> None:
        """Take in N draws; see `WorldModel.add_ids`. The arrays must not change afterwards."""
        self._draws.append((key_ids, choices, next_key_ids, violated, ended))

    def add_proposals(
        self, key_ids: NDArray[np.integer], active: NDArray[np.bool_], proposed: NDArray[np.integer]
    ) -> None:
        """Take in what the agents that act (N, A) proposed at keys (N,) that have ids."""
        self._proposals.append((key_ids, active, proposed))

    def state(self) -> dict[str, Arrays]:
        """Both models' states, by name."""
        return {"world": self.world.state(), "opponents": self.opponents.state()}

    def load(self, state: Mapping[str, Arrays]) -> None:
        """Go on from `state`; what was not counted yet is forgotten.

        Raises:
            ConfigError: it is the state of another env, or of the same one with other settings.
        """
        world = WorldModel.from_state(state["world"], self.actions, env_name=self.env_name)
        self._check_topology(state["world"])
        ours = self._opponents
        self._opponents = OpponentModel.from_state(
            state["opponents"], self.actions, ours.delta, mode=ours.mode, env_name=self.env_name
        )
        # New lists: a copy of these models, made before, still has to count what is in the old ones.
        self._world, self._draws, self._proposals = world, [], []

    def _check_topology(self, state: Arrays) -> None:
        """Where the env declares its rows, a model that was saved with it has exactly those."""
        declared = {} if self._declared is None else self._declared
        same = bool(state["closed"]) == bool(declared)
        for name, array in declared.items():
            # A key that was met beyond the declared ones comes after them.
            theirs = state[name][: len(array)] if name.startswith("key") else state[name]
            same = same and np.array_equal(array, theirs)
        if not same:
            raise ConfigError(
                f"the saved world model has other keys, rows or outcomes than {self.env_name} as it is made here: use "
                "the settings that it was saved with (env_kwargs, shield_support), or start a new model"
            )


def _topology(state: Arrays) -> Arrays:
    """What a declaration fixes in a world model's state: keys, rows and possible outcomes."""
    names = ("row_key", "row_joint", "edge_row", "edge_succ", "edge_violated", "edge_ended")
    return {name: state[name] for name in ("closed", "key_lengths", "key_bytes", *names)}


def team_actions(groups: Sequence[AgentGroup], agents: Sequence[AgentID]) -> tuple[int, ...]:
    """How many actions each agent has, in team order.

    Raises:
        ConfigError: an agent's action space is not Discrete, or the groups are of another team.
    """
    spaces = {agent: group.spaces.action_space for group in groups for agent in group.agents}
    if spaces.keys() != set(agents):
        raise ConfigError(
            f"the team is {', '.join(spaces)}, but the env has the agents {', '.join(agents)}: use the settings that the "
            "team was trained with (env, env_kwargs, n_agents)"
        )
    for agent in agents:
        if not isinstance(spaces[agent], Discrete):
            raise ConfigError(
                f"agent {agent!r} has the action space {spaces[agent]}: the tabular shield needs Discrete"
            )
    return tuple(int(spaces[agent].n) for agent in agents)  # pyright: ignore[reportAttributeAccessIssue]


def require_keys(env_name: str, keys: Sequence[Key] | None) -> Sequence[Key]:
    """``keys``, if the env has them.

    Raises:
        ConfigError: it has none.
    """
    if keys is None:
        raise ConfigError(
            f"{env_name} has no state_key(): a shield needs the exact Markov state of the joint system. Add the "
            "method to your env, or use one of the tasks that have it (crossing, corridor, drones, gridmaps, stag_hunt)."
        )
    return keys


def require_costs(
    env_name: str, agents: Sequence[AgentID], costs: NDArray[np.float64], active: NDArray[np.bool_]
) -> None:
    """Check that those of the agents (E, A) that acted have a cost.

    Raises:
        ConfigError: one of them got none (NaN).
    """
    missing = active & np.isnan(costs)
    if missing.any():
        agent = agents[int(np.argwhere(missing)[0, 1])]
        raise cost_is_missing(env_name, agent, needed_by="shield")
