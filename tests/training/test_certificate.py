"""Certificates: counts against brute force, horizons, cut-off episodes, and intervals that hold the exact probability."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import beta

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.types import EpisodeLog
from marl_tools.envs import corridor, crossing
from marl_tools.safety.exact import solve, violation_probability
from marl_tools.training.attach import certify_policy
from marl_tools.training.certificate import TEAM, certify, violation_step
from marl_tools.training.evaluate import evaluate
from tests.envs_for_tests import Team
from tests.keyed_envs import Dice, Rink

AGENTS = ("a", "b")


def log(*, length=10, violations=None, ends="truncated", lengths=None, joined=None) -> EpisodeLog:
    agents = AGENTS
    return EpisodeLog(
        env_name="x",
        episode=0,
        t_start=0,
        t_end=length,
        wall_time=0.0,
        length=length,
        returns=dict.fromkeys(agents, 0.0),
        costs=dict.fromkeys(agents, 0.0),
        lengths={**dict.fromkeys(agents, length), **(lengths or {})},
        ends=dict.fromkeys(agents, ends) if isinstance(ends, str) else ends,
        first_violation={**dict.fromkeys(agents), **(violations or {})},
        joined=joined or {},
    )


def subject(certificate, h, who):
    return next(row for row in certificate["horizons"] if row["h"] == h)["subjects"][who]


STEPS = st.none() | st.integers(1, 10)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(STEPS, STEPS), min_size=1, max_size=30),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
    st.booleans(),
)
def test_counts_and_intervals_equal_brute_force(steps, confidence, bonferroni):
    logs = [log(violations=dict(zip(AGENTS, pair, strict=True))) for pair in steps]
    horizons = (1, 4, 10)
    certificate = certify(logs, horizons=horizons, cap=10, confidence=confidence, bonferroni=bonferroni)
    alpha = (1 - confidence) / (3 if bonferroni else 1)
    for h in horizons:
        for who, of in (("a", [0]), ("b", [1]), (TEAM, [0, 1])):
            row, n = subject(certificate, h, who), len(steps)
            k = sum(any(pair[i] is not None and pair[i] <= h for i in of) for pair in steps)
            lo = 0.0 if k == 0 else beta.ppf(alpha / 2, k, n - k + 1)
            hi = 1.0 if k == n else beta.ppf(1 - alpha / 2, k + 1, n - k)
            assert (row["violations"], row["episodes"], row["censored"]) == (k, n, 0)
            assert row["estimate"] == k / n
            assert row["interval"] == pytest.approx([lo, hi], abs=1e-9)


def test_a_horizon_beyond_the_cap_is_reported_as_the_cap_and_costs_bonferroni_nothing():
    logs = [log(violations={"a": 9}), log()]
    certificate = certify(logs, horizons=(5, 20, 50), cap=10, bonferroni=True)
    assert [(row["horizon"], row["h"]) for row in certificate["horizons"]] == [(5, 5), (20, 10), (50, 10)]
    two = certify(logs, horizons=(5, 10), cap=10, bonferroni=True)
    assert subject(certificate, 10, "a") == subject(two, 10, "a")
    assert subject(certificate, 10, "a")["violations"] == 1


@pytest.mark.parametrize("end", ["truncated", "capped", "interrupted"])
def test_an_episode_cut_off_before_the_horizon_says_nothing_unless_it_had_violated(end):
    cut, violated, whole = log(length=4, ends=end), log(length=4, ends=end, violations={"a": 2}), log()
    certificate = certify([cut, violated, whole], horizons=(4, 5), cap=10)
    assert subject(certificate, 4, "a")["violations"] == 1
    late = subject(certificate, 5, "a")
    assert late["refused"].startswith("1 of 3 episodes were cut off before step 5")
    assert "interval" not in late
    assert subject(certificate, 5, "b")["censored"] == 2
    worst = certify([cut, violated, whole], horizons=(5,), cap=10, censored="worst_case")
    assert subject(worst, 5, "a")["estimate"] == pytest.approx(2 / 3)
    assert subject(worst, 5, "a")["violations"] == 1


def test_an_agent_that_terminated_is_safe_from_then_on_and_one_cut_off_leaves_the_team_open():
    ends = {"a": "terminated", "b": "truncated"}
    certificate = certify([log(ends=ends, lengths={"a": 3})], horizons=(10,), cap=10)
    assert "interval" in subject(certificate, 10, "a")
    assert "interval" in subject(certificate, 10, TEAM)
    certificate = certify([log(ends=ends, lengths={"a": 3, "b": 7})], horizons=(10,), cap=10)
    assert "interval" in subject(certificate, 10, "a")
    assert "refused" in subject(certificate, 10, "b")
    assert "refused" in subject(certificate, 10, TEAM)


def test_a_late_joiner_that_stays_to_the_cap_is_not_cut_off():
    late = log(lengths={"b": 7}, joined={"b": 3})
    assert "interval" in subject(certify([late], horizons=(10,), cap=10), 10, "b")
    left = log(lengths={"b": 4}, joined={"b": 3})
    assert "interval" in subject(certify([left], horizons=(7,), cap=10), 7, "b")
    assert "refused" in subject(certify([left], horizons=(8,), cap=10), 8, "b")


def test_the_log_of_a_real_late_joiner_says_when_it_came():
    factory = EnvFactory(make_env=Rink, kwargs={"n": 3, "births": {"agent_1": 2}})
    result = evaluate(factory, Dice(3), episodes=3, seed=0)
    for episode in result.episodes:
        assert episode.joined["agent_1"] + episode.lengths["agent_1"] == episode.length == 6
        assert "agent_0" not in episode.joined
    certificate = certify_policy(factory, Dice(3), episodes=20, horizons=(6,))
    assert "interval" in subject(certificate, 6, "agent_1")
    assert EpisodeLog.from_json(result.episodes[0].to_json()) == result.episodes[0]


def test_bounds_stand_beside_the_horizons_that_they_cover_and_the_teams_is_their_sum_up_to_1():
    logs = [log()] * 200
    certificate = certify(logs, horizons=(5, 10), cap=10, bounds={"a": 0.05, "b": 0.7}, bound_horizon=5)
    rows = {who: subject(certificate, 5, who) for who in (*AGENTS, TEAM)}
    assert [rows[who]["bound"] for who in rows] == pytest.approx([0.05, 0.7, 0.75])
    assert all(row["below_bound"] is (row["interval"][1] <= row["bound"]) for row in rows.values())
    assert "bound" not in subject(certificate, 10, "a")
    full = certify(logs, horizons=(5,), cap=10, bounds={"a": 0.5, "b": 0.7}, bound_horizon=10)
    assert subject(full, 5, TEAM)["bound"] == 1.0


def test_no_episodes_and_no_costs_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        certify([], horizons=(1,), cap=None)
    with pytest.raises(ConfigError, match=r"team_v0 gives no costs.*AddCost"):
        certify_policy(EnvFactory(make_env=Team, kwargs={"max_cycles": 3}), Dice(3), episodes=2)


def test_the_first_violation_of_a_team_is_the_earliest_of_its_agents():
    assert violation_step(log(violations={"a": 7, "b": 3}), TEAM) == 3
    assert violation_step(log(violations={"a": 7}), TEAM) == 7
    assert violation_step(log(), TEAM) is None


@pytest.mark.parametrize(
    ("make_env", "kwargs"),
    [
        (crossing.parallel_env, {"max_cycles": 20}),
        (corridor.parallel_env, {"length": 3, "slip": 0.1, "max_cycles": 20}),
    ],
)
def test_the_interval_of_uniform_play_holds_the_exact_violation_probability(make_env, kwargs):
    env = make_env(**kwargs)
    model = solve(env)
    uniform = [np.full((len(model.keys), n), 1 / n) for n in model.table.actions]
    exact = violation_probability(model, uniform, 20)
    certificate = certify_policy(
        EnvFactory(make_env=make_env, kwargs=kwargs),
        Dice(model.table.actions[0]),
        episodes=300,
        horizons=(1, 5, 20),
        confidence=0.999,
        bonferroni=True,
    )
    assert certificate["bound_note"].startswith("no shield")
    for h in (1, 5, 20):
        for index, agent in enumerate(model.agents):
            lo, hi = subject(certificate, h, agent)["interval"]
            assert lo <= exact.agents[h, index] <= hi
        lo, hi = subject(certificate, h, TEAM)["interval"]
        assert lo <= exact.team[h] <= hi
        assert math.isclose(hi - lo, 0, abs_tol=0.25)


def test_an_interval_of_coin_tosses_misses_no_oftener_than_it_says():
    rng = np.random.default_rng(0)
    missed, runs, p = 0, 400, 0.07
    for _ in range(runs):
        logs = [log(violations={"a": 1 if rng.random() < p else None}) for _ in range(60)]
        lo, hi = subject(certify(logs, horizons=(1,), cap=10, confidence=0.9), 1, "a")["interval"]
        missed += not lo <= p <= hi
    assert missed <= 0.1 * runs + 3 * math.sqrt(0.09 * runs)


def test_logs_written_before_agents_could_join_late_are_still_read():
    row = log().to_json()
    del row["joined"]
    assert EpisodeLog.from_json(row) == replace(log(), joined={})
