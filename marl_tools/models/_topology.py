"""Which keys, rows and outcomes there are, as declared beforehand or as discovered on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import Key, Outcome, TransitionTable, joint_choices, joint_index
from marl_tools.models._rows import Ints, Outcomes, RowCounts

SupportFunction = Callable[[Key, tuple[int, ...]], Iterable[Outcome] | None]
"""The possible outcomes of a key and the agents' choices, whose probabilities are ignored; None where not known."""


class Topology:
    """Numbers keys, rows and each row's outcomes, and refuses what a declaration excludes."""

    def __init__(
        self,
        env_name: str,
        actions: tuple[int, ...],
        support: SupportFunction | None,
        max_successors: int | None,
    ) -> None:
        self.env_name = env_name
        self.actions = actions
        self.support = support
        self.max_successors = max_successors
        self.closed = False
        self.keys: list[Key] = []
        self.ids: dict[Key, int] = {}
        self.rows = RowCounts(int(np.prod(np.array(actions, np.int64) + 1)))
        self._bit = np.left_shift(1, np.arange(len(actions)))

    def key_id(self, key: Key) -> int:
        """The id of a key, a new one if need be."""
        key_id = self.ids.get(key)
        if key_id is None:
            if not isinstance(key, bytes):
                raise ConfigError(
                    f"key {key!r} of env {self.env_name!r} is no bytes: return the exact bytes of the state."
                )
            key_id = self.ids[key] = len(self.keys)
            self.keys.append(key)
        return key_id

    def row(self, key_id: int, joint: int) -> int:
        """The row of a key and a joint action, a new one if need be."""
        row = self.rows.find(key_id, joint)
        if row >= 0:
            return row
        if self.support is None and not self.closed:
            return self.rows.append(key_id, joint)
        key, choices = self.keys[key_id], tuple(joint_choices(self.actions, np.array(joint)).tolist())
        if self.closed:
            raise ConfigError(
                f"{self._at(key, choices)} is not among the declared rows: declare its start too."
            )
        return self._add_rows([(key_id, joint)], [self._outcomes(key, choices)])

    def slots(self, row: Ints, outcomes: Outcomes, nth: Ints) -> Ints:
        """Slots (N,) of outcomes within their rows; new ones are noted as found by the row's draw ``nth`` (N,).

        Raises:
            ConfigError: a new outcome in a declared row, or more than ``max_successors``; nothing is noted then.
        """
        slot = self.rows.find_slots(row, outcomes)
        missing = np.flatnonzero(slot < 0)
        if missing.size:
            edges = np.stack([row, *outcomes], 1)[missing]
            first = np.sort(np.unique(edges, axis=0, return_index=True)[1])
            new = missing[first]
            self._check_outcomes(row[new], outcomes.take(new))
            added = self.rows.extend_outcomes(row[new], outcomes.take(new))
            self.rows.found[row[new], added] = nth[new]
            slot[missing] = self.rows.find_slots(row[missing], outcomes.take(missing))
        return slot

    def outcomes(self, succ: Ints, violated: NDArray[np.bool_], ended: NDArray[np.bool_]) -> Outcomes:
        """Outcomes from the agents' flags (N, A). Who violates counts as that and not as ended."""
        return Outcomes(
            succ, violated.astype(np.int64) @ self._bit, (ended & ~violated).astype(np.int64) @ self._bit
        )

    def declare(self, starts: Iterable[Key]) -> None:
        """Add every row that the support function reaches from ``starts``, and close the list of rows."""
        if self.support is None or len(self.rows):
            raise ConfigError(
                f"declare() in env {self.env_name!r} needs a support function and a model without rows "
                f"(this one has {len(self.rows)}): pass support=... to WorldModel, then declare all starts at once."
            )
        ended = {key: (False,) * len(self.actions) for key in starts}
        frontier = deque(ended)
        pairs: list[tuple[int, int]] = []
        supports: list[list[Outcome] | None] = []
        while frontier:
            key = frontier.popleft()
            free = [(n,) if gone else range(n) for n, gone in zip(self.actions, ended[key], strict=True)]
            for choices in () if all(ended[key]) else product(*free):
                outcomes = self._outcomes(key, choices)
                if outcomes is None:
                    raise ConfigError(
                        f"{self._at(key, choices)} has no support: declare() needs one for every row."
                    )
                pairs.append((self.key_id(key), int(joint_index(self.actions, np.array(choices)))))
                supports.append(outcomes)
                for outcome in outcomes:
                    if outcome.key not in ended:
                        ended[outcome.key] = tuple(outcome.ended)
                        frontier.append(outcome.key)
                    elif ended[outcome.key] != tuple(outcome.ended):
                        raise ConfigError(
                            f"{self._at(key, choices)} leads to {outcome.key!r} with ended agents {outcome.ended}, "
                            f"and elsewhere {ended[outcome.key]}: the key must tell who has ended."
                        )
        if pairs:
            self._add_rows(pairs, supports)
        self.closed = True

    def declare_table(self, keys: Sequence[Key], table: TransitionTable) -> None:
        """Add the rows and outcomes of a table over ``keys``, and close the list of rows."""
        if table.actions != self.actions or table.num_keys != len(keys):
            raise ConfigError(
                f"the support of env {self.env_name!r} is a table of {table.num_keys} keys and actions {table.actions}, "
                f"for {len(keys)} keys and actions {self.actions}: enumerate this very env."
            )
        ids = np.array([self.key_id(key) for key in keys], np.int64)
        row = self.rows.extend(ids[table.row_key], table.row_joint, np.ones(len(table.row_key), np.bool_))
        edges = np.nonzero(table.succ >= 0)
        outcomes = self.outcomes(ids[table.succ[edges]], table.violated[edges], table.ended[edges])
        self.rows.extend_outcomes(row[edges[0]], outcomes)
        self.closed = True

    def _add_rows(self, pairs: list[tuple[int, int]], supports: list[list[Outcome] | None]) -> int:
        """Append rows with their declared outcomes, if any; returns the first."""
        key, joint = np.array(pairs, np.int64).T
        row = self.rows.extend(key, joint, np.array([support is not None for support in supports]))
        edges = [(r, o) for r, support in zip(row.tolist(), supports, strict=True) for o in support or ()]
        if edges:
            succ = np.array([self.key_id(outcome.key) for _, outcome in edges], np.int64)
            violated, ended = (
                np.array([getattr(o, name) for _, o in edges]) for name in ("violated", "ended")
            )
            outcomes = self.outcomes(succ, violated, ended)
            at = np.array([r for r, _ in edges], np.int64)
            first = np.sort(np.unique(np.stack([at, *outcomes], 1), axis=0, return_index=True)[1])
            self.rows.extend_outcomes(at[first], outcomes.take(first))
        return int(row[0])

    def _outcomes(self, key: Key, choices: tuple[int, ...]) -> list[Outcome] | None:
        outcomes = None if self.support is None else self.support(key, choices)
        if outcomes is None:
            return None
        outcomes = list(outcomes)
        if not outcomes:
            raise ConfigError(
                f"{self._at(key, choices)} has an empty support: give its outcomes, or None for unknown."
            )
        return outcomes

    def _check_outcomes(self, row: Ints, new: Outcomes) -> None:
        wrong = self.rows.declared[row].copy()
        most = np.inf
        if self.max_successors is not None:
            most = self.max_successors
            wrong |= self.rows.known[row] + np.bincount(row)[row] > most
        if wrong.any():
            i = int(np.argmax(wrong))
            key, joint = self.keys[self.rows.key[row[i]]], self.rows.joint[row[i]]
            choices = joint_choices(self.actions, np.array(joint)).tolist()
            violated, ended = ((bits[i] & self._bit > 0).tolist() for bits in (new.violated, new.ended))
            rule = "its declared support" if self.rows.declared[row[i]] else f"max_successors={most}"
            raise ConfigError(
                f"{self._at(key, choices)} led to key {self.keys[int(new.succ[i])]!r} with violated {violated} and "
                f"ended {ended}, which {rule} excludes: mend the declaration, or leave it out."
            )

    def _at(self, key: Key, choices: Sequence[int]) -> str:
        return f"the row of key {key!r} and choices {tuple(choices)} in env {self.env_name!r}"
