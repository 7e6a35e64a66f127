"""Risk tables of factors, read as one: the bounds of an agent's factors add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.safety.store import TableStore, by_cell
from marl_tools.safety.tables import price_levels

Split = Callable[[NDArray[np.integer]], NDArray[np.integer]]
"""``split(key_ids (N,))`` gives the ids (N, F) of the F factors' keys there, -1 where unknown."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Who interacts with whom: the agents of each of F factors, and the action that each of A agents falls back on."""

    members: tuple[tuple[int, ...], ...]
    backup: tuple[int, ...]

    def places(self) -> NDArray[np.int64]:
        """(F, A) the place of each agent in each factor, -1 where it takes no part."""
        places = np.full((len(self.members), len(self.backup)), -1, np.int64)
        for factor, group in enumerate(self.members):
            places[factor, list(group)] = range(len(group))
        return places


class FactorStore(TableStore):
    """The sums over an agent's factors, made as they are asked for: there are far too many keys of the whole to keep them.

    With k steps left V is the sum of the risks in each factor of playing the backup action from now on, and Q that of playing
    an action first and the backup after. That is one policy, the same in all factors, so that the sum bounds its risk
    in the whole (the union bound). Were the safest actions played after, each factor would suppose another policy,
    and the sum would bound the risk of none. A price is max(0, Q - V): the backup is always free.
    """

    def __init__(
        self,
        actions: Sequence[int],
        groups: Groups,
        split: Split,
        horizon: int,
        level: float,
        *,
        with_lower: bool,
    ) -> None:
        super().__init__(actions, horizon, with_lower=with_lower)
        self._split, self._level, self._places = split, level, groups.places()
        self.parts = [
            TableStore(
                [actions[agent] for agent in group],
                horizon,
                with_lower=with_lower,
                with_q=True,
                width=max(actions),
            )
            for group in groups.members
        ]

    def read(self, who: Any, k: Any, key_ids: NDArray[np.integer]) -> tuple[TableStore, NDArray[np.intp]]:
        """See `TableStore.read`."""
        who, k, key_ids = np.broadcast_arrays(who, k, key_ids)
        shape, who, k = key_ids.shape, who.ravel(), k.ravel()
        ids = self._split(key_ids.ravel())
        value, q, lower, mean = np.zeros(len(who)), *np.zeros((3, len(who), max(self.actions)))
        for part, places, keys in zip(self.parts, self._places, ids.T, strict=True):
            at = np.flatnonzero(places[who] >= 0)
            cells = part.cells(places[who[at]], k[at], keys[at])
            assert part.q is not None
            value[at] += part.value.take(cells)
            q[at] += by_cell(part.q).take(cells, 0)
            mean[at] += by_cell(part.mean).take(cells, 0)
            if part.lower is not None:
                lower[at] += by_cell(part.lower).take(cells, 0)
        states = TableStore.of_states(
            self.actions,
            value,
            price_levels(q, self._level, value),
            _rounded_down(lower),
            mean.astype(np.float32),
        )
        return states, np.arange(len(who)).reshape(shape)


def _rounded_down(risk: NDArray[np.float64]) -> NDArray[np.float32]:
    low = risk.astype(np.float32)
    return np.where(low > risk, np.nextafter(low, np.float32(-1)), low)
