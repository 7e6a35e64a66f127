"""Envs with a Markov key and costs, in all the ways that agents can come and go; and some whose key or cost is at fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from marl_tools.core.wrappers.base import ParallelWrapper
from tests.envs_for_tests import Team


class Rink(Team):
    """Three spots, drawn anew in each step; actions 0 to 2. On spot 1 action 1 slips with probability one half: a violation.

    Agents live as in `Team` and may be cut off early by ``cuts`` (steps; truncated). ``violators_end`` terminates who slips.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "rink_v0", "is_parallelizable": True}

    def __init__(
        self, n: int = 2, *, cuts: Mapping[str, int] | None = None, violators_end: bool = False, **team: Any
    ) -> None:
        super().__init__(n, **{"max_cycles": 6, **team})
        self.cuts, self.violators_end = dict(cuts or {}), violators_end
        self.max_cycles = self._cap
        self.spot = 0

    def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
        result = super().reset(seed, options)
        self.spot = int(self._rng.integers(3))
        return result

    def state_key(self) -> bytes:
        return bytes([self.spot, *(agent in self.agents for agent in self.possible_agents)])

    def step(self, actions: Mapping[str, int]) -> Any:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        for agent, action in actions.items():
            slips = self.spot == 1 and action == 1 and self._rng.random() < 0.5
            infos[agent] = {**infos.get(agent, {}), **self._cost(agent, slips)}
            terminations[agent] = terminations[agent] or (slips and self.violators_end)
            truncations[agent] = not terminations[agent] and (
                truncations[agent] or self.cuts.get(agent) == self.t
            )
        self.agents = [a for a in self.agents if not (terminations.get(a) or truncations.get(a))]
        self.spot = int(self._rng.integers(3))
        return obs, rewards, terminations, truncations, infos

    def _cost(self, agent: str, slips: bool) -> dict[str, float]:
        return {"cost": float(slips)}


class Costless(Rink):
    """A rink whose last agent gets no cost."""

    def _cost(self, agent: str, slips: bool) -> dict[str, float]:
        return {} if agent == self.possible_agents[-1] else {"cost": float(slips)}


class Moody(Team):
    """Key and observation say nothing; action 1 violates in every second step: the key is not Markov."""

    metadata: ClassVar[dict[str, Any]] = {"name": "moody_v0", "is_parallelizable": True}

    def __init__(self, n: int = 1) -> None:
        super().__init__(n, max_cycles=4)
        self.max_cycles = self._cap

    def state_key(self) -> bytes:
        return b"mood"

    def step(self, actions: Mapping[str, int]) -> Any:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        for agent, action in actions.items():
            infos[agent] = {"cost": float(action == 1 and self.t % 2 == 0)}
        return obs, rewards, terminations, truncations, infos


class Spy(ParallelWrapper):
    """Counts (key, choices, next key, violated, ended) of each step by itself, whatever anybody else counts."""

    draws: ClassVar[Counter] = Counter()

    def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
        self.gone: set[str] = set()
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict[str, Any]) -> Any:
        team = self.env.possible_agents
        key, acting = self.env.state_key(), list(self.env.agents)
        result = self.env.step(actions)
        _, _, terminations, _, infos = result
        self.gone |= {agent for agent in acting if terminations[agent]}
        violated = tuple(agent in acting and infos[agent]["cost"] > 0 for agent in team)
        ended = tuple(a in self.gone and not bad for a, bad in zip(team, violated, strict=True))
        choices = tuple(int(actions[a]) if a in acting else int(self.env.action_space(a).n) for a in team)
        Spy.draws[key, choices, self.env.state_key(), violated, ended] += 1
        return result


def spied_rink(**kwargs: Any) -> Spy:
    return Spy(Rink(**kwargs))


def spied_crossing(**kwargs: Any) -> Spy:
    from marl_tools.envs import crossing

    return Spy(crossing.parallel_env(**kwargs))


def learned_draws(world: Any) -> Counter:
    """What a world model counted, in the same form."""
    from marl_tools.core.transitions import joint_choices

    state, keys, counted = world.state(), world.keys, Counter()
    choices = joint_choices(world.actions, state["row_joint"])
    agents = range(len(world.actions))
    edges = zip(
        *(state[f"edge_{name}"].tolist() for name in ("row", "succ", "violated", "ended", "count")),
        strict=True,
    )
    for row, succ, violated, ended, count in edges:
        if count:
            bits = (tuple(bool(flags >> i & 1) for i in agents) for flags in (violated, ended))
            counted[keys[state["row_key"][row]], tuple(choices[row].tolist()), keys[succ], *bits] += count
    return counted


class Dice:
    """A policy that draws uniformly, or with probability ``often`` its favourite, action 1."""

    def __init__(self, actions: int, often: float | None = None) -> None:
        self.actions, self.often = actions, often
        self.rng = np.random.default_rng()

    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, observations: Mapping[str, Any], infos: Any = None) -> dict[str, int]:
        return {agent: self._draw() for agent in observations}

    def _draw(self) -> int:
        if self.often is not None:
            return int(self.rng.random() < self.often)
        return int(self.rng.integers(self.actions))


def added_cost(step: Any) -> dict[str, float]:
    """A cost that an env's own law knows nothing of."""
    return dict.fromkeys(step.env.possible_agents, 1.0)


class Endless(Rink):
    """A rink without a cap that anybody could find."""

    def __init__(self) -> None:
        super().__init__()
        self.max_cycles = self._cap = None
