"""The trainer of a run, with the constraint and the shield that its settings ask for."""

from __future__ import annotations

from marl_tools.core.factory import EnvFactory
from marl_tools.core.logging import log
from marl_tools.core.types import EnvCopies, VectorEnv
from marl_tools.core.wrappers.cost import cost_is_missing
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.safety import make_constraint, make_shield, warn_if_patience_is_short
from marl_tools.training.contracts import Peers
from marl_tools.training.ippo import IPPO
from marl_tools.training.policy import RandomPolicy
from marl_tools.training.shielding import ShieldedTeam
from marl_tools.training.slices import SpreadEnvs


def make_trainer(
    config: RunConfig, factory: EnvFactory, envs: VectorEnv | SpreadEnvs, peers: Peers | None = None
) -> tuple[IPPO, ShieldedTeam | None]:
    """The trainer, and the shield in it if there is one.

    Raises:
        ConfigError: settings that the env cannot have.
    """
    agents = tuple(agent for group in envs.groups for agent in group.agents)
    config.check_team(agents)
    if config.safety.constraint != "none":
        _check_costs(config, factory, envs)
    shield = _make_shield(config, factory, envs)
    trainer = IPPO(
        envs,
        config.ippo,
        seed=config.seed,
        total_frames=config.timesteps,
        constraint=make_constraint(config.safety, agents),
        shield=shield,
        asynchronous=config.stepping.asynchronous,
        peers=peers,
    )
    return trainer, shield


def _check_costs(config: RunConfig, factory: EnvFactory, envs: EnvCopies) -> None:
    """Refuse a constraint without costs before anything is played or written; one random step of an own env shows it."""
    policy = RandomPolicy(envs.groups, seed=config.seed)
    env = factory()
    try:
        observations, infos = env.reset(seed=config.seed)
        actions = policy({agent: observations[agent] for agent in env.agents}, infos)
        *_, infos = env.step(actions)
        for agent in actions:
            if (infos.get(agent) or {}).get("cost") is None:
                raise cost_is_missing(env.env_name, agent, needed_by="constraint")
    finally:
        env.close()


def _make_shield(config: RunConfig, factory: EnvFactory, envs: EnvCopies) -> ShieldedTeam | None:
    if config.safety.shield == "none":
        return None
    # On an env of many keys this takes long, and so does every update of its tables.
    log("preparing the shield", type="shield")
    env = factory()
    try:
        team = make_shield(config.safety, env, envs.groups, num_envs=config.num_envs, gamma=config.ippo.gamma)
    finally:
        env.close()
    assert team is not None
    if team.models.num_keys:
        log(f"the shield knows {team.models.num_keys:,} keys to begin with", type="shield")
    elif config.safety.shield_support == "declared":
        log(f"{config.env} declares no outcomes: the shield learns all of them from play", type="shield")
    warn_if_patience_is_short(config.safety, team)
    return team
