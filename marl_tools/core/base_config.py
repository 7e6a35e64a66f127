"""`create_base_config`: the 27 named arguments that describe an experiment, checked."""

from __future__ import annotations

import math
from difflib import get_close_matches
from inspect import signature
from typing import Any

from marl_tools.core.checks import Check, at_least, between, boolean, increasing, name, one_of, string
from marl_tools.core.errors import ConfigError, did_you_mean

_VERSIONS = ("v0",)


def create_base_config(
    env_name: str,
    num_envs: int,
    n_agents: int,
    timesteps: int,
    num_runs: int,
    rollouts: int,
    learning_epochs: int,
    mini_batches: int,
    learning_rate: float,
    max_risk: float,
    use_wandb: bool,
    shield_patience: int = 64,
    shield_opponent_mode: str = "monotone_floor",
    shield_reward_mode: str = "bayesian",
    shield_credible_delta: float = 0.05,
    shield_credible_schedule: str = "summable",
    experiment_tag: str = "",
    seed_offset: int = 0,
    wm_version: str = "v0",
    om_version: str = "v0",
    ippo_version: str = "v0",
    lag_version: str = "v0",
    shield_version: str = "v0",
    final_policy_eval_episodes: int = 0,
    final_policy_eval_horizons: tuple[int, ...] = (1, 10, 50, 100, 200),
    final_policy_eval_seed_offset: int = 1_000_000,
    final_policy_eval_confidence: float = 0.95,
    **overrides: Any,
) -> dict[str, Any]:
    """A checked dict of everything that describes an experiment; further keys pass through ``overrides``.

    ``rollouts`` is the number of env steps per env and update, ``timesteps`` the total over all envs, ``max_risk``
    the allowed probability of a violation, ``*_version`` the generation of world model, opponent model, IPPO,
    Lagrangian and shield.

    Raises:
        ConfigError: a value that cannot work, or an override that looks like a misspelt argument.
    """
    config = locals() | overrides
    del config["overrides"]
    for key in overrides:
        _refuse_near_miss(key)
    return {key: _CHECKS[key](key, value) if key in _CHECKS else value for key, value in config.items()}


_CHECKS: dict[str, Check] = {
    "env_name": name,
    "experiment_tag": string,
    "use_wandb": boolean,
    "learning_rate": between(0, math.inf),
    "max_risk": between(0, 1),
    "shield_credible_delta": between(0, 1),
    "final_policy_eval_confidence": between(0, 1),
    "final_policy_eval_horizons": increasing,
    "shield_opponent_mode": one_of("oracle", "uniform", "empirical", "worst_case", "monotone_floor"),
    "shield_reward_mode": one_of("none", "penalty", "bayesian", "bayesian_potential"),
    "shield_credible_schedule": one_of("constant", "summable", "geometric", "ppr"),
}
_CHECKS |= dict.fromkeys(
    ["num_envs", "n_agents", "timesteps", "num_runs", "rollouts", "learning_epochs", "mini_batches"],
    at_least(1),
)
_CHECKS |= dict.fromkeys(
    ["shield_patience", "seed_offset", "final_policy_eval_episodes", "final_policy_eval_seed_offset"],
    at_least(0),
)
_CHECKS |= dict.fromkeys(
    ["wm_version", "om_version", "ippo_version", "lag_version", "shield_version"], one_of(*_VERSIONS)
)


def _refuse_near_miss(key: str) -> None:
    """An override one slip away from an argument is a typo; one that extends its name with a word is not."""
    named = [name for name in signature(create_base_config).parameters if name != "overrides"]
    extends = any(key.startswith(f"{name}_") or key.endswith(f"_{name}") for name in named)
    if not extends and get_close_matches(key.lower(), named, n=1, cutoff=0.85):
        raise ConfigError(f"create_base_config has no argument {key!r}.{did_you_mean(key.lower(), named)}")
