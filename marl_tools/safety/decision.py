"""What a shield decided, as it is handed on to logs, models and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True, kw_only=True)
class Decision:
    """One step of E copies and A agents; rows of agents that do not act are False, and played as proposed."""

    key_ids: NDArray[np.int64]  # (E,)
    k_left: NDArray[np.int64]  # (E,)
    active: NDArray[np.bool_]  # (E, A) and so are all below
    proposed: NDArray[np.int64]
    executed: NDArray[np.int64]
    overridden: NDArray[np.bool_]
    fallback: NDArray[np.bool_]
    unverified: NDArray[np.bool_]

    @classmethod
    def join(cls, decisions: Sequence[Decision]) -> Decision:
        """Several steps as one of more copies: the first step's, then the next one's."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(one, name) for one in decisions]) for name in names})
