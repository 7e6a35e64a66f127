"""How much of an env a shielded team knows, and how many visits its ledger still needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.safety.agent import AgentShield
from marl_tools.training.shielding import ShieldedTeam


def coverage(team: ShieldedTeam) -> dict[str, Any]:
    """What is known of the keys and rows (key, joint action), as plain values.

    Counted are the keys at which somebody acts, and their rows: those that were declared, else those that were met. A
    row is known well once it has had ``visits_needed`` draws, about T ln(K / delta) / rho, or if its only outcome was
    declared; ``visits_missing`` is what all the others lack together. ``keys_within_risk`` is each agent's share of keys
    from which the shield can keep ``max_risk`` (V <= rho). It says more than counts do: rows that nobody should play may
    stay unknown.

    Raises:
        ConfigError: the team is looked at in factors, and knows no keys of the whole.
    """
    world = team.world.state()
    key, draws = world["row_key"], world["row_draws"]
    needed = team.config.visits_needed(len(team.world.keys))
    certain = world["row_declared"] & (world["row_known"] == 1)
    missing = np.where(certain, 0, np.maximum(0, needed - draws))
    live, visited = np.unique(key), np.unique(key[draws > 0])
    return {
        "env": team.env_name,
        "max_risk": team.config.max_risk,
        "horizon": team.config.horizon,
        "declared": team.world.closed,
        "keys": len(live),
        "keys_visited": _share(len(visited), len(live)),
        "rows": len(key),
        "rows_visited": _share(_count(draws), len(key)),
        "rows_known_well": _share(_count(missing == 0), len(key)),
        "visits_needed": needed,
        "visits_missing": int(missing.sum()),
        "keys_within_risk": {
            agent: _share(_count(_risk(shield, live) <= team.config.max_risk), len(live))
            for agent, shield in zip(team.agents, team.shield.shields, strict=True)
        },
    }


def _risk(shield: AgentShield, key_ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """V (N,) over the whole horizon, or the step rule's look-ahead."""
    steps = shield.steps_ahead(np.full(len(key_ids), shield.config.horizon))
    return shield.tables.value[steps, shield.tables.rows(key_ids)]


def _share(part: int, whole: int) -> float:
    return float(part) / whole if whole else 0.0


def _count(flags: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(flags))
