"""A trained team out of its run folder: its policy, behind its shield if it has one, and what it is certified for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from marl_tools.core.types import EpisodeLog
from marl_tools.core.wrappers import infer_episode_cap
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.folder import checkpoint_path
from marl_tools.experiment.safety import make_shield
from marl_tools.training.checkpoint import load_checkpoint
from marl_tools.training.claims import certify_evaluation
from marl_tools.training.evaluate import Evaluation, Policy, evaluate
from marl_tools.training.policy import load_policy
from marl_tools.training.shielded_policy import ShieldedPolicy


def load_team(folder: Path, config: RunConfig, *, deterministic: bool = False) -> Policy:
    """The frozen team of a run: a `TeamPolicy`, or a `ShieldedPolicy` where the run has a shield.

    The env is made once, for its keys and its cap. ``deterministic`` play forgets the floors that were calibrated.

    Raises:
        FileNotFoundError: the run has no checkpoint yet.
        ConfigError: the shield's models are of another env.
    """
    path = checkpoint_path(folder)
    policy = load_policy(path, deterministic=deterministic)
    if config.safety.shield == "none":
        return policy
    env = config.factory()()
    try:
        team = make_shield(
            config.safety, env, policy.groups, num_envs=config.num_envs, gamma=config.ippo.gamma
        )
    finally:
        env.close()
    assert team is not None
    tensors, _ = load_checkpoint(path)
    team.load(tensors["shield"].numpy())
    if deterministic:
        # The floors were counted while actions were sampled: of the policy's favourites they say nothing.
        team.policies_changed()
    return ShieldedPolicy(policy, team)


def evaluate_run(
    config: RunConfig,
    policy: Policy,
    *,
    episodes: int,
    on_episode: Callable[[EpisodeLog], None] | None = None,
) -> Evaluation:
    """Evaluate a policy on the run's env, with the run's evaluation seeds and horizons."""
    return evaluate(
        config.factory(),
        policy,
        episodes=episodes,
        seed=config.eval_seed,
        horizons=config.final_policy_eval_horizons,
        on_episode=on_episode,
    )


def certify_run(config: RunConfig, evaluation: Evaluation, policy: Policy) -> dict[str, Any] | None:
    """The certificate of an evaluated team; None where the env gives no costs."""
    if not evaluation.costed:
        return None
    env = config.factory()()
    cap, name = infer_episode_cap(env), env.env_name
    env.close()
    certificate = certify_evaluation(
        evaluation,
        policy,
        env_name=name,
        horizons=config.final_policy_eval_horizons,
        cap=cap,
        confidence=config.final_policy_eval_confidence,
    )
    return {**certificate, "seed": config.eval_seed, "shield": config.safety.shield}
