"""Envs whose values are known in closed form, games with a known best play, and envs with one fault each.

Every class is an importable `make_env`, so ``"tests.probe_envs:Probe"`` works in a factory and on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

from marl_tools.core.factory import EnvFactory
from marl_tools.vector import SerialVectorEnv
from tests.envs_for_tests import Team

PHASES = 12


class Probe(Team):
    """A `Team` of fixed length whose rewards, ends and observations are all given.

    ``rewards``: of each step, the same for all; their number is the length, at which the rest is truncated.
    ``deaths`` and ``cuts``: after which step an agent is terminated or truncated early. ``phases``: what an agent
    observes at each time, as a one-hot vector; the last one stays. Without it everyone always sees phase 0.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "probe_v0", "is_parallelizable": True}

    def __init__(
        self,
        n: int = 2,
        *,
        rewards: Sequence[float] = (0.05,) * 8,
        deaths: Mapping[str, int] | None = None,
        cuts: Mapping[str, int] | None = None,
        phases: Mapping[str, Sequence[int]] | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(n, max_cycles=len(rewards), deaths=deaths, render_mode=render_mode)
        self._rewards, self._cuts, self._phases = tuple(rewards), dict(cuts or {}), dict(phases or {})
        self._spaces = {agent: Box(0, 1, (PHASES,), np.float32) for agent in self.possible_agents}

    def step(self, actions: Mapping[str, Any]) -> Any:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        for agent in rewards:
            rewards[agent] = self._rewards[self.t - 1]
            if self._cuts.get(agent) == self.t:
                truncations[agent] = True
                self.agents = [other for other in self.agents if other != agent]
        return obs, rewards, terminations, truncations, infos

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {agent: one_hot(self._phase(agent)) for agent in agents}

    def _phase(self, agent: str) -> int:
        phases = self._phases.get(agent, (0,))
        return phases[min(self.t, len(phases) - 1)]


class MatchGame(Team):
    """Episodes of one step. Each agent sees a random context and earns 1 for playing it shifted by its own number.

    Both earn 0.5 more when both are right, so the best mean return is 1.5; random play earns about 0.44 a head.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "match_v0", "is_parallelizable": True}

    def __init__(self) -> None:
        super().__init__(2)
        self._spaces = {agent: Box(0, 1, (5,), np.float32) for agent in self.possible_agents}

    def step(self, actions: Mapping[str, int]) -> Any:
        right = {
            agent: actions[agent] == (self._contexts[agent] + i) % 3
            for i, agent in enumerate(self.possible_agents)
        }
        rewards = {agent: float(hit) + 0.5 * all(right.values()) for agent, hit in right.items()}
        self.agents = []
        done = dict.fromkeys(self.possible_agents, True)
        obs = self._observe(self.possible_agents)
        return obs, rewards, done, dict.fromkeys(done, False), {agent: {} for agent in done}

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        self._contexts = {agent: int(self._rng.integers(3)) for agent in agents}
        return {
            agent: np.concatenate([one_hot(self._contexts[agent], 3), one_hot(i, 2)])
            for i, agent in enumerate(agents)
        }


ACTION_SPACES: dict[str, Space] = {
    "discrete": Discrete(4, start=2),
    "box": Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
    "unbounded": Box(-np.inf, np.inf, (2,), np.float32),
    "multi_discrete": MultiDiscrete([2, 3]),
    "multi_binary": MultiBinary(3),
}


class Kinds(Team):
    """A `Team` with another kind of action space, which refuses an action that is not in it.

    ``mask``: None, "observation" (a Dict with ``action_mask``) or "info"; then only the choices ``step % n`` and
    the one after it are allowed, and any other is refused too.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "kinds_v0", "is_parallelizable": True}

    def __init__(self, kind: str = "discrete", *, mask: str | None = None, max_cycles: int = 5) -> None:
        super().__init__(2, max_cycles=max_cycles)
        self._mask = mask
        self._action_spaces = dict.fromkeys(self.possible_agents, ACTION_SPACES[kind])
        if mask == "observation":
            space = Dict(
                {"observation": self._spaces["agent_0"], "action_mask": Box(0, 1, (self._choices,), np.int8)}
            )
            self._spaces = dict.fromkeys(self.possible_agents, space)

    def step(self, actions: Mapping[str, Any]) -> Any:
        for agent, action in actions.items():
            space = self._action_spaces[agent]
            assert space.contains(action), f"{action!r} is not in {space}"
            if self._mask:
                assert self._allowed()[self._index(action)].all(), f"{action!r} is forbidden at step {self.t}"
        return super().step(actions)

    @property
    def _choices(self) -> int:
        space = self._action_spaces["agent_0"]
        return int(space.nvec.sum() if isinstance(space, MultiDiscrete) else space.n)

    def _index(self, action: Any) -> np.ndarray:
        """Where the chosen options are in the flat mask."""
        space = self._action_spaces["agent_0"]
        if isinstance(space, MultiDiscrete):
            return np.asarray(action) + np.concatenate([[0], np.cumsum(space.nvec)[:-1]])
        return np.asarray(int(action) - int(space.start))

    def _allowed(self) -> np.ndarray:
        if self._choices == 5:
            return np.array([self.t % 2 == 0, self.t % 2 == 1, True, False, True])
        allowed = np.zeros(self._choices, np.int8)
        allowed[[self.t % self._choices, (self.t + 1) % self._choices]] = 1
        return allowed.astype(bool)

    def _observe(self, agents: list[str]) -> dict[str, Any]:
        plain = super()._observe(agents)
        if self._mask != "observation":
            return plain
        mask = self._allowed().astype(np.int8)
        return {agent: {"observation": obs, "action_mask": mask} for agent, obs in plain.items()}

    def _info(self, agents: list[str]) -> dict[str, dict[str, Any]]:
        return {agent: {"action_mask": self._allowed()} if self._mask == "info" else {} for agent in agents}


class Broken(Team):
    """A `Team` that gives one wrong number: ``value`` as ``what`` of ``agent`` at the ``step``-th step of an episode.

    ``what``: "observation" (step 0 is the reset), "reward" or "final observation" (of an episode cut there).
    ``first_episode``: episodes before that one are sound. ``slow``: seconds that a step takes.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "broken_v0", "is_parallelizable": True}

    def __init__(
        self,
        *,
        what: str = "observation",
        agent: str = "agent_1",
        step: int = 3,
        value: float = float("nan"),
        first_episode: int = 0,
    ) -> None:
        super().__init__(2, max_cycles=step if what == "final observation" else 6)
        self._what, self._agent, self._step, self._value = what, agent, step, value
        self._episode, self._first_episode = -1, first_episode

    def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
        self._episode += 1
        return super().reset(seed, options)

    def step(self, actions: Mapping[str, int]) -> Any:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        if self._what == "reward" and self._now:
            rewards[self._agent] = self._value
        return obs, rewards, terminations, truncations, infos

    @property
    def _now(self) -> bool:
        return self.t == self._step and self._episode >= self._first_episode

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        fresh = super()._observe(agents)
        if self._what != "reward" and self._now and self._agent in fresh:
            fresh[self._agent][1] = self._value
        return fresh


def one_hot(index: int, size: int = PHASES) -> np.ndarray:
    return np.eye(size, dtype=np.float32)[index]


def vector(make_env: Any, num_envs: int = 2, **kwargs: Any) -> SerialVectorEnv:
    """Copies of an env, as the trainer gets them."""
    return SerialVectorEnv(EnvFactory(make_env=make_env, kwargs=kwargs), num_envs)
