"""A trained team out of its run folder: its policy, behind its shield if it has one, and what it is certified for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_tools.core.errors import ConfigError
from marl_tools.core.logging import log
from marl_tools.core.types import EpisodeLog
from marl_tools.core.wrappers import EpisodeRecorder, infer_episode_cap
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.safety import make_shield
from marl_tools.training.checkpoint_folder import CheckpointFolder
from marl_tools.training.claims import certify_evaluation
from marl_tools.training.evaluate import Evaluation, Policy, evaluate
from marl_tools.training.policy import TeamPolicy, group_to_json, load_policy, team_policy
from marl_tools.training.shielded_policy import ShieldedPolicy, calibrate
from marl_tools.training.shielding import ShieldedTeam
from marl_tools.vector.serial import env_groups


def load_team(
    folder: Path,
    config: RunConfig,
    *,
    checkpoint: str = "latest",
    deterministic: bool = False,
    shield: ShieldedTeam | None = None,
) -> Policy:
    """The frozen team of a run: a `TeamPolicy`, or a `ShieldedPolicy` where the run has a shield.

    The env is made once, for its spaces, keys and cap. ``deterministic`` play forgets the floors that were calibrated.
    ``shield`` is one that the run has at hand and that stays as it is: the env's law, which may take long to enumerate,
    is taken from it.

    Raises:
        FileNotFoundError: the run has no such checkpoint yet.
        CorruptFileError: the checkpoint is damaged.
        ConfigError: the checkpoint is of another env or another version of this package, or the shield's models are.
    """
    tensors, state = CheckpointFolder(folder).load(checkpoint)
    policy = team_policy(tensors, state, where=folder, deterministic=deterministic)
    env = config.factory()()
    try:
        _check_env(folder, state, policy, env)
        shield = shield or make_shield(
            config.safety, env, policy.groups, num_envs=config.num_envs, gamma=config.ippo.gamma
        )
    finally:
        env.close()
    if shield is None:
        return policy
    if not isinstance(saved := state.get("shield"), Mapping):
        raise ConfigError(f"{folder}: its checkpoint has no shield, but its config.json asks for one")
    team = shield.restored(saved)
    if deterministic:
        # The floors were counted while actions were sampled: of the policy's favourites they say nothing.
        team.policies_changed()
    return ShieldedPolicy(policy, team)


def calibrate_shield(folder: Path, config: RunConfig, shield: ShieldedTeam) -> None:
    """Fill the floors under the others' behaviour by episodes of a run's latest team, which holds still meanwhile."""
    episodes = config.safety.shield_calibrate
    log(f"calibrating the shield over {episodes} episodes", type="shield")
    env = config.factory()()
    try:
        # Seeds of their own: those of the evaluation must be fresh.
        seed = config.eval_seed + config.final_policy_eval_seed_offset
        calibrate(env, load_policy(folder), shield, episodes=episodes, seed=seed)
    finally:
        env.close()


def _check_env(folder: Path, state: Mapping[str, Any], policy: TeamPolicy, env: EpisodeRecorder) -> None:
    """Refuse a team that was trained elsewhere: its agents may even have the right names."""
    if state.get("env_name") != env.env_name:
        raise ConfigError(
            f"the checkpoint in {folder} is of a team for {state.get('env_name')}, but its config.json names "
            f"{env.env_name}: put back the files that belong together"
        )
    trained, here = (
        [group_to_json(group) for group in groups] for groups in (policy.groups, env_groups(env))
    )
    if trained != here:
        raise ConfigError(
            f"the checkpoint in {folder} is of a team for {env.env_name} with other agents or spaces: {_brief(trained)}; "
            f"this one has {_brief(here)}. Use the env settings that it was trained with (env_kwargs, n_agents, preprocess)."
        )


def _brief(groups: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{', '.join(group['agents'])} with {group['observation_space']} and {group['action_space']}"
        for group in groups
    )


def evaluate_run(
    config: RunConfig,
    policy: Policy,
    *,
    episodes: int,
    on_episode: Callable[[EpisodeLog], None] | None = None,
) -> Evaluation:
    """Evaluate a policy on the run's env, with the run's evaluation seeds and horizons."""
    return evaluate(
        config.factory(judged=True),
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
