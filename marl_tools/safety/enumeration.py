"""The exact table of an env whose joint law can be enumerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.transitions import (
    Key,
    Outcome,
    Solvable,
    TransitionTable,
    exact_table,
    too_many_keys,
)
from marl_tools.core.types import AgentID

_ROWS_AT_ONCE = 20_000  # of Python objects, before they become arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactModel:
    """All K keys that can be reached from a start, with the true joint law (``lo == hi``, nothing unseen)."""

    agents: tuple[AgentID, ...]
    keys: list[Key]
    initial: NDArray[np.float64]  # (K,) probability of starting there
    ended: NDArray[np.bool_]  # (K, A)
    table: TransitionTable


def solve(env: Solvable, *, max_keys: int = 100_000) -> ExactModel:
    """Enumerate an env's joint law; an env that is `core.transitions.Tabulated` does so itself, in arrays.

    One with ``joint_laws(keys, choices)`` is asked about many rows at once.

    Raises:
        ConfigError: more than ``max_keys`` keys can be reached.
    """
    agents = tuple(env.possible_agents)
    law_table = getattr(env, "law_table", None)
    if law_table is not None:
        return ExactModel(agents=agents, **law_table(max_keys)._asdict())
    actions = tuple(int(env.action_space(agent).n) for agent in agents)
    ids: dict[Key, int] = {}
    start = [(probability, ids.setdefault(key, len(ids))) for probability, key in env.initial_law()]
    laws = getattr(env, "joint_laws", None) or partial(_one_by_one, env)
    ended: list[tuple[bool, ...]] = []
    parts: list[tuple[NDArray, ...]] = []
    frontier = list(ids)
    while frontier:
        known = len(ids)
        rows: list[tuple[Key, tuple[int, ...]]] = []
        for key in frontier:
            ended.append(gone := env.ended_agents(key))
            options = ([n] if out else range(n) for n, out in zip(actions, gone, strict=True))
            rows += [] if all(gone) else ((key, choices) for choices in product(*options))
        chunks = (rows[at : at + _ROWS_AT_ONCE] for at in range(0, len(rows), _ROWS_AT_ONCE))
        parts += [_arrays(chunk, laws, ids, len(actions)) for chunk in chunks]
        if len(ids) > max_keys:
            raise too_many_keys(max_keys)
        frontier = list(islice(ids, known, None))
    row_key, choices, count, law, succ, violated, over = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    initial = np.zeros(len(ids))
    for probability, key_id in start:
        initial[key_id] += probability
    return ExactModel(
        agents=agents,
        keys=list(ids),
        initial=initial,
        ended=np.array(ended),
        table=exact_table(actions, len(ids), row_key, choices, count, succ, law, violated, over),
    )


def _one_by_one(env: Solvable, keys: Sequence[Key], choices: Sequence[Sequence[int]]) -> list[list[Outcome]]:
    return [env.joint_law(key, choice) for key, choice in zip(keys, choices, strict=True)]


def _arrays(
    rows: list[tuple[Key, tuple[int, ...]]],
    laws: Callable[[Sequence[Key], Sequence[Sequence[int]]], list[list[Outcome]]],
    ids: dict[Key, int],
    agents: int,
) -> tuple[NDArray, ...]:
    """Keys, choices and numbers of outcomes of some rows, then probability, successor and flags of each outcome.

    Successors that are not known yet get the next ids.
    """
    keys, choices = zip(*rows, strict=True)
    outcomes = laws(keys, choices)
    flat = [outcome for row in outcomes for outcome in row]
    return (
        np.array([ids[key] for key in keys], np.int32),
        np.array(choices),
        np.array([len(row) for row in outcomes]),
        np.array([outcome.probability for outcome in flat]),
        np.array([ids.setdefault(outcome.key, len(ids)) for outcome in flat], np.int32),
        np.array([outcome.violated for outcome in flat], bool).reshape(-1, agents),
        np.array([outcome.ended for outcome in flat], bool).reshape(-1, agents),
    )
