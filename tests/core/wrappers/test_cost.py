"""Costs beside the rewards."""

from __future__ import annotations

import math

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError, EnvError
from marl_tools.core.wrappers import AddCost, EpisodeRecorder
from marl_tools.core.wrappers.cost import StepResult
from tests.envs_for_tests import Team, play, real_env


def dies(step: StepResult) -> dict[str, float]:
    return {agent: float(dead) for agent, dead in step.terminations.items()}


def test_the_cost_is_a_function_of_what_the_step_returned():
    seen = []

    def cost(step):
        seen.append(step)
        return dict.fromkeys(step.rewards, 0.5)

    team = Team(max_cycles=2)
    trace = play(AddCost(team, cost))
    assert [step[:4] for step in seen] == [result[:4] for result in trace[1:]]
    assert all(step.env is team for step in seen)
    assert all(info == {"cost": 0.5} for result in trace[1:] for info in result[4].values())


def test_a_reset_carries_no_cost_and_the_envs_own_infos_stay_clean():
    env = AddCost(Team(max_cycles=2, faults=("reuse",)), dies)
    play(env)
    _, infos = env.reset()
    assert infos == {"agent_0": {}, "agent_1": {}, "agent_2": {}}


def test_costs_reach_the_episode_log_per_agent_with_the_first_violation():
    env = EpisodeRecorder(AddCost(Team(max_cycles=5, deaths={"agent_1": 3}), dies))
    play(env)
    log = env.last_episode
    assert log.costs == {"agent_0": 0.0, "agent_1": 1.0, "agent_2": 0.0}
    assert log.first_violation == {"agent_0": None, "agent_1": 3, "agent_2": None}


def test_a_cost_between_agents_of_a_real_env():
    def near(step):
        """Cost 1 for an agent that another one comes nearer than 0.3 to (relative positions are obs[10:14])."""
        return {
            agent: float(np.linalg.norm(obs[10:14].reshape(2, 2), axis=1).min() < 0.3)
            for agent, obs in step.observations.items()
        }

    env = EpisodeRecorder(AddCost(real_env("simple_spread", max_cycles=100), near))
    play(env, seed=3, actions=3)
    costs = env.last_episode.costs
    # Nearness is mutual: whoever pays is one of at least two.
    assert sum(cost > 0 for cost in costs.values()) in (0, 2, 3)
    assert sum(costs.values()) > 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-0.5, "-0.5"), (math.nan, "nan"), (math.inf, "inf"), (None, "None"), ("much", "'much'"), (1j, "1j")],
)
def test_a_cost_that_is_no_finite_number_above_0_is_an_error_that_names_all(value, shown):
    env = AddCost(Team(), lambda step: {**dict.fromkeys(step.rewards, 0.0), "agent_1": value})
    env.reset()
    with pytest.raises(EnvError, match=rf"'agent_1' in team_v0 at step 1 must be finite.*got {shown};"):
        env.step(dict.fromkeys(env.agents, 0))


def test_a_missing_agent_is_an_error_and_one_too_many_is_not():
    env = AddCost(Team(), lambda step: {"agent_0": 0.0, "agent_1": 0.0, "ghost": 1.0})
    env.reset()
    with pytest.raises(EnvError, match=r"'agent_2' in team_v0 at step 1 .* got none"):
        env.step(dict.fromkeys(env.agents, 0))
    env = AddCost(Team(max_cycles=1), lambda step: {**dict.fromkeys(step.rewards, 0.0), "ghost": 1.0})
    assert "ghost" not in play(env)[-1][4]


def test_numbers_of_other_kinds_become_plain_floats():
    env = AddCost(Team(n=1, max_cycles=1), lambda step: dict.fromkeys(step.rewards, np.bool_(True)))
    cost = play(env)[-1][4]["agent_0"]["cost"]
    assert (cost, type(cost)) == (1.0, float)


def test_a_cost_that_is_there_already_is_replaced_only_on_request():
    inner = AddCost(Team(max_cycles=1), dies)
    with pytest.raises(
        ConfigError, match=r"team_v0 reports infos\['agent_0'\]\['cost'\] itself.*replace=True"
    ):
        play(AddCost(inner, dies))
    trace = play(AddCost(inner, lambda step: dict.fromkeys(step.rewards, 2.0), replace=True))
    assert [info["cost"] for info in trace[-1][4].values()] == [2.0] * 3


def test_a_cost_that_cannot_be_called_is_refused():
    with pytest.raises(ConfigError, match="cost must be a function of a StepResult, got 1"):
        AddCost(Team(), 1)
