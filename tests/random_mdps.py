"""Small teams whose joint law is known, and tables that hold it loosely: ground truth for risk and shields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from gymnasium.spaces import Discrete
from scipy.stats import nbinom

from marl_tools.core.transitions import Outcome, TransitionTable


class RandomTeam:
    """A team with a random law: agents end alone or together, violate alone or together, and some go on after it."""

    def __init__(
        self,
        seed: int,
        *,
        states: int = 5,
        actions: Sequence[int] = (2, 2),
        successors: int = 2,
        hazards: Sequence[float] = (0.0, 0.0, 0.01, 0.05, 0.2),
        ends: float = 0.1,
    ) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(len(actions))]
        self.seed, self.states, self.actions = seed, states, tuple(actions)
        self.successors, self.hazards, self.ends = successors, hazards, ends
        self.violators_end = bool(np.random.default_rng([seed, 1]).random() < 0.5)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(self.actions[self.possible_agents.index(agent)])

    def state_key(self) -> bytes:
        return self._key(0, (False,) * len(self.actions))

    def initial_law(self) -> list[tuple[float, bytes]]:
        live = (False,) * len(self.actions)
        return [(0.5, self._key(0, live)), (0.5, self._key(1 % self.states, live))]

    def ended_agents(self, key: bytes) -> tuple[bool, ...]:
        return tuple(bool(value) for value in key[1:])

    def joint_law(self, key: bytes, choices: Sequence[int]) -> list[Outcome]:
        rng = np.random.default_rng([self.seed, 2, *key, *choices])
        gone = np.array(self.ended_agents(key))
        hazard = rng.choice(self.hazards)
        parts = [(weight * (1 - hazard), False) for weight in rng.dirichlet(np.ones(self.successors))]
        if hazard:
            parts.append((hazard, True))
        merged: dict[tuple, float] = {}
        for probability, harmful in parts:
            violated = ~gone & harmful & (rng.random(len(gone)) < 0.7)
            out = gone | (rng.random(len(gone)) < self.ends) | (violated & self.violators_end)
            outcome = (
                self._key(rng.integers(self.states), out),
                tuple(violated.tolist()),
                tuple(out.tolist()),
            )
            merged[outcome] = merged.get(outcome, 0.0) + probability
        return [Outcome(probability, *outcome) for outcome, probability in merged.items()]

    @staticmethod
    def _key(state: int, ended: Sequence[bool]) -> bytes:
        return bytes([int(state), *(int(value) for value in ended)])


class SlipperyCorridor:
    """One agent walks ``length`` cells to the goal. Each step it slips with probability ``slip``, a violation, else it
    moves with probability ``push`` if it walks (action 1) and stays if it waits (action 0)."""

    possible_agents: list[str]

    def __init__(self, length: int, slip: float, push: float) -> None:
        self.possible_agents = ["walker"]
        self.length, self.slip, self.push = length, slip, push

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)

    def state_key(self) -> bytes:
        return bytes([self.length])

    def initial_law(self) -> list[tuple[float, bytes]]:
        return [(1.0, self.state_key())]

    def ended_agents(self, key: bytes) -> tuple[bool, ...]:
        return (key[0] in (0, 255),)

    def joint_law(self, key: bytes, choices: Sequence[int]) -> list[Outcome]:
        go = self.push if choices[0] == 1 else 0.0
        stays, moves = (1 - self.slip) * (1 - go), (1 - self.slip) * go
        arrives = (key[0] == 1,)
        outcomes = [
            Outcome(self.slip, bytes([255]), (True,), (True,)),
            Outcome(stays, key, (False,), (False,)),
            Outcome(moves, bytes([key[0] - 1]), (False,), arrives),
        ]
        return [outcome for outcome in outcomes if outcome.probability]

    def risk(self, cells: int, k: int) -> float:
        """Least probability of a slip within k steps, ``cells`` from the goal: walking all the way, in closed form."""
        arrival = np.arange(cells, k + 1)
        arrives = nbinom.pmf(arrival - cells, cells, self.push)
        late = nbinom.sf(k - cells, cells, self.push) if k >= cells else 1.0
        return float(1 - arrives @ (1 - self.slip) ** arrival - late * (1 - self.slip) ** k)


def loosen(
    table: TransitionTable, rng: np.random.Generator, *, width: float = 0.3, forget: float = 0.2
) -> TransitionTable:
    """A table whose sets hold the given exact law: wider bounds, forgotten successors, forgotten rows."""
    law = table.lo.copy()
    succ = table.succ.copy()
    unseen = np.zeros(len(law))
    last = (succ >= 0).sum(1) - 1
    lost = np.flatnonzero((rng.random(len(law)) < forget) & (last > 0))
    unseen[lost] = law[lost, last[lost]]
    law[lost, last[lost]], succ[lost, last[lost]] = 0.0, -1
    mean, mean_unseen = law.copy(), unseen.copy()
    real = succ >= 0
    lo = np.where(real, law * (1 - width * rng.random(law.shape)), 0.0)
    hi = np.where(real, law + (1 - law) * width * rng.random(law.shape), 0.0)
    unseen += (1 - unseen) * width * rng.random(len(unseen)) * (rng.random(len(unseen)) < 0.5)
    loose = replace(table, succ=succ, lo=lo, hi=hi, unseen=unseen, mean=mean, mean_unseen=mean_unseen)
    return take_rows(loose, np.flatnonzero(rng.random(len(law)) >= forget / 2))


def take_rows(table: TransitionTable, rows: np.ndarray) -> TransitionTable:
    """The same keys with some of the rows."""
    names = ("row_key", "row_joint", "succ", "violated", "ended", "lo", "hi", "unseen", "mean", "mean_unseen")
    return replace(table, **{name: getattr(table, name)[rows] for name in names})


def random_policies(
    num_keys: int, actions: Sequence[int], rng: np.random.Generator, *, concentration: float = 1.0
) -> list[np.ndarray]:
    """Per agent a distribution (K, n_i) at each key."""
    return [rng.dirichlet(np.full(n, concentration), num_keys) for n in actions]
