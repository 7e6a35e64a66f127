"""The recent past of episodes, and moving averages over it that are exact."""

from __future__ import annotations

import math

from hypothesis import given, settings, strategies as st

from marl_tools.core.averages import History, MovingAverage
from tests.core.test_types import episode

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
        # Ties in time between two envs are broken by the env of which a whole episode was seen first.
        order = list(dict.fromkeys(log.env_name for log in whole))
        whole.sort(key=lambda log: order.index(log.env_name))
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
