"""Teams made of factors whose law is known, alone and as a whole: ground truth for bounds that add up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from gymnasium.spaces import Discrete

from marl_tools.core.transitions import Factor, Factors, Outcome

END = 255


class Tracks:
    """Agents on tracks of their own; whether a step hurts a pair hangs on where both are, what they do, and chance.

    An agent's next position and mark, 0 or 1, are Markov under its own action alone. Two agents that both get mark 1 in a
    step are hurt if their positions before were a ``hot`` pair, unless they played the backup, 0; that is never charged in
    half of the teams, and like any other action in the others.
    """

    def __init__(self, seed: int, *, agents: int = 3, actions: int = 2, members: Sequence[int] = ()) -> None:
        rng = np.random.default_rng(seed)
        shape = (agents, 2, actions)
        self.next = rng.choice([0, 1, 0, 1, 0, 1, END], (*shape, 2))  # (A, position, n, mark)
        self.marks = rng.choice([0.0, 0.1, 0.4], shape)  # probability of mark 1
        self.hot = rng.random((agents, agents, 2, 2)) < 0.6
        self.backup_hurts = bool(rng.random() < 0.5)
        self.members = tuple(members) or tuple(range(agents))
        self.seed, self.actions = seed, actions
        self.possible_agents = [f"agent_{i}" for i in self.members]

    def action_space(self, agent: str) -> Discrete:
        return Discrete(self.actions)

    # A key holds two bytes an agent: its position, and its last mark.
    def initial_law(self) -> list[tuple[float, bytes]]:
        return [(1.0, self.state_key())]

    def state_key(self) -> bytes:
        return bytes(2 * len(self.members))

    def ended_agents(self, key: bytes) -> tuple[bool, ...]:
        return tuple(position == END for position in key[::2])

    def _own_law(self, agent: int, position: int, action: int) -> list[tuple[float, bytes]]:
        if position == END:
            return [(1.0, bytes([END, 0]))]
        mark = self.marks[agent, position, action]
        after = self.next[agent, position, action]
        return [(p, bytes([after[i], i])) for i, p in ((0, 1.0 - mark), (1, mark)) if p > 0]

    def hurt(self, pair: Sequence[int], key: bytes, choices: Sequence[int], after: bytes) -> list[bool]:
        """Which of two agents violate, from their part of the keys."""
        struck = END not in (key[0], key[2]) and after[1] == after[3] == 1
        struck = struck and bool(self.hot[pair[0], pair[1], key[0], key[2]])
        return [struck and (action != 0 or self.backup_hurts) for action in choices]

    def joint_law(self, key: bytes, choices: Sequence[int]) -> list[Outcome]:
        laws = [self._own_law(agent, key[2 * i], choices[i]) for i, agent in enumerate(self.members)]
        joint = [(1.0, b"")]
        for law in laws:
            joint = [(p * q, before + own) for p, before in joint for q, own in law]
        return [
            Outcome(probability, after, self._violated(key, choices, after), self.ended_agents(after))
            for probability, after in joint
        ]

    def _violated(self, key: bytes, choices: Sequence[int], after: bytes) -> tuple[bool, ...]:
        violated = [False] * len(self.members)
        marked = [i for i in range(len(self.members)) if after[2 * i + 1]]
        for i, j in combinations(marked, 2):
            before, then = (part[2 * i : 2 * i + 2] + part[2 * j : 2 * j + 2] for part in (key, after))
            pair = (self.members[i], self.members[j])
            for at, harm in zip((i, j), self.hurt(pair, before, (choices[i], choices[j]), then), strict=True):
                violated[at] |= harm
        return tuple(violated)

    def factors(self) -> Factors:
        parts = []
        for i, j in combinations(range(len(self.members)), 2):
            parts.append(
                Factor(
                    agents=(self.possible_agents[i], self.possible_agents[j]),
                    project=lambda key, i=i, j=j: key[2 * i : 2 * i + 2] + key[2 * j : 2 * j + 2],
                    violated=lambda key, choices, after, i=i, j=j: self.hurt((i, j), key, choices, after),
                    law=self.pair(i, j),
                )
            )
        return Factors(parts=tuple(parts), backup=dict.fromkeys(self.possible_agents, 0))

    def pair(self, i: int, j: int) -> Tracks:
        return Tracks(self.seed, agents=len(self.next), actions=self.actions, members=(i, j))
