"""A frozen team behind its frozen shield: plays anywhere, is calibrated, certified and explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.safety.shield import Decision
from marl_tools.training.evaluate import Policy, play_episode
from marl_tools.training.shielding import ShieldedTeam


class ShieldedPolicy:
    """Any policy, or the user's own function, behind a shield that learns no more and has no patience.

    Decisions go to the episode logs as overrides, fallbacks, bound and slack, and to the env's picture if it has
    ``mark_overrides``. Before each episode call `begin` with the env, an `EpisodeRecorder` outermost, whose
    ``state_key()`` is read.

    Args:
        policy: observations and infos to actions; with ``mask`` it must heed ``infos[agent]["action_mask"]``.
        team: models and shield. Its tables must stay as they are while this plays.
    """

    def __init__(self, policy: Policy, team: ShieldedTeam) -> None:
        self.policy, self.team = policy, team
        self.shield = team.shield.frozen(1)
        self.last: Decision | None = None
        self._env: Any = None
        self._fresh = False
        self._spaces = {agent: group.spaces for group in team.groups for agent in group.agents}

    def seed(self, seed: int) -> None:
        self.policy.seed(seed)

    def begin(self, env: EpisodeRecorder) -> None:
        """An episode starts in ``env``, which has just been reset.

        Raises:
            ConfigError: the env has no ``state_key()``.
        """
        if getattr(env, "state_key", None) is None:
            raise ConfigError(f"{env} has no state_key(): a shield needs the exact Markov state")
        self._env, self._fresh = env, True
        self.shield.begin(np.array([True]), self.team.world.key_ids([env.state_key()]))

    def __call__(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None = None
    ) -> dict[AgentID, Any]:
        """Actions for the agents that have an observation, after the shield."""
        env, team = self._env, self.team
        if env is None:
            raise ConfigError("call begin(env) after each reset: the shield must know which env it guards")
        if not self._fresh:
            self.shield.observe(team.world.key_ids([env.state_key()]), np.array([False]))
        self._fresh = False
        active = np.array([[agent in observations for agent in team.agents]])
        if team.masks_actions:
            proposed = self._propose(observations, self._masked(observations, infos or {}))
            decision = self.shield.play(proposed, active)
        else:
            proposed = self._propose(observations, infos)
            decision = self.shield.decide(proposed, active)
        self.last = decision
        self._note(decision)
        return {
            agent: self._spaces[agent].to_env(decision.executed[:, index])[0]
            for index, agent in enumerate(team.agents)
            if agent in observations
        }

    def _propose(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]] | None
    ) -> NDArray[np.int64]:
        proposals = self.policy(observations, infos)
        row = [
            int(self._spaces[agent].to_policy(proposals[agent])) if agent in proposals else 0
            for agent in self.team.agents
        ]
        return np.array([row], np.int64)

    def _masked(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Mapping[str, Any]]
    ) -> dict[AgentID, dict[str, Any]]:
        admitted = dict(zip(self.team.agents, self.shield.masks(), strict=True))
        return {agent: {**infos.get(agent, {}), "action_mask": admitted[agent][0]} for agent in observations}

    def _note(self, decision: Decision) -> None:
        for key, values in self.shield.notes(decision)[0].items():
            for agent, value in values.items():
                self._env.builder.note(key, agent, value)
        mark = getattr(self._env, "mark_overrides", None)
        if mark is not None:
            mark([self.team.agents[index] for index in np.flatnonzero(decision.overridden[0])])


class _Counted(ShieldedPolicy):
    """Remembers its decisions."""

    def __init__(self, policy: Policy, team: ShieldedTeam) -> None:
        super().__init__(policy, team)
        self.decisions: list[Decision] = []

    def _note(self, decision: Decision) -> None:
        self.decisions.append(decision)


def calibrate(env: EpisodeRecorder, policy: Policy, team: ShieldedTeam, *, episodes: int, seed: int) -> None:
    """Fill the opponents' floors from ``episodes`` episodes in which policies and shields hold still.

    Only proposals at keys that the world model knows are counted. Afterwards the tables hold the floors.

    Raises:
        ConfigError: the shield masks actions: what is sampled under a mask is no proposal.
    """
    if team.masks_actions:
        raise ConfigError("shield_calibrate needs shield_action='override': under a mask nothing is proposed")
    counted = _Counted(policy, team)
    for number in range(episodes):
        play_episode(env, counted, seed + number)
    keys = np.array([decision.key_ids[0] for decision in counted.decisions], np.int64)
    for agent in range(len(team.agents)):
        active = np.array([decision.active[0, agent] for decision in counted.decisions], bool) & (keys >= 0)
        proposed = np.array([decision.proposed[0, agent] for decision in counted.decisions], np.int64)
        team.opponents.add(keys[active], agent, proposed[active])
    team.settle_floors()


def explain(env: EpisodeRecorder, shielded: ShieldedPolicy, *, seed: int, step: int) -> list[dict[str, Any]]:
    """Why the shield let each agent do what it did at a step (from 1) of the episode with this seed.

    One row an agent: proposed and executed action, Q and price of both, V, slack before the step, what is known
    (draws of the joint action), and the rule that decided.

    Raises:
        ConfigError: the episode is over before that step.
    """
    team, shield = shielded.team, shielded.shield
    shielded.last, slack = None, shield.slack
    shielded.seed(seed)
    observations, infos = env.reset(seed=seed)
    shielded.begin(env)
    for _ in range(step):
        if not env.builder.open:
            raise ConfigError(
                f"step {step}: the episode with seed {seed} ends after {env.builder.length} steps"
            )
        slack = shield.slack.copy()
        live = {agent: observations[agent] for agent in env.agents}
        observations, _, _, _, infos = env.step(shielded(live, infos))
    decision = shielded.last
    if decision is None:
        raise ConfigError(f"step {step}: steps are counted from 1")
    rows = []
    for index, agent in enumerate(team.agents):
        if not decision.active[0, index]:
            continue
        tables = shield.shields[index].tables
        at = (decision.k_left[0], tables.rows(decision.key_ids)[0])
        proposed, executed = int(decision.proposed[0, index]), int(decision.executed[0, index])
        value, price = float(tables.value[at]), tables.price[at].astype(float) * team.config.level
        rows.append(
            {
                "agent": agent,
                "proposed": proposed,
                "executed": executed,
                "Q proposed": min(1.0, value + float(price[proposed])),
                "Q executed": min(1.0, value + float(price[executed])),
                "V": value,
                "price": float(price[proposed]),
                "slack": float(slack[0, index]) * team.config.level,
                "steps left": int(decision.k_left[0]),
                "rule": _rule(decision, index, team),
            }
        )
    return rows


def _rule(decision: Decision, index: int, team: ShieldedTeam) -> str:
    if decision.key_ids[0] < 0:
        return "unknown key: least risk known"
    if decision.fallback[0, index]:
        return "no action is safe: least risk"
    if decision.overridden[0, index]:
        return f"{team.config.rule}: the price is above the slack"
    return f"{team.config.rule}: the slack pays the price"
