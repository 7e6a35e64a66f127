"""The contract between world models, exact environments and the shield: a joint transition law as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID

Key = bytes
"""Exact bytes of the joint Markov state; never a lossy hash, since every guarantee is stated over keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionTable:
    """Bounds on the joint law of R rows (key, joint action) over K keys and A agents.

    A row's successors are the first entries of its line, padded with -1. ``lo`` and ``hi`` bound each successor's probability
    (equal where the law is known), ``unseen`` the mass of successors never seen, which counts as a violation of every
    agent. Joint actions are mixed-radix numbers (see `joint_index`), in which the last value of each agent means that it has ended and
    plays nothing. A (key, joint action) without a row is wholly unknown: risk 1.
    """

    actions: tuple[int, ...]  # number of actions of each agent
    num_keys: int
    row_key: NDArray[np.int32]  # (R,)
    row_joint: NDArray[np.int64]  # (R,)
    succ: NDArray[np.int32]  # (R, S) key of the successor, -1: padding
    violated: NDArray[np.bool_]  # (R, S, A) the agent violates on this transition: absorbing, risk 1
    ended: NDArray[np.bool_]  # (R, S, A) the agent has ended without a violation: risk 0 from here on
    lo: NDArray[np.float64]  # (R, S)
    hi: NDArray[np.float64]  # (R, S)
    unseen: NDArray[np.float64]  # (R,) upper bound
    mean: NDArray[np.float64]  # (R, S) posterior mean; sums with mean_unseen to 1
    mean_unseen: NDArray[np.float64]  # (R,)


def radices(actions: Sequence[int]) -> NDArray[np.int64]:
    """Place values of each agent in a joint index; each agent has one value more than actions: none."""
    sizes = np.asarray(actions, np.int64) + 1
    return np.concatenate([np.cumprod(sizes[::-1])[::-1][1:], [1]]).astype(np.int64)


def joint_index(actions: Sequence[int], chosen: NDArray[np.integer]) -> NDArray[np.int64]:
    """Joint indices (...,) of choices (..., A); the choice ``actions[i]`` means that agent i has ended."""
    return np.asarray(chosen, np.int64) @ radices(actions)


def joint_choices(actions: Sequence[int], index: NDArray[np.integer]) -> NDArray[np.int64]:
    """Inverse of `joint_index`: choices (..., A)."""
    sizes = np.asarray(actions, np.int64) + 1
    return np.asarray(index, np.int64)[..., None] // radices(actions) % sizes


class Outcome(NamedTuple):
    """One possible result of a joint action, per agent where tuples."""

    probability: float
    key: Key
    violated: tuple[bool, ...]
    ended: tuple[bool, ...]  # has ended, in this step or before (by its own termination or the team's)


class Keyed(Protocol):
    """An env with a Markov state key."""

    def state_key(self) -> Key: ...


class Solvable(Keyed, Protocol):
    """An env whose joint law can be enumerated. Agents are in the order of ``possible_agents``."""

    possible_agents: list[AgentID]

    def initial_law(self) -> list[tuple[float, Key]]:
        """Probability and key of each possible start."""
        ...

    def joint_law(self, key: Key, choices: Sequence[int]) -> list[Outcome]:
        """All outcomes of a joint action at a key, merged, probabilities summing to 1.

        ``choices[i]`` is agent i's action, or its number of actions if it has ended.
        """
        ...

    def ended_agents(self, key: Key) -> tuple[bool, ...]:
        """Which agents have ended at this key and play nothing."""
        ...

    def action_space(self, agent: AgentID) -> Any: ...


class LawTable(NamedTuple):
    """The whole law of an env with K keys and A agents, known exactly."""

    keys: list[Key]
    initial: NDArray[np.float64]  # (K,) probability of starting there
    ended: NDArray[np.bool_]  # (K, A)
    table: TransitionTable  # rows in ascending order of key and joint action


class Tabulated(Solvable, Protocol):
    """A `Solvable` env that enumerates itself in arrays, which is far faster than an `Outcome` at a time."""

    def law_table(self, max_keys: int) -> LawTable:
        """All keys that play can reach from a start, and the law there.

        Raises:
            ConfigError: there are more than ``max_keys`` of them.
        """
        ...


class KeyedView(NamedTuple):
    """What each agent sees at K keys, (K, *obs_shape), and what it may do there, (K, n); no masks: anything."""

    observations: dict[AgentID, NDArray[Any]]
    masks: dict[AgentID, NDArray[np.bool_]]


class Observed(Solvable, Protocol):
    """A `Solvable` env that tells what its agents see at each key, so that a policy's own law can be followed exactly."""

    def observe_keys(self, keys: Sequence[Key]) -> KeyedView:
        """The observations at these keys, of agents that have ended as well: nobody acts on theirs."""
        ...


def too_many_keys(max_keys: int) -> ConfigError:
    """The refusal of an env that is too large to be enumerated."""
    return ConfigError(
        f"more than {max_keys} keys can be reached: raise max_keys, take a smaller environment, or do without its law "
        "(--shield-support none)."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A part of the state that some agents move among themselves.

    Its key must be Markov under the actions of its own agents: whatever the others do and whatever was before, the law of
    the next factor key follows from this one and their actions. It tells which of its agents have ended.

    Attributes:
        agents: the group, in the order of the factor's actions and flags.
        project: from a joint key to this factor's.
        violated: ``violated(key, choices, next_key)`` tells which of the group violate in this factor. An agent's cost must
            be above 0 exactly where it violates in one of its factors.
        law: an env whose joint law is that of the factor alone, keys included, where it can be enumerated.
    """

    agents: tuple[AgentID, ...]
    project: Callable[[Key], Key]
    violated: Callable[[Key, tuple[int, ...], Key], Sequence[bool]]
    law: Solvable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The factors of an env, and each agent's backup action: what its bound assumes that it plays later on.

    The backup is one action for all an agent's factors, since the safest ones of two factors may differ. It
    should be harmless as far as possible, like staying where one is, and legal everywhere.
    """

    parts: tuple[Factor, ...]
    backup: Mapping[AgentID, int]


class Factored(Keyed, Protocol):
    """An env that declares its factors: who interacts with whom."""

    def factors(self) -> Factors | None:
        """The declaration; None where all agents are better looked at together."""
        ...


def exact_table(
    actions: tuple[int, ...],
    num_keys: int,
    row_key: NDArray[np.integer],
    choices: NDArray[np.integer],
    count: NDArray[np.integer],
    succ: NDArray[np.integer],
    law: NDArray[np.float64],
    violated: NDArray[np.bool_],
    ended: NDArray[np.bool_],
) -> TransitionTable:
    """A known law (``lo == hi``, nothing unseen) of R rows with M outcomes in all, those of a row side by side.

    ``row_key`` (R,), ``choices`` (R, A) and ``count`` (R,) of outcomes; ``succ`` (M,), ``law`` (M,), ``violated`` and
    ``ended`` (M, A) of each outcome.
    """
    row = np.repeat(np.arange(len(count)), count)
    at = row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    shape = (len(count), int(count.max()))
    table_succ, table_law = np.full(shape, -1, np.int32), np.zeros(shape)
    harmed, over = np.zeros((2, *shape, len(actions)), np.bool_)
    table_succ[at], table_law[at], harmed[at], over[at] = succ, law, violated, ended & ~violated
    return TransitionTable(
        actions=actions,
        num_keys=num_keys,
        row_key=row_key.astype(np.int32),
        row_joint=joint_index(actions, choices),
        succ=table_succ,
        violated=harmed,
        ended=over,
        lo=table_law,
        hi=table_law,
        unseen=np.zeros(len(table_law)),
        mean=table_law,
        mean_unseen=np.zeros(len(table_law)),
    )
