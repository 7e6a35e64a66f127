"""A frozen team behind its frozen shield: plays anywhere, is calibrated, certified and explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_tools.core.errors import ConfigError
from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.recorder import EpisodeRecorder
from marl_tools.safety.decision import Decision
from marl_tools.safety.shield import Probabilities, TeamShield
from marl_tools.training.evaluate import Policy, play_episode
from marl_tools.training.factored_audit import audit_of
from marl_tools.training.shielding import ShieldedTeam

Infos = Mapping[AgentID, Mapping[str, Any]]


class ShieldedPolicy:
    """Any policy, or the user's own function, behind a shield that learns no more and has no patience.

    Decisions go to the episode logs as overrides, fallbacks, bound and slack, and to the env's picture if it has
    ``mark_overrides``. Before each episode call `begin` with the env, an `EpisodeRecorder` outermost, whose
    ``state_key()`` is read; after each step call `observe`, or ``audit`` sees nothing. `evaluate` does both.

    Args:
        policy: observations and infos to actions; with ``mask`` it must heed ``infos[agent]["action_mask"]``.
        team: models and shield. Its tables must stay as they are while this plays.
    """

    def __init__(self, policy: Policy, team: ShieldedTeam) -> None:
        self.policy, self.team = policy, team
        self.shield = self._take_shield()
        self.audit = audit_of(team)
        self.last: Decision | None = None
        self._env: Any = None
        self._fresh = False
        self._spaces = {agent: group.spaces for group in team.groups for agent in group.agents}

    def seed(self, seed: int) -> None:
        self.policy.seed(seed)

    def fork(self) -> ShieldedPolicy:
        """The same policy behind a shield of its own, for an env that is played side by side with another."""
        return ShieldedPolicy(self.policy, self.team)

    def begin(self, env: EpisodeRecorder) -> None:
        """An episode starts in ``env``, which has just been reset.

        Raises:
            ConfigError: the env has no ``state_key()``.
        """
        if getattr(env, "state_key", None) is None:
            raise ConfigError(f"{env} has no state_key(): a shield needs the exact Markov state")
        self._env, self._fresh = env, True
        self.shield.begin(np.array([True]), self._key_ids())
        self.audit.start(self.shield.bounds[0])

    def __call__(self, observations: Mapping[AgentID, Any], infos: Infos | None = None) -> dict[AgentID, Any]:
        """Actions for the agents that have an observation, after the shield.

        Raises:
            ConfigError: no `begin` before, or a policy that gives an agent no action, or one that it does not have.
        """
        team = self.team
        if self._env is None:
            raise ConfigError("call begin(env) after each reset: the shield must know which env it guards")
        if not self._fresh:
            self.shield.observe(self._key_ids(), np.array([False]))
        self._fresh = False
        active = np.array([[agent in observations for agent in team.agents]])
        legal = [self._legal(agent, observations, infos or {}) for agent in team.agents]
        likely = self._likely(observations, infos) if hasattr(self.policy, "probabilities") else None
        if team.masks_actions:
            admitted = dict(zip(team.agents, self.shield.masks(legal, likely), strict=True))
            proposed = self._propose(*self._masked(observations, infos or {}, admitted))
            decision = self.shield.play(proposed, active)
        else:
            proposed = self._propose(observations, infos)
            decision = self.shield.decide(proposed, active, likely, legal)
        self.last = decision
        self._note(decision)
        return {
            agent: self._spaces[agent].to_env(decision.executed[:, index])[0]
            for index, agent in enumerate(team.agents)
            if agent in observations
        }

    def observe(self, terminations: Mapping[AgentID, bool], infos: Infos) -> None:
        """What the last actions led to, for the audit of what the bound rests on.

        Raises:
            ConfigError: an agent that acted got no cost.
        """
        decision, violated, terminated = self._outcome(terminations, infos)
        self.audit.add(decision, self._env.state_key(), violated, terminated)

    def _outcome(
        self, terminations: Mapping[AgentID, bool], infos: Infos
    ) -> tuple[Decision, NDArray[np.bool_], NDArray[np.bool_]]:
        """The last decision, and which agents (A,) violated and terminated after it."""
        assert self.last is not None, "a policy is called before it observes"
        agents = self.team.agents
        costs = np.array([(infos.get(agent) or {}).get("cost", np.nan) for agent in agents], np.float64)
        terminated = np.array([bool(terminations.get(agent)) for agent in agents])
        return self.last, self.team.violations(costs[None], self.last.active)[0], terminated

    def _take_shield(self) -> TeamShield:
        return self.team.shield.frozen(1)

    def _key_ids(self) -> NDArray[np.int32]:
        return self.team.models.find_keys([self._env.state_key()])

    def _propose(self, observations: Mapping[AgentID, Any], infos: Infos | None) -> NDArray[np.int64]:
        proposals = self.policy(observations, infos)
        row = np.zeros((1, len(self.team.agents)), np.int64)
        for index, (agent, limit) in enumerate(zip(self.team.agents, self.team.actions, strict=True)):
            if agent not in observations:
                continue
            if agent not in proposals:
                raise ConfigError(f"the policy gave agent {agent!r} no action in {self.team.env_name}")
            row[0, index] = self._spaces[agent].to_policy(proposals[agent])
            if not 0 <= row[0, index] < limit:
                raise ConfigError(
                    f"the policy gave agent {agent!r} the action {proposals[agent]!r} in {self.team.env_name}, which is "
                    f"none of {self._spaces[agent].action_space}"
                )
        return row

    def _likely(self, observations: Mapping[AgentID, Any], infos: Infos | None) -> Probabilities:
        """The policy's own probabilities, computed where the shield asks for them; 0 of agents that do not act."""

        def probabilities(_: NDArray[np.intp], agents: NDArray[np.intp]) -> NDArray[np.float64]:
            names = [self.team.agents[index] for index in agents.tolist()]
            laws = self.policy.probabilities(  # pyright: ignore[reportAttributeAccessIssue]
                {name: observations[name] for name in names if name in observations}, infos
            )
            rows = np.zeros((len(names), max(self.team.actions)))
            for row, name in zip(rows, names, strict=True):
                if name in laws:
                    row[: len(laws[name])] = laws[name]
            return rows

        return probabilities

    def _legal(
        self, agent: AgentID, observations: Mapping[AgentID, Any], infos: Infos
    ) -> NDArray[np.bool_] | None:
        """(1, n) what the env itself allows an agent, None for everything."""
        if self._spaces[agent].masked:
            mask = observations[agent]["action_mask"] if agent in observations else None
        else:
            mask = (infos.get(agent) or {}).get("action_mask")
        return None if mask is None else np.asarray(mask, bool)[None]

    def _masked(
        self, observations: Mapping[AgentID, Any], infos: Infos, admitted: Mapping[AgentID, NDArray[np.bool_]]
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Observations and infos whose action masks are the shield's, wherever the env has its own."""
        seen = {
            agent: {**obs, "action_mask": admitted[agent][0].astype(np.int8)}
            if self._spaces[agent].masked
            else obs
            for agent, obs in observations.items()
        }
        told = {
            agent: {**(infos.get(agent) or {}), "action_mask": admitted[agent][0]} for agent in observations
        }
        return seen, told

    def _note(self, decision: Decision) -> None:
        for key, values in self.shield.notes(decision)[0].items():
            for agent, value in values.items():
                self._env.builder.note(key, agent, value)
        mark = getattr(self._env, "mark_overrides", None)
        if mark is not None:
            mark([self.team.agents[index] for index in np.flatnonzero(decision.overridden[0])])


class _Counted(ShieldedPolicy):
    """Counts what its policy proposes."""

    def _note(self, decision: Decision) -> None:
        super()._note(decision)
        self.team.count_proposals(decision)


def calibrate(env: EpisodeRecorder, policy: Policy, team: ShieldedTeam, *, episodes: int, seed: int) -> None:
    """Fill the opponents' floors from ``episodes`` episodes in which policies and shields hold still.

    Only proposals at keys that the world model knows are counted, and earlier ones are dropped: a second calibration
    with the same seeds counts no draw twice. Afterwards the tables hold the floors.

    Raises:
        ConfigError: the shield masks actions: what is sampled under a mask is no proposal.
    """
    if team.masks_actions:
        raise ConfigError("shield_calibrate needs shield_action='override': under a mask nothing is proposed")
    if not team.models.counts_floors:
        raise ConfigError(
            f"shield_calibrate={episodes} for {team.env_name}: what is looked at in factors covers any behaviour of the "
            "others, so there are no floors to count; use shield_calibrate=0"
        )
    team.forget_floors()
    counted = _Counted(policy, team)
    for number in range(episodes):
        play_episode(env, counted, seed + number)
    team.settle_floors()


def explain(env: EpisodeRecorder, shielded: ShieldedPolicy, *, seed: int, step: int) -> list[dict[str, Any]]:
    """Why the shield let each agent do what it did at a step (from 1) of the episode with this seed.

    One row an agent: proposed and executed action, Q of both, V, price of the proposal, slack before the step, what is
    known (draws of the joint action as proposed by this agent and as executed, and how often the proposal was tried
    while its risk was unknown), and the rule that decided.

    Raises:
        ConfigError: the episode is over before that step.
    """
    shield = shielded.shield
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
    active = np.flatnonzero(decision.active[0])
    return [_explain_agent(index, decision, slack[0, index], shielded) for index in active.tolist()]


def _explain_agent(index: int, decision: Decision, slack: int, shielded: ShieldedPolicy) -> dict[str, Any]:
    team, rule = shielded.team, shielded.shield.shields[index]
    look = rule.look(decision.key_ids, decision.k_left, np.array([slack], np.int32))
    proposed, executed = int(decision.proposed[0, index]), int(decision.executed[0, index])
    value, price = float(look.value[0]), look.price[0] * team.config.level
    played = np.where(decision.active[0], decision.executed[0], team.actions)
    asked = np.where(np.arange(len(played)) == index, proposed, played)
    draws = team.models.draws(index, decision.key_ids.repeat(2), np.stack([asked, played]))
    return {
        "agent": team.agents[index],
        "proposed": proposed,
        "executed": executed,
        "Q proposed": min(1.0, value + float(price[proposed])),
        "Q executed": min(1.0, value + float(price[executed])),
        "V": value,
        "price": float(price[proposed]),
        "slack": float(look.slack[0]) * team.config.level,
        "steps left": int(rule.steps_ahead(decision.k_left)[0]),
        "draws proposed": int(draws[0]),
        "draws executed": int(draws[1]),
        "tried unknown": team.shield.shields[index].tried(int(decision.key_ids[0]), proposed),
        "rule": _rule(decision, index, team),
    }


def _rule(decision: Decision, index: int, team: ShieldedTeam) -> str:
    if decision.key_ids[0] < 0:
        return "unknown key: least risk known"
    if decision.fallback[0, index]:
        return "no action is safe: least risk"
    if decision.overridden[0, index]:
        return f"{team.config.rule}: the price is above the slack"
    return f"{team.config.rule}: the slack pays the price"
