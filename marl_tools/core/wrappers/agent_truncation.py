"""`AgentTruncation`: ends single agents early while the others go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.base import ParallelWrapper, step_of_nobody

Predicate = Callable[[AgentID, Any, Mapping[str, Any]], bool]
"""``when(agent, observation, info)``: whether this agent's episode ends with the step just made."""


class AgentTruncation(ParallelWrapper):
    """Truncate single agents after a number of steps, or when a predicate says so.

    Most envs insist on an action for every agent that they consider live, so a retired agent goes on acting
    underneath with ``stand_in``. Nothing that it earns after its own end is passed on, and an action still given
    for it is ignored. When the last agent has gone, `agents` is empty and stepping on returns five empty dicts.

    Args:
        env: any parallel env.
        steps: one limit for all agents, or a mapping from agent to limit; agents left out have none. Counted
            from the agent's own first step, so a late joiner gets its full time.
        when: ``when(agent, observation, info) -> bool``, asked after each step for each agent that is still live.
        stand_in: an action for every retired agent, a mapping from agent to action, or a callable
            ``stand_in(agent, action_space) -> action`` asked at each step. Required: no action is neutral everywhere.

    Raises:
        ConfigError: neither ``steps`` nor ``when``; a limit that is not a whole number above 0; a mapping with an
            unknown agent; at its first use, a stand-in that is missing or not in the agent's action space.
    """

    def __init__(
        self,
        env: Any,
        *,
        steps: int | Mapping[AgentID, int] | None = None,
        when: Predicate | None = None,
        stand_in: Any,
    ) -> None:
        super().__init__(env)
        if steps is None and when is None:
            raise ConfigError("AgentTruncation would end nobody: give steps, when, or both.")
        self._limit: float = math.inf
        self._limits: dict[AgentID, int] = {}
        if isinstance(steps, Mapping):
            self._check_agents("steps", steps)
            self._limits = {agent: at_least(1)(f"steps[{agent!r}]", n) for agent, n in steps.items()}
        elif steps is not None:
            self._limit = at_least(1)("steps", steps)
        if isinstance(stand_in, Mapping):
            self._check_agents("stand_in", stand_in)
        self._when = when
        self._stand_in = stand_in
        self._constant: dict[AgentID, Any] = {}
        self._forget([])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = self.env.reset(seed=seed, options=options)
        self.agents = list(self.env.agents)
        self._forget(self.agents)
        return result

    def step(self, actions: dict[AgentID, Any]) -> Any:
        if self._over:
            return step_of_nobody()
        env, retired, ages, limits, limit = self.env, self._retired, self._ages, self._limits, self._limit
        if retired:
            actions = {agent: action for agent, action in actions.items() if agent not in retired}
            actions.update({agent: self._action_of(agent) for agent in env.agents if agent in retired})
        result: Any = env.step(actions)
        if retired:
            result = tuple(
                {agent: value for agent, value in part.items() if agent not in retired} for part in result
            )
        observations, rewards, terminations, truncations, infos = result
        agents: list[AgentID] = []
        leaving: list[AgentID] = []
        for agent in env.agents:
            if agent in retired or terminations.get(agent, False) or truncations.get(agent, False):
                continue
            # Who was not there before this step joins now: its time starts with its own first step.
            age = ages[agent] = ages.get(agent, -1) + 1
            if age >= limits.get(agent, limit) or (
                self._when and self._when(agent, observations[agent], infos.get(agent, {}))
            ):
                leaving.append(agent)
            else:
                agents.append(agent)
        if leaving:
            retired.update(leaving)
            truncations = {**truncations, **dict.fromkeys(leaving, True)}
        self.agents = agents
        self._over = bool(retired) and not agents
        return observations, rewards, terminations, truncations, infos

    def _forget(self, agents: list[AgentID]) -> None:
        self._retired: set[AgentID] = set()
        self._ages = dict.fromkeys(agents, 0)
        self._over = False

    def _check_agents(self, name: str, mapping: Mapping[AgentID, Any]) -> None:
        known = getattr(self.env, "possible_agents", None) or mapping
        for agent in mapping:
            if agent not in known:
                hint = did_you_mean(agent, known)
                raise ConfigError(f"{name} names {agent!r}, which is no agent of {self.env}.{hint}")

    def _action_of(self, agent: AgentID) -> Any:
        """The checked stand-in of a retired agent; a constant is checked once, a callable's answer every time."""
        if agent in self._constant:
            return self._constant[agent]
        space = self.env.action_space(agent)
        if callable(self._stand_in):
            return _checked(self._stand_in(agent, space), agent, space)
        if isinstance(self._stand_in, Mapping):
            if agent not in self._stand_in:
                raise ConfigError(
                    f"stand_in has no action for {agent!r}, which was retired; add one from {space}."
                )
            action = self._stand_in[agent]
        else:
            action = self._stand_in
        self._constant[agent] = _checked(action, agent, space)
        return action


def _checked(action: Any, agent: AgentID, space: Any) -> Any:
    if not space.contains(action):
        raise ConfigError(
            f"stand_in {action!r} of {agent!r} is not in its action space; use an element of {space}."
        )
    return action
