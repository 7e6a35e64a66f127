"""Plans that have a name: ``marl-tools bench shield | ippo | quick``."""

from __future__ import annotations

from typing import Any

from marl_tools.bench.plan import Excluded, Plan

_RISK = 0.05
_GRID: dict[str, Any] = {"learning_rate": 1e-3, "share": "none"}
_OURS: dict[str, Any] = _GRID | {"native": True}
# No action of unknown risk is played to learn what it does, and the bound holds whatever the others do.
_LEDGER: dict[str, Any] = {"shield": "ledger", "shield_patience": 0, "shield_opponent_mode": "worst_case"}

_SHIELD = Plan(
    name="shield",
    settings={
        "num_envs": 32,
        "rollouts": 64,
        "max_risk": _RISK,
        "cost_limit": _RISK,
        "checkpoint_every": 10,
        "final_policy_eval_episodes": 400,
    },
    methods={"ippo": {}, "lagrangian": {"constraint": "lagrange"}, "ledger": _LEDGER},
    tasks={
        "crossing": _OURS | {"timesteps": 50_000},
        "gridmap_rooms": _OURS | {"timesteps": 60_000, "env_kwargs": {"max_cycles": 100}},
        "lle_level_3": _GRID | {"timesteps": 60_000},
        "masa_stag_hunt": _GRID | {"timesteps": 150_000},
        # IPPO alone needs no cost; that of its training is what the other method is compared with.
        "simple_spread": {"native": True, "learning_rate": 1e-3, "timesteps": 400_000, "cost": "default"},
    },
    excluded=(
        Excluded(
            method="ledger",
            task="simple_spread",
            why="positions are continuous: no state comes back, and the ledger's tables need states that do",
        ),
    ),
)

_IPPO = Plan(
    name="ippo",
    settings={"native": True, "timesteps": 200_000, "final_policy_eval_episodes": 100},
    methods={"shared": {"share": "group"}, "separate": {"share": "none"}},
    tasks={"simple_spread": {}, "simple_tag": {}, "simple_reference": {}},
)

_QUICK = Plan(
    name="quick",
    settings={
        **_OURS,
        "timesteps": 8_192,
        "num_envs": 16,
        "rollouts": 32,
        "final_policy_eval_episodes": 50,
    },
    methods={"ippo": {}, "ledger": _LEDGER},
    tasks={"crossing": {}},
    seeds=(0, 1),
)

PRESETS = {plan.name: plan for plan in (_SHIELD, _IPPO, _QUICK)}
"""`Plan`s by name."""
