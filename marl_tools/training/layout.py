"""Arrays of a team, whose agents have one order, from and to those of its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.spaces import AgentGroup
from marl_tools.core.types import AgentID, VectorStep
from marl_tools.training.contracts import Probabilities


class TeamLayout:
    """Where the agents of each group stand in the order of ``agents``."""

    def __init__(self, groups: Sequence[AgentGroup], agents: Sequence[AgentID]) -> None:
        self._agents, self._groups = tuple(agents), tuple(groups)
        self._columns = {
            group.name: _columns([self._agents.index(agent) for agent in group.agents]) for group in groups
        }
        in_order = [agent for group in groups for agent in group.agents] == list(agents)
        self._only = groups[0].name if len(groups) == 1 and in_order else None
        self._group = np.zeros(len(self._agents), np.intp)
        self._place = np.zeros(len(self._agents), np.intp)
        for number, group in enumerate(groups):
            columns = self._columns[group.name]
            self._group[columns], self._place[columns] = number, np.arange(len(group.agents))
        self._choices = max(group.spaces.action_dim for group in groups)

    def team(self, per_group: Mapping[str, NDArray[Any]], dtype: Any) -> NDArray[Any]:
        """(E, A) in team order from arrays (E, ...) per group; always a new array."""
        if self._only is not None:
            return np.array(per_group[self._only], dtype)
        first = next(iter(per_group.values()))
        team = np.zeros((len(first), len(self._agents)), dtype)
        for name, columns in self._columns.items():
            team[:, columns] = per_group[name]
        return team

    def groups(self, team: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Arrays per group from one (..., A) in team order."""
        return {name: team[..., columns] for name, columns in self._columns.items()}

    def legal(self, step: VectorStep) -> list[NDArray[np.bool_] | None] | None:
        """What the env itself allows each agent, (E, n); None for everything."""
        legal: dict[AgentID, NDArray[np.bool_]] = {}
        for group in self._groups:
            mask = step.groups[group.name].action_mask
            if mask is not None:
                legal |= {agent: mask[:, place] for place, agent in enumerate(group.agents)}
        return [legal.get(agent) for agent in self._agents] if legal else None

    def likely(
        self, probabilities: Probabilities, copies: NDArray[np.intp], agents: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """The policies' own probabilities (m, n) in some copies (m,) of the agents at these places in the team."""
        laws = np.zeros((len(copies), self._choices))
        for number, group in enumerate(self._groups):
            rows = np.flatnonzero(self._group[agents] == number)
            if len(rows):
                law = probabilities(group.name, copies[rows], self._place[agents[rows]])
                laws[rows, : law.shape[1]] = law
        return laws


def _columns(places: list[int]) -> list[int] | slice:
    """A slice where they are the first ones, which makes no copies."""
    return slice(len(places)) if places == list(range(len(places))) else places
