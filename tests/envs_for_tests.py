"""Small parallel envs with known faults and lifetimes, and the real ones by name."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Team(ParallelEnv):
    """Agents that live from ``births`` to ``deaths`` (steps; terminated), or to ``max_cycles`` (truncated).

    Observation (2,): the step and a number drawn from the seeded generator; reward: the step. Discrete actions,
    one required from each live agent. ``faults``: ``"keep_agents"`` leaves ended agents in `agents` at the end
    (Atari); ``"one_list"`` hands out one list of agents and empties it in place (aec_to_parallel); ``"reuse"``
    hands out the same arrays and info dicts at every step; ``"terminate"`` reports its cap as a termination.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "team_v0", "is_parallelizable": True}

    def __init__(
        self,
        n: int = 3,
        *,
        max_cycles: int | None = None,
        deaths: Mapping[str, int] | None = None,
        births: Mapping[str, int] | None = None,
        faults: tuple[str, ...] = (),
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(n)]
        self._cap = max_cycles
        self.deaths = dict(deaths or {})
        self.births = dict(births or {})
        self.faults = faults
        self.render_mode = render_mode
        self.received: list[dict[str, Any]] = []
        self._buffers = {agent: np.zeros(2, np.float32) for agent in self.possible_agents}
        self._infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.possible_agents}
        self._spaces = {agent: Box(-np.inf, np.inf, (2,), np.float32) for agent in self.possible_agents}
        self._action_spaces = {agent: Discrete(3) for agent in self.possible_agents}
        self._rng = np.random.default_rng()
        self.t = 0

    def observation_space(self, agent: str) -> Box:
        return self._spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.t = 0
        self.received = []
        self.agents = [agent for agent in self.possible_agents if self.births.get(agent, 0) == 0]
        return self._observe(self.agents), self._info(self.agents)

    def step(self, actions: Mapping[str, int]) -> Any:
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise KeyError(missing[0])
        self.received.append(dict(actions))
        self.t += 1
        stepped = [agent for agent in self.possible_agents if agent in self.agents]
        at_cap = self._cap is not None and self.t >= self._cap
        terminations = {
            agent: self.deaths.get(agent) == self.t or (at_cap and "terminate" in self.faults)
            for agent in stepped
        }
        truncations = {agent: at_cap and not terminations[agent] for agent in stepped}
        live = [agent for agent in stepped if not (terminations[agent] or truncations[agent])]
        born = [agent for agent, t in self.births.items() if t == self.t and not at_cap]
        if "one_list" in self.faults:
            self.agents[:] = live + born
        elif not (at_cap and "keep_agents" in self.faults):
            self.agents = live + born
        rewards = dict.fromkeys(stepped, float(self.t))
        everyone = stepped + born
        for agent in born:
            terminations[agent] = truncations[agent] = False
            rewards[agent] = 0.0
        return self._observe(everyone), rewards, terminations, truncations, self._info(everyone)

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        fresh = {agent: np.array([self.t, self._rng.random()], np.float32) for agent in agents}
        if "reuse" not in self.faults:
            return fresh
        for agent, observation in fresh.items():
            self._buffers[agent][:] = observation
        return {agent: self._buffers[agent] for agent in agents}

    def _info(self, agents: list[str]) -> dict[str, dict[str, Any]]:
        return {agent: self._infos[agent] if "reuse" in self.faults else {} for agent in agents}


REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "simple_spread": ("mpe2:simple_spread_v3", {}),
    "simple_tag": ("mpe2:simple_tag_v3", {}),
    "simple_speaker_listener": ("mpe2:simple_speaker_listener_v4", {}),
    "pistonball": ("butterfly/pistonball-v6", {"n_pistons": 5}),
    "knights_archers_zombies": ("butterfly/knights_archers_zombies-v11", {"spawn_delay": 5}),
    "cooperative_pong": ("butterfly/cooperative_pong-v6", {"render_mode": "rgb_array"}),
    "pursuit": ("sisl/pursuit-v5", {}),
    "multiwalker": ("sisl/multiwalker-v9", {}),
    "rps": ("classic/rps-v2", {}),
}


def real_env(name: str, **kwargs: Any) -> ParallelEnv:
    """A real env, small; ``kwargs`` on top of the defaults in `REAL`."""
    where, defaults = REAL[name]
    return _maker(where)(**{**defaults, **kwargs})


@cache
def _maker(where: str) -> Callable[..., ParallelEnv]:
    if where.startswith("mpe2:"):
        return importlib.import_module(f"mpe2.{where.removeprefix('mpe2:')}").parallel_env
    import pettingzoo

    return lambda **kwargs: pettingzoo.make("parallel", where, **kwargs)


def check_api(env: ParallelEnv, cycles: int) -> None:
    """PettingZoo's own check of a parallel env, in which every warning counts as a failure."""
    with warnings.catch_warnings():
        # Importing it loads environments in a way that PettingZoo itself calls deprecated.
        warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
        from pettingzoo.test import parallel_api_test
    parallel_api_test(env, num_cycles=cycles)


def play(
    env: Any, *, seed: int | None = None, actions: int | None = None, max_steps: int = 10_000
) -> list[tuple]:
    """One whole episode: what ``reset`` and each ``step`` returned. Actions are random from ``actions``, or first ones."""
    observations, infos = env.reset(seed=seed)
    trace: list[tuple] = [(observations, infos)]
    if actions is not None:
        for i, agent in enumerate(env.possible_agents):
            env.action_space(agent).seed(actions + i)
    while env.agents and len(trace) <= max_steps:
        chosen = {
            agent: env.action_space(agent).sample() if actions is not None else 0 for agent in env.agents
        }
        trace.append(env.step(chosen))
    return trace


def same(left: Any, right: Any) -> bool:
    """Whether two traces are equal, arrays to the bit."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.array_equal(left, right)
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)
