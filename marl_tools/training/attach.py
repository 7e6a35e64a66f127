"""A shield and a certificate for anyone's policy, without our trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.checks import at_least
from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers import EpisodeRecorder, infer_episode_cap
from marl_tools.safety.config import Rule, ShieldConfig
from marl_tools.safety.shield import TeamShield
from marl_tools.training.build import Model, Support, build_team
from marl_tools.training.certificate import Censored
from marl_tools.training.claims import certify_evaluation
from marl_tools.training.evaluate import Policy, evaluate, play_episode
from marl_tools.training.shielded_policy import ShieldedPolicy
from marl_tools.vector.serial import env_groups

MakeEnv = Callable[..., Any]
PlainPolicy = Callable[..., Mapping[AgentID, Any]]


def attach_shield(
    make_env: MakeEnv,
    policy: Policy | PlainPolicy,
    *,
    max_risk: float = 0.05,
    horizon: int | None = None,
    learn_episodes: int = 1000,
    seed: int = 0,
    rule: Rule = "ledger",
    model: Model = "learned",
    support: Support = "declared",
    **settings: Any,
) -> ShieldedPolicy:
    """Put a policy behind a shield that learns the env for ``learn_episodes`` episodes and is frozen then.

    The policy must hold still: its proposals are counted from the first episode on, for the others' floors. The first
    plays of an action of unknown risk are let pass (``patience``, 64) while the shield learns, never afterwards.

    >>> from marl_tools.envs import crossing
    >>> hasty = attach_shield(crossing.parallel_env, lambda obs: dict.fromkeys(obs, 1), learn_episodes=20)
    >>> certify_policy(crossing.parallel_env, hasty, episodes=50)["bound_horizon"]
    40

    A torch policy needs one line around it::

        def act(observations):
            return {agent: int(net(torch.as_tensor(obs)).argmax()) for agent, obs in observations.items()}

    Args:
        make_env: an `EnvFactory`, or a function that returns a parallel env with ``state_key()``, whose infos hold each
            agent's ``cost``.
        policy: observations of the live agents, and their infos if it takes two arguments, to actions. One that draws
            at random has a ``seed(seed)`` method.
        max_risk: allowed probability, for each agent, of a violation within the horizon.
        horizon: steps that the bound covers; None: the env's episode cap.
        learn_episodes: 0 suits ``model="exact"``.
        seed: of the first of those episodes.
        rule, model, support: see `ShieldConfig` and `build_team`.
        settings: more of `ShieldConfig`, such as ``patience`` or ``opponent_mode``.

    Raises:
        ConfigError: an env without key, cost or cap, actions that are not Discrete, or settings that cannot work.
    """
    at_least(0)("learn_episodes", learn_episodes)
    env = _factory(make_env)()
    try:
        team = build_team(
            env,
            env_groups(env),
            lambda steps: ShieldConfig(horizon=steps, max_risk=max_risk, rule=rule, **settings),
            horizon=horizon,
            model=model,
            support=support,
        )
        player = as_policy(policy)
        learner = _Learner(player, team)
        for number in range(learn_episodes):
            play_episode(env, learner, seed + number)
            # Tables are made anew a hundred times at most: on large envs that takes longer than an episode.
            if number % max(1, learn_episodes // 100) == 0:
                team.refresh()
    finally:
        env.close()
    if team.config.opponent_mode == "monotone_floor" and not team.masks_actions:
        team.settle_floors()
    else:
        team.refresh()
    return ShieldedPolicy(player, team)


def certify_policy(
    make_env: MakeEnv,
    policy: Policy | PlainPolicy,
    *,
    episodes: int = 1000,
    seed: int = 1_000_000,
    horizons: Sequence[int] = (1, 10, 50, 100, 200),
    confidence: float = 0.95,
    bonferroni: bool = False,
    censored: Censored = "refuse",
) -> dict[str, Any]:
    """The certificate of any frozen policy, shielded or not, from fresh episodes; see `certify` for what it holds.

    ``seed`` must be none that the policy or its shield learned from.

    Raises:
        ConfigError: the env gave no costs, or fewer than one episode.
    """
    factory = _factory(make_env)
    player = as_policy(policy)
    evaluation = evaluate(factory, player, episodes=episodes, seed=seed, horizons=horizons)
    env = factory()
    cap, name = infer_episode_cap(env), env.env_name
    env.close()
    return certify_evaluation(
        evaluation,
        player,
        env_name=name,
        horizons=horizons,
        cap=cap,
        confidence=confidence,
        bonferroni=bonferroni,
        censored=censored,
    )


def _factory(make_env: MakeEnv) -> EnvFactory:
    return make_env if isinstance(make_env, EnvFactory) else EnvFactory(make_env=make_env)


def as_policy(policy: Policy | PlainPolicy) -> Policy:
    """A plain function as a `Policy`; one that has a ``seed`` method is one already."""
    return policy if hasattr(policy, "seed") else _Function(policy)  # pyright: ignore[reportReturnType]


class _Function:
    """A function of the observations, or of observations and infos, that draws nothing at random."""

    def __init__(self, function: PlainPolicy) -> None:
        self._function = function
        if hasattr(function, "probabilities"):
            self.probabilities = function.probabilities  # pyright: ignore[reportFunctionMemberAccess]
        parameters = inspect.signature(function).parameters.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._takes_infos = len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)

    def seed(self, seed: int) -> None:
        """Nothing to seed."""

    def __call__(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> dict[AgentID, Any]:
        actions = self._function(observations, infos) if self._takes_infos else self._function(observations)
        if not isinstance(actions, Mapping):
            raise ConfigError(
                f"the policy returned {str(actions)[:80]}, not a mapping: return {{agent: action}} for every agent observed"
            )
        return dict(actions)


class _Learner(ShieldedPolicy):
    """Plays behind the team's own shield, patience included, and counts what happens."""

    def begin(self, env: EpisodeRecorder) -> None:
        super().begin(env)
        self._ended = np.zeros(len(self.team.agents), bool)

    def observe(
        self, terminations: Mapping[AgentID, bool], infos: Mapping[AgentID, Mapping[str, Any]]
    ) -> None:
        decision, violated, terminated = self._outcome(terminations, infos)
        self._ended |= terminated
        self.team.count_proposals(decision)
        self.team.count_draws(decision, self._key_ids(), violated[None], self._ended[None].copy())

    def _take_shield(self) -> TeamShield:
        return self.team.shield

    def _key_ids(self) -> NDArray[np.int32]:
        return self.team.models.key_ids([self._env.state_key()])
