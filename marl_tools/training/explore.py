"""Exploration on top of a policy: schedules, noise that fits an action space, and a team that explores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.actions import (
    ActionCodec,
    BoxCodec,
    CompositeCodec,
    DiscreteCodec,
    MultiDiscreteCodec,
)
from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.core.spaces import AgentGroup, AgentSpaces
from marl_tools.core.types import AgentID
from marl_tools.training.evaluate import Policy
from marl_tools.training.ops import ScheduleKind, schedule


@dataclass(frozen=True)
class Schedule:
    """A number that changes over ``steps`` steps from ``start`` to ``end``, up or down, and then stays.

    >>> epsilon = Schedule("linear", 1.0, 0.5, steps=10, delay=100)
    >>> epsilon(0), epsilon(105), epsilon(110), epsilon(10**9)
    (1.0, 0.75, 0.5, 0.5)

    Args:
        kind: "constant" stays at ``start``; "linear", "cosine" and "exponential" reach ``end`` exactly.
        start: the value at step 0.
        end: the value after all steps; None for a constant one.
        steps: how many the change takes.
        delay: steps before it begins.

    Raises:
        ConfigError: an unknown kind, a number that is not finite, a missing end, or fewer than one step.
    """

    kind: ScheduleKind
    start: float
    end: float | None = None
    steps: int = 1
    delay: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(ScheduleKind):
            raise ConfigError(
                f"kind={self.kind!r}: no such schedule.{did_you_mean(str(self.kind), get_args(ScheduleKind))}"
            )
        if (self.kind == "constant") != (self.end is None):
            raise ConfigError(
                f"end={self.end}: a constant schedule has none, and any other needs one; this one is {self.kind!r}"
            )
        if not all(math.isfinite(value) for value in (self.start, self.end or 0.0)):
            raise ConfigError(f"start={self.start}, end={self.end}: give finite numbers")
        if self.steps < 1 or self.delay < 0:
            raise ConfigError(f"steps={self.steps}, delay={self.delay}: give at least 1 step and 0 of delay")

    def __call__(self, step: float) -> float:
        """The value at any step; before the first it is ``start``, after the last ``end``."""
        end = self.start if self.end is None else self.end
        return schedule(self.kind, self.start, end, (step - self.delay) / self.steps)


class Explorer:
    """Noise on one agent's actions, of the kind that fits its action space.

    ``amount`` is the chance that a choice or a bit is replaced by a uniform one (epsilon-greedy; each one of several by
    itself), and for numbers the standard deviation of a Gaussian that is added, in units in which [-1, 1] spans the
    bounds; the result is cut off at the bounds. Parts of a Dict or Tuple are disturbed each in its own way.
    """

    def __init__(self, spaces: AgentSpaces, *, seed: int) -> None:
        self.spaces = spaces
        self.rng = np.random.default_rng(seed)

    def __call__(
        self, actions: NDArray[Any], amount: float, mask: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Actions (n, `action_shape`) on the policy's side, disturbed; the given array is left as it is.

        ``mask`` (n, choices) forbids options where it is False; choices keep to it.

        Raises:
            ConfigError: a negative amount, or for choices one above 1.
        """
        if not amount >= 0 or (self.spaces.is_discrete and amount > 1):
            raise ConfigError(f"amount={amount}: give a chance between 0 and 1, or a deviation of 0 or more")
        return self._disturb(self.spaces.codec, actions, amount, mask)

    def _disturb(
        self, codec: ActionCodec, actions: NDArray[Any], amount: float, mask: NDArray[np.bool_] | None
    ) -> NDArray[Any]:
        match codec:
            case CompositeCodec():
                parts = zip(codec.parts, codec.split(actions), strict=True)
                noisy = [
                    self._disturb(part, own, min(amount, 1.0) if part.discrete else amount, None)
                    for part, own in parts
                ]
                return np.concatenate([part.reshape(len(actions), -1) for part in noisy], 1)
            case BoxCodec():
                low, high = codec.limits
                noise = self.rng.normal(0.0, 1.0, actions.shape) * amount
                return (actions + noise).clip(low, high).astype(actions.dtype)
            case DiscreteCodec() | MultiDiscreteCodec():
                sizes = codec.sizes
            case _:
                sizes = (2,) * codec.inputs
        return self._replace(actions, sizes, amount, mask)

    def _replace(
        self,
        actions: NDArray[Any],
        sizes: tuple[int, ...],
        epsilon: float,
        mask: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        """Each choice by a uniform one out of those allowed, with chance epsilon."""
        flat = actions.reshape(len(actions), len(sizes))
        scores = self.rng.random((len(actions), sum(sizes)))
        if mask is not None:
            scores = np.where(mask, scores, -1.0)
        # The greatest of uniform scores is a uniform choice.
        parts = np.split(scores, np.cumsum(sizes)[:-1], axis=1)
        drawn = np.stack([part.argmax(1) for part in parts], 1)
        replaced = self.rng.random(flat.shape) < epsilon
        return np.where(replaced, drawn, flat).astype(actions.dtype).reshape(actions.shape)


class ExploringPolicy:
    """A team that explores while it trains, around any policy; in evaluation episodes it plays that policy alone.

    It is a policy itself. `evaluate` tells it the split of each episode; in a loop of your own set ``split``.

    Args:
        policy: whose actions are disturbed.
        groups: the agents and their spaces.
        schedule: how much, by the number of joint steps explored so far.
        seed: of the noise, an independent stream an agent.
    """

    def __init__(
        self, policy: Policy, groups: tuple[AgentGroup, ...], schedule: Schedule, *, seed: int
    ) -> None:
        self.policy, self.schedule = policy, schedule
        self.steps = 0
        self.split = "train"
        agents = [(agent, group.spaces) for group in groups for agent in group.agents]
        seeds = np.random.SeedSequence(seed).generate_state(len(agents), np.uint64)
        self._explorers = {
            agent: Explorer(spaces, seed=int(own)) for (agent, spaces), own in zip(agents, seeds, strict=True)
        }

    @property
    def explore_var(self) -> float:
        """How much the next joint action is disturbed; 0 in evaluation."""
        return self.schedule(self.steps) if self.split == "train" else 0.0

    def seed(self, seed: int) -> None:
        """Start the sampling of the policy afresh; the noise goes on, so that no two episodes get the same."""
        self.policy.seed(seed)

    def begin(self, env: Any) -> None:
        self.split = env.builder.split
        if begin := getattr(self.policy, "begin", None):
            begin(env)

    def observe(self, terminations: Mapping[AgentID, bool], infos: Mapping[AgentID, Any]) -> None:
        if observe := getattr(self.policy, "observe", None):
            observe(terminations, infos)

    def __call__(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> dict[AgentID, Any]:
        """An action, as the env takes it, for each agent that has an observation."""
        actions = self.policy(observations, infos)
        if self.split != "train":
            return actions
        amount = self.explore_var
        self.steps += 1
        return {
            agent: self._explore(agent, action, amount, observations[agent], (infos or {}).get(agent) or {})
            for agent, action in actions.items()
        }

    def state(self) -> dict[str, Any]:
        """Plain values from which `load` goes on exactly."""
        streams = {agent: explorer.rng.bit_generator.state for agent, explorer in self._explorers.items()}
        return {"steps": self.steps, "streams": streams}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            ConfigError: it is that of another team.
        """
        if state["streams"].keys() != self._explorers.keys():
            raise ConfigError(
                f"this exploration is of {', '.join(state['streams'])}, not of {', '.join(self._explorers)}"
            )
        self.steps = state["steps"]
        for agent, stream in state["streams"].items():
            self._explorers[agent].rng.bit_generator.state = stream

    def _explore(
        self, agent: AgentID, action: Any, amount: float, observation: Any, info: Mapping[str, Any]
    ) -> Any:
        explorer = self._explorers[agent]
        spaces = explorer.spaces
        mask = observation["action_mask"] if spaces.masked else info.get("action_mask")
        rows = None if mask is None else np.asarray(mask, bool)[None]
        return spaces.to_env(explorer(spaces.to_policy(action)[None], amount, rows))[0]
