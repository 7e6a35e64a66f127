"""`AddCost`: puts a cost beside the reward of each agent, where constraints, shields and logs look for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.base import ParallelWrapper, env_title


class StepResult(NamedTuple):
    """What one ``step`` returned, five mappings by agent, and the env that returned it.

    Read a hidden state through ``env.unwrapped``; treat everything in here as read-only.
    """

    observations: Mapping[AgentID, Any]
    rewards: Mapping[AgentID, float]
    terminations: Mapping[AgentID, bool]
    truncations: Mapping[AgentID, bool]
    infos: Mapping[AgentID, Mapping[str, Any]]
    env: Any


def cost_is_missing(env_name: str, agent: AgentID, *, needed_by: str) -> ConfigError:
    """The refusal of what needs costs in an env that gives an agent none."""
    return ConfigError(
        f"{env_name} gives agent {agent!r} no cost, which the {needed_by} needs: put it into "
        "infos[agent]['cost'], or add it with AddCost (--cost package.module:function)"
    )


CostFunction = Callable[[StepResult], Mapping[AgentID, float]]
"""``cost(step)`` gives every agent of this step a cost, finite and at least 0.

All agents at once, since most costs are between agents: collisions are one distance matrix, not one per agent.
"""


class AddCost(ParallelWrapper):
    """Write ``infos[agent]["cost"]`` after each step; the infos of a reset carry none.

    Args:
        env: any parallel env.
        cost: a `CostFunction`, for example
            ``lambda step: {agent: float(dead) for agent, dead in step.terminations.items()}``.
        replace: overwrite a cost that the env reports itself; by default that is an error.

    Agents that the function names beyond those of this step are ignored. The env's own info dicts are not changed.

    Raises:
        EnvError: a cost is missing, negative, NaN, infinite or no number.
        ConfigError: the env reports a cost itself and ``replace`` is False.
    """

    def __init__(self, env: Any, cost: CostFunction, *, replace: bool = False) -> None:
        super().__init__(env)
        if not callable(cost):
            raise ConfigError(f"cost must be a function of a StepResult, got {cost!r}.")
        self._cost = cost
        self._replace = replace
        self._steps = 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict[AgentID, Any]) -> Any:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        self._steps += 1
        costs = self._cost(StepResult(observations, rewards, terminations, truncations, infos, self.env))
        infos = dict(infos)
        for agent in terminations:
            info = infos.get(agent, {})
            if "cost" in info and not self._replace:
                raise ConfigError(
                    f"{env_title(self.env)} reports infos[{agent!r}]['cost'] itself: leave AddCost out, "
                    "or pass replace=True."
                )
            infos[agent] = {**info, "cost": self._checked(agent, costs)}
        return observations, rewards, terminations, truncations, infos

    def _checked(self, agent: AgentID, costs: Mapping[AgentID, float]) -> float:
        try:
            value = float(costs[agent])
        except (KeyError, TypeError, ValueError) as error:
            got = repr(costs[agent]) if agent in costs else "none"
            raise self._refused(agent, got) from error
        if not 0.0 <= value < math.inf:
            raise self._refused(agent, repr(value))
        return value

    def _refused(self, agent: AgentID, got: str) -> EnvError:
        return EnvError(
            f"cost of {agent!r} in {env_title(self.env)} at step {self._steps} must be finite and at least 0, "
            f"got {got}; the cost function has to name every agent of the step."
        )
