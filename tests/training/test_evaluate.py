"""Evaluation: its seeds, its figures against a hand calculation, and that it cleans up."""

import numpy as np
import pytest
from scipy import stats

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.training.evaluate import Evaluation, evaluate, mean_interval, play_episode
from tests.envs_for_tests import Team


class Constant:
    """Plays one action and remembers its seeds and whom it was asked for."""

    def __init__(self, fail_at=None):
        self.seeds, self.asked, self.fail_at = [], [], fail_at

    def seed(self, seed):
        self.seeds.append(seed)

    def __call__(self, observations, infos=None):
        self.asked.append(tuple(observations))
        if len(self.asked) == self.fail_at:
            raise ArithmeticError("the policy broke")
        return dict.fromkeys(observations, 1)


class Silent(Constant):
    """Gives nobody an action, which the env does not take."""

    def __call__(self, observations, infos=None):
        return {}


class Closing(Team):
    closed = 0

    def close(self):
        type(self).closed += 1


def factory(**kwargs):
    return EnvFactory(make_env=Closing, kwargs={"n": 2, "max_cycles": 6, **kwargs})


@pytest.fixture(autouse=True)
def _count_from_zero():
    Closing.closed = 0


def test_episode_i_has_seed_base_plus_i_for_env_and_policy_and_its_log_says_eval():
    policy = Constant()
    result = evaluate(factory(), policy, episodes=4, seed=100)
    assert policy.seeds == [log.seed for log in result.episodes] == [100, 101, 102, 103]
    assert [log.split for log in result.episodes] == ["eval"] * 4
    assert [log.episode for log in result.episodes] == [0, 1, 2, 3]
    assert Closing.closed == 1


def test_an_episode_can_be_replayed_alone():
    traces = []
    for episodes, seed in ((3, 7), (1, 9)):
        seen = []

        class Watching(Constant):
            def __call__(self, observations, infos=None, seen=seen):
                seen.append({agent: obs.tolist() for agent, obs in observations.items()})
                return super().__call__(observations, infos)

        evaluate(factory(), Watching(), episodes=episodes, seed=seed)
        traces.append(seen[-6:])
    assert traces[0] == traces[1]


def test_returns_at_horizons_are_running_sums_and_end_with_the_episode():
    # The reward is the step's number: 1, 2, ... 6; agent 1 dies after 3 steps.
    result = evaluate(
        factory(deaths={"agent_1": 3}), Constant(), episodes=2, seed=0, horizons=(1, 3, 4, 6, 50)
    )
    assert result.horizon_returns == {
        1: [{"agent_0": 1.0, "agent_1": 1.0}] * 2,
        3: [{"agent_0": 6.0, "agent_1": 6.0}] * 2,
        4: [{"agent_0": 10.0, "agent_1": 6.0}] * 2,
        6: [{"agent_0": 21.0, "agent_1": 6.0}] * 2,
        50: [{"agent_0": 21.0, "agent_1": 6.0}] * 2,
    }
    assert result.mean_returns() == {"mean over agents": 13.5, "agent_0": 21.0, "agent_1": 6.0}


def test_only_the_living_are_asked_for_an_action():
    policy = Constant()
    evaluate(factory(deaths={"agent_1": 2}), policy, episodes=1, seed=0)
    assert policy.asked == [("agent_0", "agent_1")] * 2 + [("agent_0",)] * 4


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_intervals_are_students(confidence):
    values = np.random.default_rng(0).normal(3, 2, size=9)
    row = mean_interval(values, confidence)
    expected = stats.t.interval(confidence, 8, loc=values.mean(), scale=stats.sem(values))
    assert row["mean"] == pytest.approx(values.mean())
    assert row["interval"] == pytest.approx(expected)


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert mean_interval([2.0], 0.95) == {"mean": 2.0, "interval": None}
    assert np.isnan(mean_interval([], 0.95)["mean"])


def test_the_summary_covers_returns_costs_lengths_and_horizons():
    summary = evaluate(
        factory(births={"agent_1": 2}), Constant(), episodes=3, seed=0, horizons=(1, 6)
    ).summary(0.9)
    assert (summary["episodes"], summary["confidence"]) == (3, 0.9)
    assert summary["length"] == {"mean": 6.0, "interval": [6.0, 6.0]}
    assert summary["returns"]["agents"]["agent_1"]["mean"] == 3 + 4 + 5 + 6
    assert summary["returns"]["mean_over_agents"]["mean"] == (21 + 18) / 2
    assert summary["costs"]["mean_over_agents"]["mean"] == 0.0
    # Agent 1 was not born at horizon 1: the mean is over who was there.
    assert summary["horizons"]["1"]["agents"].keys() == {"agent_0"}
    assert summary["horizons"]["1"]["mean_over_agents"]["mean"] == 1.0
    assert summary["horizons"]["6"] == summary["returns"]


def test_an_evaluation_of_nothing_is_refused_before_an_env_is_made():
    with pytest.raises(ConfigError, match="episodes=0"):
        evaluate(factory(), Constant(), episodes=0, seed=0)
    assert Closing.closed == 0
    assert Evaluation().summary()["episodes"] == 0


@pytest.mark.parametrize("fault", ["policy", "env"])
def test_the_env_is_closed_also_when_something_breaks(fault):
    if fault == "policy":
        with pytest.raises(ArithmeticError):
            evaluate(factory(), Constant(fail_at=4), episodes=2, seed=0)
    else:
        with pytest.raises(KeyError):
            evaluate(factory(), Silent(), episodes=2, seed=0)
    assert Closing.closed == 1


@pytest.mark.parametrize(
    ("method", "note"),
    [("step", "in team_v0, episode seed 7, step 1"), ("reset", "episode seed 7, at its reset")],
)
def test_what_an_env_raises_carries_the_episodes_seed_and_step(method, note, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("a bug in the env")

    monkeypatch.setattr(Closing, method, fail)
    with pytest.raises(ZeroDivisionError) as fault:
        evaluate(factory(), Constant(), episodes=1, seed=7)
    assert note in fault.value.__notes__[-1]


def test_each_log_is_handed_over_when_its_episode_ends():
    seen = []
    result = evaluate(factory(), Constant(), episodes=3, seed=0, on_episode=seen.append)
    assert seen == result.episodes


def test_an_episode_whose_env_keeps_its_dead_in_agents_still_ends():
    env = EnvFactory(make_env=Team, kwargs={"n": 2, "max_cycles": 3, "faults": ("keep_agents",)})()
    assert play_episode(env, Constant(), 0, (2,)) == {2: {"agent_0": 3.0, "agent_1": 3.0}}
    assert env.last_episode.length == 3


def test_an_episode_that_may_never_end_is_told_once_with_the_remedy(monkeypatch):
    lines = []
    monkeypatch.setattr("marl_tools.training.evaluate.log", lambda message, **_: lines.append(message))
    monkeypatch.setattr("marl_tools.training.evaluate._LONG", 3)
    evaluate(EnvFactory(make_env=Team, kwargs={"max_cycles": 2}), Constant(), episodes=1, seed=0)
    assert lines == []
    evaluate(EnvFactory(make_env=Team, kwargs={"max_cycles": 9}), Constant(), episodes=1, seed=0)
    assert lines == [
        "an episode of team_v0 is still running after 3 steps. An env that never ends needs a cap (--cap N)"
    ]
