"""World model v0: a tabular, Bayesian model of a joint transition law, learned by counting draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from marl_tools.core.bounds import Interval, Schedule
from marl_tools.core.checks import at_least, between, one_of
from marl_tools.core.counting import occurrence
from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import Key, TransitionTable, joint_index
from marl_tools.models._rows import ROW_ARRAYS, SLOT_ARRAYS, Ints, Outcomes
from marl_tools.models._state import check_origin, origin, pack_keys, unpack_keys
from marl_tools.models._tables import CurrentTable, Settings
from marl_tools.models._topology import SupportFunction, Topology

__all__ = ["SupportFunction", "WorldModel"]


class WorldModel:
    """Counts of (key, joint action) -> (next key, who violated, who ended), and the credible sets that follow.

    A draw is one step. A violation is absorbing for the agent it hits, and ``ended`` means: ended in this step or before.
    Where a cap fires, the next key is the one before autoreset. A step whose final key nobody knows must not be added
    at all, its violations neither: what is added or left out must never hang on how the step went.

    Args:
        actions: number of actions of each agent; a choice equal to it means that the agent has ended.
        env_name: kept with the counts, so that another env's are refused.
        support: which outcomes are possible, a function or ``(keys, table)``. Rows that it declares have no unseen mass,
            and an outcome outside of it is an error. The second form declares all rows at once, as `declare` does
            with a function; otherwise a row is declared when it is first met.
        max_successors: the most outcomes that any row can have, where known; it tightens rows without support.

    Raises:
        ConfigError: too many joint actions for a table, or a table for other actions.
    """

    def __init__(
        self,
        actions: Sequence[int],
        *,
        env_name: str = "",
        support: SupportFunction | tuple[Sequence[Key], TransitionTable] | None = None,
        max_successors: int | None = None,
    ) -> None:
        joints = np.prod(np.asarray(actions, np.float64) + 1)
        if joints >= 2**32 or len(actions) > 62:
            raise ConfigError(
                f"env {env_name!r} has {joints:.3g} joint actions of {len(actions)} agents: a table holds up to 2^32 "
                "of up to 62 agents. Use fewer actions or agents."
            )
        self.actions = tuple(map(int, actions))
        self.env_name = env_name
        most = None if max_successors is None else at_least(1)("max_successors", max_successors)
        function = None if isinstance(support, tuple) else support
        self._known = Topology(env_name, self.actions, function, most)
        self._current = CurrentTable()
        if isinstance(support, tuple):
            keys, table = support
            self._known.declare_table(keys, table)

    @property
    def keys(self) -> list[Key]:
        """Known keys by id, in order of discovery."""
        return self._known.keys

    @property
    def closed(self) -> bool:
        """Whether every row was declared beforehand, and no other may turn up."""
        return self._known.closed

    @property
    def num_rows(self) -> int:
        """How many (key, joint action) are visited or declared."""
        return len(self._known.rows)

    def key_id(self, key: Key) -> int:
        """The id of a key, or -1."""
        return self._known.ids.get(key, -1)

    def key_ids(self, keys: Iterable[Key], *, create: bool = False) -> NDArray[np.int32]:
        """Ids (N,) of keys, -1 where unknown; with ``create`` unknown ones get the next ids."""
        keys = list(keys)
        found = list(map(self._known.ids.get, keys))
        if None in found:
            found = list(map(self._known.key_id if create else self.key_id, keys))
        return np.array(found, np.int32)

    def draws(self, key_ids: ArrayLike, joint: ArrayLike) -> Ints:
        """Draws so far of each (key id, joint index), of any shape; 0 where there is no row."""
        rows, (key_ids, joint) = self._known.rows, np.broadcast_arrays(key_ids, joint)
        pairs = zip(key_ids.ravel().tolist(), joint.ravel().tolist(), strict=True)
        row = np.array([rows.find(*pair) for pair in pairs], np.int64).reshape(key_ids.shape)
        return np.where(row < 0, 0, rows.draws[row])

    def declare(self, starts: Iterable[Key]) -> None:
        """Declare every row that can be reached from ``starts``, where nobody has ended, by the support function.

        No other row may turn up later. All share delta evenly and are in the table before their first visit.

        Raises:
            ConfigError: there is no support function or it leaves a reachable row open; there are rows already, as which
                rows share delta must not hang on the data; a key does not tell which agents have ended.
        """
        self._known.declare(starts)

    def add(
        self, key: Key, choices: Sequence[int], next_key: Key, violated: Sequence[bool], ended: Sequence[bool]
    ) -> None:
        """Count one draw: an `add_batch` of one."""
        self.add_batch([key], np.array([choices]), [next_key], np.array([violated]), np.array([ended]))

    def add_batch(
        self,
        keys: Sequence[Key],
        choices: NDArray[np.integer],
        next_keys: Sequence[Key],
        violated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> None:
        """Count N draws in order; ``choices``, ``violated`` and ``ended`` are (N, A).

        Raises:
            ConfigError: a wrong shape or a choice out of range, a row or an outcome that the support excludes, or more
                outcomes of a row than ``max_successors``. No draw of the batch is then counted.
        """
        joint = self._joint(len(keys), choices, violated, ended).tolist()
        known = self._known
        row, succ = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        for i, (key, index, next_key) in enumerate(zip(keys, joint, next_keys, strict=True)):
            row[i] = known.row(known.key_id(key), index)
            succ[i] = known.key_id(next_key)
        self._record(row, succ, violated, ended)

    def add_ids(
        self,
        key_ids: NDArray[np.integer],
        choices: NDArray[np.integer],
        next_key_ids: NDArray[np.integer],
        violated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> None:
        """`add_batch` for keys (N,) that have ids, which is far faster."""
        joint = self._joint(len(key_ids), choices, violated, ended)
        span = int(np.prod(np.array(self.actions, np.int64) + 1))
        codes, first, place = np.unique(
            np.asarray(key_ids, np.int64) * span + joint, return_index=True, return_inverse=True
        )
        row = np.empty(len(codes), np.int64)
        for at in np.argsort(first).tolist():
            row[at] = self._known.row(*divmod(int(codes[at]), span))
        self._record(row[place], np.asarray(next_key_ids, np.int64), violated, ended)

    @property
    def stale_rows(self) -> Ints:
        """Rows that were looked at anew since the last `table`."""
        return self._current.stale(self._known.rows)

    def table(
        self,
        delta: float,
        *,
        schedule: Schedule = "summable",
        interval: Interval = "clopper_pearson",
        newest: bool = False,
    ) -> TransitionTable:
        """Credible sets of all rows: with probability at least 1 - delta all sets of all tables ever made are right.

        A row is looked at when its own count reaches a power of two and stays as it is in between, outcomes found since
        then being part of its unseen mass. If there was no look since the last call the same object comes back.
        Delta is split over the declared rows evenly (those with one outcome need none), else over rows by order of
        discovery, which is known before their first outcome; within a row as `credible_sets` says.
        A row whose bounds contradict each other is wholly unknown.

        Args:
            schedule: the split over looks; ``constant`` has none and is right at one look only; ``ppr`` needs none and
                takes prior-posterior ratios in place of ``interval``.
            interval: ``beta``, posterior quantiles, carries no guarantee: it always misses a law that is deterministic.
            newest: with ``ppr``, which is right at any time: use all draws, not those up to the last look.

        Raises:
            ConfigError: delta is not in (0, 1), a name is unknown, or ``newest`` goes with another schedule.
        """
        between(0, 1)("delta", delta)
        one_of("constant", "summable", "geometric", "ppr")("schedule", schedule)
        one_of("clopper_pearson", "beta")("interval", interval)
        if newest and schedule != "ppr":
            raise ConfigError(
                f"newest=True with schedule={schedule!r}: only 'ppr' is right at any time; use that."
            )
        settings = Settings(float(delta), schedule, interval, newest)
        return self._current.renew(self._known, settings)

    def merge(self, other: WorldModel) -> NDArray[np.int32]:
        """Append the draws of another model of the same env; returns the ids (K_other,) of its keys here.

        They must be other draws than ours, made in ignorance of ours. A row's stream is then ours followed by theirs:
        where we had draws already, the next look is at the next exact power of two.

        Raises:
            ConfigError: the model is of another env, or does not declare the same rows.
        """
        check_origin(self._origin(), other._origin())
        known, rows, theirs, size = self._known, self._known.rows, other._known.rows, other.num_rows
        ids = self.key_ids(other.keys, create=True)
        pairs = zip(ids[theirs.key[:size]].tolist(), theirs.joint[:size].tolist(), strict=True)
        row = np.array([known.row(*pair) for pair in pairs], np.int64)
        if known.closed != other._known.closed or (rows.declared[row] != theirs.declared[:size]).any():
            raise ConfigError(
                f"these models of env {self.env_name!r} declare different rows: give both one support."
            )
        edges = np.nonzero(theirs.succ[:size] >= 0)
        outcomes = Outcomes(
            ids[theirs.succ[edges]].astype(np.int64), theirs.violated[edges], theirs.ended[edges]
        )
        target = row[edges[0]]
        slot = known.slots(target, outcomes, rows.draws[target] + theirs.found[edges])
        rows.absorb(theirs, row, edges, slot)
        return ids

    def state(self) -> dict[str, NDArray[Any]]:
        """All that was learned, as arrays of numbers and one of text: fit for an npz file."""
        rows, size = self._known.rows, self.num_rows
        edges = np.nonzero(rows.succ[:size] >= 0)
        state = self._origin() | pack_keys(self.keys) | {"closed": np.array(self._known.closed)}
        state |= {"max_successors": np.array(self._known.max_successors or 0), "edge_row": edges[0]}
        state |= {f"row_{name}": getattr(rows, name)[:size].copy() for name in ROW_ARRAYS}
        return state | {f"edge_{name}": getattr(rows, name)[edges] for name in SLOT_ARRAYS}

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, NDArray[Any]],
        actions: Sequence[int],
        *,
        env_name: str = "",
        support: SupportFunction | None = None,
    ) -> WorldModel:
        """The model that `state` describes, exactly. A support function is needed only where rows are still to come.

        Raises:
            ConfigError: it is the state of another env, or of something else; or it declares the rows that it meets, and
                ``support`` is missing.
        """
        model = cls(actions, env_name=env_name, support=support)
        check_origin(model._origin(), state)
        known, rows = model._known, model._known.rows
        known.closed, known.max_successors = bool(state["closed"]), int(state["max_successors"]) or None
        if support is None and not known.closed and state["row_declared"].any():
            raise ConfigError(
                f"the world model of env {env_name!r} needs its support function: pass support=..."
            )
        for key in unpack_keys(state):
            known.key_id(key)
        rows.extend(state["row_key"], state["row_joint"], state["row_declared"])
        slot = rows.extend_outcomes(
            state["edge_row"], Outcomes(*(state[f"edge_{name}"] for name in Outcomes._fields))
        )
        for name in ROW_ARRAYS:
            getattr(rows, name)[: len(rows)] = state[f"row_{name}"]
        for name in SLOT_ARRAYS:
            getattr(rows, name)[state["edge_row"], slot] = state[f"edge_{name}"]
        return model

    def _joint(
        self, draws: int, choices: NDArray[np.integer], violated: NDArray[np.bool_], ended: NDArray[np.bool_]
    ) -> Ints:
        """Joint indices (N,) of checked choices."""
        shape = (draws, len(self.actions))
        for name, array in (("choices", choices), ("violated", violated), ("ended", ended)):
            if array.shape != shape:
                raise ConfigError(
                    f"{name} has shape {array.shape}: {draws} draws in env {self.env_name!r} need {shape}."
                )
        outside = np.flatnonzero(((choices < 0) | (choices > self.actions)).any(1))
        if outside.size:
            raise ConfigError(
                f"choices {choices[outside[0]].tolist()} in env {self.env_name!r}: each must be an action below "
                f"{self.actions}, or that number for an agent that has ended."
            )
        return joint_index(self.actions, choices)

    def _record(self, row: Ints, succ: Ints, violated: NDArray[np.bool_], ended: NDArray[np.bool_]) -> None:
        """Count draws (N,) of rows, in order."""
        known, rows = self._known, self._known.rows
        nth = rows.draws[row] + occurrence(row) + 1
        outcomes = known.outcomes(succ, np.asarray(violated, np.bool_), np.asarray(ended, np.bool_))
        rows.record(row, known.slots(row, outcomes, nth), nth)

    def _origin(self) -> dict[str, NDArray[Any]]:
        return origin("world model", self.env_name, self.actions)
