"""The exact violation probability of a frozen team on an env that can be enumerated: what a certificate estimates by play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import KeyedView
from marl_tools.core.types import AgentID
from marl_tools.safety.exact import ExactModel, ViolationCurve, solve, violation_probability
from marl_tools.training.build import has_own_law
from marl_tools.training.certificate import TEAM
from marl_tools.training.evaluate import Policy
from marl_tools.training.factored import FactoredTeam
from marl_tools.training.policy import TeamPolicy
from marl_tools.training.shielded_policy import ShieldedPolicy


def exact_violations(
    env: Any, policy: Policy, *, horizon: int, model: ExactModel | None = None
) -> dict[AgentID, float]:
    """Probability of a violation within ``horizon`` steps of an episode, of each agent and of anyone (under `TEAM`).

    The distribution over keys is followed step by step under the policy's own action probabilities at each key, with its
    statistics frozen and the env's masks heeded; nothing is sampled, so the figures are right to rounding.

    Args:
        env: one that implements `core.transitions.Observed`, with an `EpisodeRecorder` or `EpisodeCap` around it at most.
        policy: with ``probabilities``, as `TeamPolicy` and `RandomPolicy` have; or such a one behind a frozen shield, which
            is followed with each agent's slack.
        horizon: at most the env's cap: the law does not know of it.
        model: the env's, from an earlier `safety.exact.solve`; None enumerates it now.

    Raises:
        ConfigError: an env that does not tell what is seen at a key, a policy without probabilities, a shield over factors
            or with a fallback of the user's, or a horizon beyond that of the shield's ledger.
    """
    curve = exact_curve(env, policy, horizon=horizon, model=model)
    agents = dict(zip(env.possible_agents, curve.agents[horizon].tolist(), strict=True))
    return {**agents, TEAM: float(curve.team[horizon])}


def exact_curve(env: Any, policy: Policy, *, horizon: int, model: ExactModel | None = None) -> ViolationCurve:
    """`exact_violations` for every number of steps from 0; behind a shield up to its own horizon."""
    if not has_own_law(env, "observe_keys"):
        raise ConfigError(
            f"{getattr(env, 'env_name', env)} tells no exact law with what is seen at each key, or a wrapper changes it: use "
            "one with observe_keys() (the solvable tasks, lle_level_3, masa_stag_hunt), without --cost and --preprocess"
        )
    model = solve(env) if model is None else model
    view: KeyedView = env.observe_keys(model.keys)
    legal = [_legal(view, agent, n) for agent, n in zip(model.agents, model.table.actions, strict=True)]
    if not isinstance(policy, ShieldedPolicy):
        return violation_probability(model, _laws(policy, view, model.agents), horizon, legal=legal)
    shield, team = policy.shield, policy.team
    if isinstance(team, FactoredTeam) or shield.fallback is not None:
        raise ConfigError(
            f"the shield of {team.env_name} looks at factors or has a fallback of its own: exact play follows plain ledgers; "
            "count violations with certify_policy instead"
        )
    if horizon > shield.config.horizon:
        raise ConfigError(
            f"horizon={horizon} is beyond the shield's {shield.config.horizon} steps, where it starts anew: take that many"
        )
    return violation_probability(
        model,
        _laws(policy.policy, view, model.agents),
        # Its ledger counts down from its own horizon, whatever is asked.
        shield.config.horizon,
        shields=shield.shields,
        key_ids=team.models.find_keys(model.keys),
        legal=legal,
    )


def _legal(view: KeyedView, agent: AgentID, actions: int) -> NDArray[np.bool_]:
    mask = view.masks.get(agent)
    return np.ones((len(view.observations[agent]), actions), bool) if mask is None else mask


def _laws(policy: Policy, view: KeyedView, agents: Sequence[AgentID]) -> list[NDArray[np.float64]]:
    """Action probabilities (K, n_i) of each agent at all keys."""
    if isinstance(policy, TeamPolicy):
        laws = policy.laws(view)
        return [laws[agent] for agent in agents]
    tell = getattr(policy, "probabilities", None)
    if tell is None:
        raise ConfigError(
            f"{type(policy).__name__} tells no probabilities: give it a method probabilities(observations, infos) with an "
            "array for each agent"
        )
    rows: dict[AgentID, list[NDArray[np.floating]]] = {agent: [] for agent in agents}
    for key in range(len(view.observations[agents[0]])):
        infos = {agent: {"action_mask": mask[key]} for agent, mask in view.masks.items()}
        law = tell({agent: view.observations[agent][key] for agent in agents}, infos)
        for agent in agents:
            rows[agent].append(law[agent])
    return [np.array(rows[agent], np.float64) for agent in agents]
