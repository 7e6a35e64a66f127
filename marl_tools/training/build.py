"""From an env to the shielded team that guards it: its key, its cap, and what is known of its law beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from marl_tools.core.errors import ConfigError
from marl_tools.core.spaces import AgentGroup
from marl_tools.core.transitions import Factors, Solvable
from marl_tools.core.wrappers import EpisodeCap, EpisodeRecorder, infer_episode_cap
from marl_tools.core.wrappers.base import env_layers
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.exact import solve
from marl_tools.safety.rows import MAX_OTHERS
from marl_tools.training.factored import FactoredTeam
from marl_tools.training.shielding import ShieldedTeam
from marl_tools.training.team_models import team_actions

Model = Literal["learned", "exact"]
Support = Literal["declared", "none"]


def build_team(
    env: Any,
    groups: Sequence[AgentGroup],
    make_config: Callable[[int], ShieldConfig],
    *,
    horizon: int | None = None,
    model: Model = "learned",
    support: Support = "declared",
    num_envs: int = 1,
    gamma: float = 0.99,
) -> ShieldedTeam:
    """The shielded team for ``env``, a single copy with an `EpisodeRecorder` outermost.

    Args:
        make_config: the shield's settings for a horizon.
        horizon: steps that the bound covers; None: the env's episode cap.
        model: "exact" takes the true law of an env that can be enumerated, in place of learning one.
        support: "declared" takes from such an env which outcomes are possible, and learns their probabilities.

    Raises:
        ConfigError: a team too large to be looked at as a whole that declares no factors; no key, no cap and no horizon, a horizon beyond the cap, or an env that cannot be enumerated
            although its exact law is asked for.
    """
    name = env.env_name
    if getattr(env, "state_key", None) is None:
        raise ConfigError(
            f"{name} has no state_key(): a shield needs the exact Markov state of the joint system. Add the method to "
            "your env, or use a task that has it (crossing, corridor, the gridmaps, stag_hunt)"
        )
    cap = infer_episode_cap(env)
    steps = cap if horizon is None else horizon
    if steps is None:
        raise ConfigError(
            f"{name} has no episode cap to bound the risk over: give --cap N, or a horizon (--shield-horizon N)"
        )
    config = make_config(steps)
    config.check_episode(name, cap)
    factors = env.factors() if callable(getattr(env, "factors", None)) else None
    if factors is not None:
        return _build_factored(env, groups, config, factors, model, support, num_envs=num_envs, gamma=gamma)
    solvable = has_own_law(env)
    if model == "exact" and not solvable:
        raise ConfigError(
            f"shield_model='exact' needs an env whose law can be enumerated, and no wrapper that changes it, which "
            f"{name} is not: use 'learned'"
        )
    _check_others(name, team_actions(groups, env.possible_agents))
    exact = solve(cast(Solvable, env)) if solvable and (model == "exact" or support == "declared") else None
    return ShieldedTeam(
        groups,
        list(env.possible_agents),
        config,
        num_envs=num_envs,
        env_name=name,
        support=None if exact is None else (exact.keys, exact.table),
        law=exact.table if exact is not None and model == "exact" else None,
        gamma=gamma,
    )


def _build_factored(
    env: Any,
    groups: Sequence[AgentGroup],
    config: ShieldConfig,
    factors: Factors,
    model: Model,
    support: Support,
    *,
    num_envs: int,
    gamma: float,
) -> FactoredTeam:
    """The team over the factors that its env declares; their laws are the env's own or nothing."""
    own = has_own_law(env, "factors")
    laws = [factor.law if own else None for factor in factors.parts]
    if model == "exact" and None in laws:
        raise ConfigError(
            f"shield_model='exact' for {env.env_name} needs a law of each factor, and no wrapper that changes it: use "
            "'learned'"
        )
    wanted = model == "exact" or support == "declared"
    solved = [solve(law) if law is not None and wanted else None for law in laws]
    return FactoredTeam(
        groups,
        list(env.possible_agents),
        config,
        factors,
        num_envs=num_envs,
        env_name=env.env_name,
        supports=[None if one is None else (one.keys, one.table) for one in solved],
        exact=model == "exact",
        gamma=gamma,
    )


def _check_others(env_name: str, actions: Sequence[int]) -> None:
    """Refuse a team too large to be looked at as a whole before anything of it is enumerated."""
    others = math.prod(actions) // min(actions)
    if others > MAX_OTHERS:
        raise ConfigError(
            f"{env_name}: the agents beside one have up to {others} joint actions, more than {MAX_OTHERS}: let the env "
            "declare who interacts with whom by a factors() method (core.transitions.Factors), shield fewer agents, or "
            "give them fewer actions"
        )


def has_own_law(env: Any, method: str = "joint_law") -> bool:
    """Whether the law that the env's ``method`` tells of is the law that is played.

    A wrapper that adds a cost, skips frames or retires agents makes another law of it; a cap only cuts it off.
    """
    for layer in env_layers(env):
        if not isinstance(layer, EpisodeRecorder | EpisodeCap):
            return callable(getattr(type(layer), method, None))
    return False
