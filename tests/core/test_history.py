"""The builder of episodes apart from any env, and the clock."""

from __future__ import annotations

import math
from typing import Any

import pytest

from marl_tools.core.errors import EnvError
from marl_tools.core.history import Clock, EpisodeBuilder


def advance(builder: EpisodeBuilder, agents: list[str], *, t: int = 1, **ends: str) -> Any:
    """One step with reward 1 for each of ``agents`` and those that end, who are gone afterwards."""
    stepped = [*agents, *ends]
    return builder.step(
        dict.fromkeys(stepped, 1.0),
        {agent: ends.get(agent) == "terminated" for agent in stepped},
        {agent: ends.get(agent) == "truncated" for agent in stepped},
        {},
        agents,
        t=t,
    )


def test_the_log_comes_with_the_last_agents_end_and_only_once():
    builder = EpisodeBuilder()
    assert builder.episode == -1
    assert builder.start("team", ["a", "b"], seed=0, t=10) is None
    assert advance(builder, ["b"], t=11, a="terminated") is None
    log = advance(builder, [], t=12, b="truncated")
    assert (log.episode, log.t_start, log.t_end, log.seed) == (0, 10, 12, 0)
    assert log.lengths == {"a": 1, "b": 2}
    assert advance(builder, [], t=13) is None
    assert builder.interrupt(13) is None


def test_an_episode_without_a_step_leaves_neither_log_nor_gap_in_the_numbers():
    builder = EpisodeBuilder()
    builder.start("team", ["a"], seed=None, t=0)
    assert builder.start("team", ["a"], seed=None, t=0) is None
    assert builder.episode == 0
    assert builder.interrupt(0) is None
    builder.start("team", ["a"], seed=None, t=0)
    assert advance(builder, [], a="terminated").episode == 0


def test_a_start_in_the_middle_returns_the_interrupted_episode():
    builder = EpisodeBuilder()
    builder.start("team", ["a"], seed=1, t=0)
    advance(builder, ["a"])
    log = builder.start("team", ["a"], seed=2, t=1)
    assert (log.ends, log.seed, log.interrupted) == ({"a": "interrupted"}, 1, True)
    assert builder.episode == 1


def test_a_reward_for_an_agent_that_has_ended_is_not_counted():
    builder = EpisodeBuilder()
    builder.start("team", ["a", "b"], seed=None, t=0)
    advance(builder, ["b"], a="terminated")
    # Whether or not the env goes on listing it.
    for agents in (["b"], ["a", "b"]):
        builder.step({"a": 100.0, "b": 1.0}, {}, {}, {}, agents, t=2)
    assert builder.returns == {"a": 1.0, "b": 3.0}


def test_the_first_violation_is_the_first_step_with_a_cost_above_0():
    builder = EpisodeBuilder()
    builder.start("team", ["a"], seed=None, t=0)
    for cost in (0.0, 0.25, 0.5):
        builder.step({"a": 0.0}, {}, {}, {"a": {"cost": cost}}, ["a"], t=1)
    snapshot = builder.snapshot(3)
    assert (snapshot.costs, snapshot.first_violation) == ({"a": 0.75}, {"a": 2})


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"cost": math.nan}, r"team: infos\['a'\]\['cost'\] must be finite and >= 0, got nan"),
        ({"cost": -1}, "must be finite and >= 0, got -1.0"),
        ({"cost": None}, r"infos\['a'\]\['cost'\] must be a number, got None"),
        ({"MARL_LOG_METRIC x": "fast"}, r"\['MARL_LOG_METRIC x'\] must be a number, got 'fast'"),
    ],
)
def test_a_cost_or_metric_that_is_no_number_is_an_error_that_names_env_and_agent(info, message):
    builder = EpisodeBuilder()
    builder.start("team", ["a"], seed=None, t=0)
    with pytest.raises(EnvError, match=message):
        builder.step({"a": 0.0}, {}, {}, {"a": info}, ["a"], t=1)


def test_a_clock_counts_in_strides_and_by_name():
    clock = Clock(stride=3)
    clock.tick("a")
    clock.tick("b")
    clock.tick("a")
    assert (clock.frames, clock.frames_by_env) == (9, {"a": 6, "b": 3})


def test_a_resumed_builder_numbers_its_episodes_on():
    builder = EpisodeBuilder()
    builder.resume(40)
    builder.start("env", ["a"], seed=0, t=0)
    assert builder.episode == 40
