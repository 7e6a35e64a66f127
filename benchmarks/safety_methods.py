"""The tasks and the methods that `safety.py` compares."""

from __future__ import annotations

from typing import Any, NamedTuple

from marl_tools.envs.game import Game, Transition
from marl_tools.envs.parallel import GameEnv
from marl_tools.experiment.config import RunConfig

RHO = 0.05
PENALTY = 10.0
COMMON: dict[str, Any] = {
    "native": True,
    "num_envs": 32,
    "rollouts": 64,
    "learning_rate": 1e-3,
    "share": "none",
    "max_risk": RHO,
    "cost_limit": RHO,
    "shield_patience": 0,
    "checkpoint_every": 1_000_000,
    "video_episodes": 0,
    "final_policy_eval_episodes": 0,
}


class Comparison(NamedTuple):
    """A task: its environment with its arguments, training steps, seeds, evaluation episodes, and whether its exact risk is computed."""

    env: str
    env_kwargs: dict[str, Any]
    timesteps: int
    seeds: int
    episodes: int
    exact: bool
    methods: tuple[str, ...]


LEDGER = {"shield": "ledger"}
CALIBRATED = LEDGER | {"shield_opponent_mode": "monotone_floor", "shield_calibrate": 100}
WORST_CASE = LEDGER | {"shield_opponent_mode": "worst_case"}
STEP = {"shield": "step", "shield_opponent_mode": "worst_case"}
LOOSE = WORST_CASE | {"shield_patience": 5000, "max_risk": 0.1}
EXACT = CALIBRATED | {"shield_model": "exact"}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "ippo": ("IPPO", {}),
    "lagrange": ("IPPO-Lagrangian, Adam", {"constraint": "lagrange"}),
    "pid": ("IPPO-Lagrangian, PID", {"constraint": "pid"}),
    "penalty": (f"IPPO, reward - {PENALTY:g} x cost", {}),
    "step": ("step shield", STEP),
    "ledger": ("ledger, monotone_floor", CALIBRATED),
    "worst_case": ("ledger, worst_case", WORST_CASE),
    "empirical": ("ledger, empirical", LEDGER | {"shield_opponent_mode": "empirical"}),
    "uniform": ("ledger, uniform", LEDGER | {"shield_opponent_mode": "uniform"}),
    "patience": ("ledger, monotone_floor, patience 64", CALIBRATED | {"shield_patience": 64}),
    "oracle": ("ledger, exact model", EXACT),
    "long_patience": ("ledger, worst_case, patience 20000", WORST_CASE | {"shield_patience": 20_000}),
    "loose": ("ledger, worst_case, rho 0.1, patience 5000", LOOSE),
    "loose_ppr": ("the same with ppr", LOOSE | {"shield_credible_schedule": "ppr"}),
    "loose_oracle": ("ledger, exact model, rho 0.1", EXACT | {"max_risk": 0.1}),
    "step_exact": ("step shield, exact model", STEP | {"shield_model": "exact"}),
    "two_stage_exact": ("trained with step, then ledger; exact model", STEP | {"shield_model": "exact"}),
    "two_stage": (
        "trained with step, patience 20000, 100000 env steps, then ledger",
        STEP | {"shield_patience": 20_000, "timesteps": 100_000},
    ),
}
# Trained behind the first shield, evaluated behind the second.
DEPLOYED: dict[str, dict[str, Any]] = {"two_stage": LEDGER, "two_stage_exact": LEDGER}
MENDS = ("step_exact", "long_patience", "loose", "loose_ppr", "loose_oracle", *DEPLOYED)
ALL = tuple(name for name in METHODS if name not in MENDS)
FEW = ("random", "ippo", "lagrange", "ledger", "oracle")
CAPPED = {"max_cycles": 100}
LEDGE = {"step_reward": 0.0}
ALONE = LEDGE | {"n_agents": 1}
TASKS = {
    "crossing": Comparison("crossing", {}, 50_000, 5, 400, True, ALL),
    "corridor": Comparison(
        "corridor",
        LEDGE,
        50_000,
        5,
        200,
        True,
        (*ALL, "step_exact", "two_stage_exact", "loose_oracle", "long_patience"),
    ),
    "corridor-alone": Comparison(
        "corridor", ALONE, 50_000, 5, 200, True, ("ippo", "ledger", "oracle", *MENDS)
    ),
    "gridmap_rooms": Comparison("gridmap_rooms", CAPPED, 60_000, 3, 200, False, FEW),
    "gridmap_streets": Comparison("gridmap_streets", CAPPED, 60_000, 3, 200, False, FEW),
    "gridmap_warehouse": Comparison("gridmap_warehouse", CAPPED, 100_000, 3, 200, False, FEW),
    "gridmap_bridges": Comparison("gridmap_bridges", CAPPED, 60_000, 3, 200, False, FEW),
    "stag_hunt": Comparison("stag_hunt", {}, 100_000, 3, 200, False, FEW),
}


class PenalisedGame:
    """A game that takes ``weight`` off an agent's reward at each of its violations."""

    def __init__(self, game: Game, weight: float) -> None:
        self._game, self._weight = game, weight

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)

    def transition(self, *args: Any) -> Transition:
        result = self._game.transition(*args)
        return result._replace(rewards=result.rewards - self._weight * result.violated)


def penalised(*, task: str, render_mode: str | None = None, **kwargs: Any) -> GameEnv:
    """A task of this package whose rewards hold the penalty."""
    env = RunConfig(env=task, env_kwargs=kwargs).factory()().unwrapped
    assert isinstance(env, GameEnv)
    return GameEnv(PenalisedGame(env.game, PENALTY), render_mode)  # pyright: ignore[reportArgumentType]
