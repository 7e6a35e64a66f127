"""The builder of episodes apart from any env, and the moving averages over the recent past."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.core.averages import MovingAverage
from marl_tools.core.errors import EnvError
from marl_tools.core.history import Clock, EpisodeBuilder, History
from tests.core.test_types import episode


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


logs = st.lists(
    st.builds(
        lambda t, name, split, returns, left: episode(
            t_end=t,
            env_name=name,
            split=split,
            returns=returns,
            ends=dict.fromkeys(returns, "interrupted" if left else "truncated"),
        ),
        st.integers(0, 50),
        st.sampled_from(["easy", "hard"]),
        st.sampled_from(["train", "eval"]),
        st.dictionaries(st.sampled_from("ab"), st.floats(-1e6, 1e6), min_size=1),
        st.booleans(),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=60)
@given(
    episodes=logs,
    window=st.integers(1, 8),
    agent=st.none() | st.sampled_from("ab"),
    split=st.sampled_from(["train", "eval"]),
    env_name=st.none() | st.sampled_from(["easy", "hard"]),
)
def test_the_moving_average_is_that_of_the_last_whole_episodes(episodes, window, agent, split, env_name):
    history = History()
    history.extend(episodes)
    whole = [log for log in episodes if log.split == split and "interrupted" not in log.ends.values()]
    if env_name is not None:
        whole = [log for log in whole if log.env_name == env_name]
    else:
        # Ties in time between two envs are broken by the env that was seen first.
        order = list(dict.fromkeys((log.env_name, log.split) for log in episodes))
        whole.sort(key=lambda log: order.index((log.env_name, log.split)))
    last = sorted(whole, key=lambda log: log.t_end)[-window:]
    if agent is None:
        values = [sum(log.returns.values()) / len(log.returns) for log in last]
    else:
        values = [log.returns[agent] for log in last if agent in log.returns]
    average = history.ma(window, agent, split, env_name)
    if values:
        assert average == math.fsum(values) / len(values)
    else:
        assert math.isnan(average)
    assert history.recent(window, split=split, env_name=env_name) == last


@settings(deadline=None, max_examples=60)
@given(episodes=logs, maxlen=st.integers(1, 6), window=st.integers(0, 8), data=st.data())
def test_an_average_that_was_followed_is_to_the_bit_the_one_that_is_asked_for_at_the_end(
    episodes, maxlen, window, data
):
    followed, fresh = History(maxlen), History(maxlen)
    queries = [("a", "train", None), (None, "train", None), (None, "eval", "easy"), ("b", "train", "hard")]
    for log in episodes:
        followed.add(log)
        if data.draw(st.booleans()):
            for query in queries:
                followed.ma(window, *query)
    fresh.extend(episodes)
    for query in queries:
        left, right = followed.ma(window, *query), fresh.ma(window, *query)
        assert left == right or (math.isnan(left) and math.isnan(right))


def test_interrupted_episodes_push_no_whole_ones_out_of_the_window():
    history = History(maxlen=3)
    for t in range(20):
        ends = {"a": "interrupted" if t >= 3 else "truncated"}
        history.add(episode(t_end=t, returns={"a": float(t)}, ends=ends))
    assert history.ma(3) == 1.0
    assert [log.t_end for log in history.recent()] == [0, 1, 2]
    assert len(history) == 6


@given(
    values=st.lists(st.none() | st.floats(-1e300, 1e300) | st.sampled_from([1e-300, math.inf, -math.inf])),
    window=st.integers(1, 5),
)
def test_a_moving_average_is_the_correctly_rounded_mean_of_its_window_at_every_step(values, window):
    average = MovingAverage(window)
    assert math.isnan(average.value)
    for end, value in enumerate(values, start=1):
        average.add(value)
        last = [number for number in values[max(0, end - window) : end] if number is not None]
        if {math.inf, -math.inf} <= set(last):
            expected = math.nan
        else:
            expected = math.fsum(last) / len(last) if last else math.nan
        assert average.value == expected or (math.isnan(average.value) and math.isnan(expected))


def test_a_window_of_nothing_is_empty_and_an_agent_nobody_knows_has_no_average():
    history = History()
    history.add(episode())
    assert history.recent(0) == []
    assert math.isnan(history.ma(agent="ghost"))


def test_only_the_recent_past_is_kept_per_env_and_split():
    history = History(maxlen=2)
    for t in range(5):
        history.add(episode(t_end=t))
        history.add(episode(t_end=t, split="eval"))
    assert len(history) == 4
    assert [log.t_end for log in history.recent()] == [3, 4]
    assert sorted(log.t_end for log in history) == [3, 3, 4, 4]
    assert history.ma() == 2.5
    history.clear()
    assert len(history) == 0
    assert math.isnan(history.ma())


def test_a_resumed_builder_numbers_its_episodes_on():
    builder = EpisodeBuilder()
    builder.resume(40)
    builder.start("env", ["a"], seed=0, t=0)
    assert builder.episode == 40
