"""What may be said of an evaluated team: measured intervals, and the shield's bound where all that it needs holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID
from marl_tools.training.certificate import Censored, certify
from marl_tools.training.evaluate import Evaluation, Policy
from marl_tools.training.shielded_policy import ShieldedPolicy

_HOLDS = (
    "the bound holds with probability 1 - delta, given that keys are Markov, that the others' executed behaviour lies in "
    "the covered set after every history and is drawn independently, and that policies and tables are frozen"
)

_VACUOUS = (
    "the bound of {agents} is 1 and says nothing: the world model knows too little for max_risk={max_risk:g}. `marl-tools "
    "coverage` shows what it lacks: train longer, raise --shield-patience, or declare the outcomes that are possible "
    "(initial_law, joint_law and ended_agents of the env, without --shield-support none)"
)


class Claim(NamedTuple):
    """The shield's bound of each agent over its horizon, or None; what it holds under, or why it does not apply."""

    bounds: dict[AgentID, float] | None
    horizon: int | None
    note: str
    contradictions: list[str]


def certify_evaluation(
    evaluation: Evaluation,
    policy: Policy,
    *,
    env_name: str,
    horizons: Sequence[int],
    cap: int | None,
    confidence: float = 0.95,
    bonferroni: bool = False,
    censored: Censored = "refuse",
) -> dict[str, Any]:
    """`certify` with the bound of the shield that the policy was evaluated behind, if it has one that applies.

    ``bound_note`` says what the bound rests on, or why there is none; ``contradictions`` lists what was seen against it.

    Raises:
        ConfigError: the env gave no costs.
    """
    if not evaluation.costed:
        raise ConfigError(
            f"{env_name} gives no costs to certify: put them into infos[agent]['cost'], or add them with AddCost "
            "(--cost package.module:function)"
        )
    claim = shield_claim(evaluation, policy)
    certificate = certify(
        evaluation.episodes,
        horizons=horizons,
        cap=cap,
        confidence=confidence,
        bonferroni=bonferroni,
        censored=censored,
        bounds=claim.bounds,
        bound_horizon=claim.horizon,
    )
    return {**certificate, "bound_note": claim.note, "contradictions": claim.contradictions}


def shield_claim(evaluation: Evaluation, policy: Policy) -> Claim:
    """The shield's own bound per agent: max(rho, V_T(key_0)), averaged over the starts of the episodes evaluated."""
    if not isinstance(policy, ShieldedPolicy):
        return _none("no shield: the interval alone is the claim")
    team = policy.team
    if team.config.rule == "step":
        return _none("the step rule does not bound an episode")
    if not team.models.guaranteed:
        return _none(f"opponent mode {team.config.opponent_mode!r} is a guess: no bound")
    contradictions = policy.audit.contradictions()
    if contradictions:
        return _none(f"the bound does not apply: {contradictions[0]}", contradictions)
    for agent in team.agents:
        left = sum(log.bound.get(agent, 0.0) is None for log in evaluation.episodes)
        if left:
            return _none(f"{agent!r} left the ledger in {left} episodes: no bound applies")
    starts = np.mean(policy.audit.start_bounds[-len(evaluation.episodes) :], axis=0)
    bounds = dict(zip(team.agents, starts.tolist(), strict=True))
    note = _note(bounds, team.config.max_risk, _HOLDS + team.models.premise)
    return Claim(bounds, team.config.horizon, note, [])


def _note(bounds: Mapping[AgentID, float], max_risk: float, holds: str) -> str:
    """What bounds claim: nothing where they are 1, and ``holds`` elsewhere."""
    vacuous = [agent for agent, bound in bounds.items() if round(bound, 4) >= 1.0]
    if not vacuous:
        return holds
    note = _VACUOUS.format(agents=", ".join(map(str, vacuous)), max_risk=max_risk)
    return note if len(vacuous) == len(bounds) else f"{note}. Of the others {holds}"


def _none(note: str, contradictions: list[str] | None = None) -> Claim:
    return Claim(None, None, note, contradictions or [])
