"""Session and trial figures against values worked out by hand, their invariances, and out of run folders."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from marl_tools.bench.statistics import (
    Session,
    consistency,
    efficiency,
    random_baseline,
    session_of_run,
    stability,
    trial_metrics,
)
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import JsonLines, load_from_file, read_jsonl, save_to_file
from marl_tools.core.run_logs import read_episodes
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train
from tests.core.test_types import episode


def array(*values):
    return np.array(values, float)


def test_a_session_worked_out_by_hand():
    # Strengths 1, 4, 2, 5.
    session = Session([-9, -6, -8, -5], [10, 20, 40, 50], [1, 2, 4, 8], random_return=-10)
    figures = session.metrics()
    assert figures.strength == 3.0
    assert (figures.max_strength, figures.final_strength) == (5.0, 5.0)
    assert figures.sample_efficiency == pytest.approx((1 / 10 + 4 / 20 + 2 / 40 + 5 / 50) / 12)
    assert figures.training_efficiency == pytest.approx((1 / 1 + 4 / 2 + 2 / 4 + 5 / 8) / 12)
    # One fall, by 2, over 1 + 4 + 2.
    assert figures.stability == pytest.approx(1 - 2 / 7)


def test_a_trial_worked_out_by_hand():
    sessions = [
        Session([1, 3], [10, 20], [1, 2], random_return=0),
        Session([3, 5], [10, 20], [1, 2], random_return=0),
    ]
    trial = trial_metrics(sessions)
    assert (trial.sessions, trial.strength, trial.max_strength, trial.final_strength) == (2, 3.0, 4.0, 4.0)
    # Standard deviations of 1 and 1 around means of 2 and 4.
    assert trial.consistency == pytest.approx(1 - 2 * (1 + 1) / (2 + 4))
    assert trial.stability == 1.0
    efficiencies = [(1 / 10 + 3 / 20) / 4, (3 / 10 + 5 / 20) / 8]
    assert trial.sample_efficiency == pytest.approx(sum(efficiencies) / 2)


def test_log_points_without_a_return_yet_are_left_out():
    full = Session([math.nan, 2, math.nan, 4], [5, 10, 15, 20], [1, 2, 3, 4], random_return=1)
    assert full.strengths.tolist() == [1, 3]
    assert full.metrics() == Session([2, 4], [10, 20], [2, 4], random_return=1).metrics()


@pytest.mark.parametrize(
    ("returns", "undefined"),
    [
        (
            [],
            {
                "strength",
                "max_strength",
                "final_strength",
                "sample_efficiency",
                "training_efficiency",
                "stability",
            },
        ),
        ([3.0], {"stability"}),
        ([0.0, 0.0], {"sample_efficiency", "training_efficiency", "stability"}),
        ([2.0, -2.0], {"sample_efficiency", "training_efficiency"}),
        ([0.0, 2.0], {"stability"}),
    ],
)
def test_what_is_undefined_is_nan_and_nothing_else_is(returns, undefined):
    count = range(1, len(returns) + 1)
    figures = vars(Session(returns, count, count, random_return=0.0).metrics())
    assert {name for name, value in figures.items() if math.isnan(value)} == undefined


def test_an_efficiency_over_no_steps_or_unknown_ones_is_undefined():
    assert math.isnan(efficiency(array(1, 2), array(0, 5)))
    assert math.isnan(efficiency(array(1, 2), array(1, math.nan)))


def test_consistency_needs_two_sessions_with_something_to_compare():
    assert math.isnan(consistency(np.ones((1, 4))))
    assert math.isnan(consistency(np.ones((3, 0))))
    assert math.isnan(consistency(np.zeros((3, 2))))
    far = [Session([1, 2], [1, 2], [1, 2], random_return=0), Session([1, 2], [8, 9], [1, 2], random_return=0)]
    assert math.isnan(trial_metrics(far).consistency), "no frames in common"
    empty = Session([], [], [], random_return=0)
    trial = trial_metrics([far[0], empty])
    assert math.isnan(trial.consistency)
    assert trial.strength == 1.5, "a session without points takes no part in the mean"


strengths = hnp.arrays(float, st.integers(2, 12), elements=st.floats(-100, 100).map(lambda x: round(x, 3)))


@given(s=strengths, scale=st.floats(0.01, 100), shift=st.floats(-1000, 1000))
def test_figures_follow_the_unit_of_reward_and_not_its_origin(s, scale, shift):
    frames = np.arange(1, len(s) + 1) * 10
    plain = Session(s, frames, frames, random_return=0.0).metrics()
    other = Session(scale * s + shift, frames, frames, random_return=shift).metrics()
    for name in ("strength", "max_strength", "final_strength"):
        assert getattr(other, name) == pytest.approx(
            scale * getattr(plain, name), abs=1e-8 * (1 + abs(shift))
        )
    if np.abs(s[:-1]).sum() > 1:
        assert other.stability == pytest.approx(plain.stability, abs=1e-4)
    if abs(s.sum()) > 1:
        assert other.sample_efficiency == pytest.approx(plain.sample_efficiency, rel=1e-3, abs=1e-5)


@given(s=strengths)
def test_a_run_that_never_falls_is_stable_and_every_fall_costs_what_it_should(s):
    rising = np.sort(s)
    if np.abs(rising[:-1]).sum():
        assert stability(rising) == 1.0
    positive = np.abs(s) + 1.0
    assert stability(positive) <= 1.0
    assert stability(positive) == pytest.approx(
        1 - sum(max(0.0, a - b) for a, b in itertools.pairwise(positive)) / positive[:-1].sum()
    )


@given(s=hnp.arrays(float, st.integers(1, 10), elements=st.floats(0.5, 100)), late=st.floats(1.5, 10))
def test_strength_that_comes_later_is_less_efficient(s, late):
    frames = np.arange(1, len(s) + 1) * 7.0
    assert efficiency(s, late * frames) == pytest.approx(efficiency(s, frames) / late)
    early = efficiency(np.sort(s)[::-1], frames)
    assert early >= efficiency(np.sort(s), frames) - 1e-12
    assert 1 / frames[-1] - 1e-12 <= early <= 1 / frames[0] + 1e-12


@settings(max_examples=50)
@given(
    s=hnp.arrays(float, st.tuples(st.integers(2, 5), st.integers(1, 6)), elements=st.floats(1, 100)),
    order=st.randoms(),
)
def test_sessions_that_are_alike_are_consistent_and_their_order_is_nothing(s, order):
    assert consistency(np.tile(s[:1], (3, 1))) == pytest.approx(1.0)
    rows = list(s)
    order.shuffle(rows)
    assert consistency(np.array(rows)) == pytest.approx(consistency(s))
    assert consistency(s) <= 1.0 + 1e-12


def test_sessions_with_other_log_points_are_compared_at_common_frames():
    line = Session([1, 2, 3, 4, 5], [10, 20, 30, 40, 50], [1] * 5, random_return=0)
    sparse = Session([1.5, 4.5], [15, 45], [1] * 2, random_return=0)
    assert trial_metrics([line, sparse]).consistency == pytest.approx(1.0)
    longer = Session([1, 2, 3, 4, 5, 60], [10, 20, 30, 40, 50, 60], [1] * 6, random_return=0)
    assert trial_metrics([line, longer]).consistency == pytest.approx(1.0), "beyond 50 there is no pair"


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (([1, 2], [1], [1, 2]), "2, 1, 2 returns, frames and optimiser steps"),
        (([1, 2], [3, 3], [1, 2]), r"frames \[3.0, 3.0\] do not increase"),
    ],
)
def test_log_points_that_make_no_session_are_refused(lists, message):
    with pytest.raises(ConfigError, match=message):
        Session(*lists, random_return=0)
    with pytest.raises(ConfigError, match="at least one"):
        trial_metrics([])


# --- out of run folders -------------------------------------------------------------------------------------------


def write_run(folder, train_returns, eval_returns=()):
    """A run of one episode, 10 frames and 4 optimiser steps an update; random play earns 1 for a and -3 for b."""
    rows = [("train", index, value) for index, value in enumerate(train_returns)]
    rows += [("eval", update, value) for update, values in eval_returns for value in values]
    with JsonLines(folder / "episodes.jsonl") as lines:
        for split, update, value in rows:
            log = episode(t_end=10 * update + 10, split=split, update=update, returns={"a": value, "b": 0.0})
            lines.append(log.to_json())
    with JsonLines(folder / "updates.jsonl") as lines:
        for update in range(len(train_returns)):
            groups = {"x": {"optimiser_steps": 4}, "y": {"optimiser_steps": 2}}
            seconds = {"collect_seconds": 1.0, "update_seconds": 1.0}
            lines.append({"update": update, "frames": 10 * update + 10, "groups": groups, **seconds})
    baseline = {"mean_over_agents": {"mean": -1.0}, "agents": {"a": {"mean": 1.0}, "b": {"mean": -3.0}}}
    save_to_file({"returns": baseline}, folder, "evaluation-random.json")
    return folder


def test_a_log_point_an_update_with_the_moving_average_over_the_runs_own_baseline(tmp_path):
    run = write_run(tmp_path, [1.0, 3.0, 8.0])
    team = session_of_run(run, window=2)
    # Means over both agents of 0.5, 1.5 and 4, averaged over two episodes, above -1.
    assert team.strengths.tolist() == [1.5, 2.0, 3.75]
    assert (team.frames.tolist(), team.optimiser_steps.tolist()) == ([10, 20, 30], [4, 8, 12])
    assert session_of_run(run, "a", window=2).strengths.tolist() == [0.0, 1.0, 4.5]
    assert session_of_run(run, "a", window=2, random_return=0.0).strengths.tolist() == [1.0, 2.0, 5.5]
    assert (random_baseline(run), random_baseline(run, "b")) == (-1.0, -3.0)


def test_evaluations_on_the_way_are_log_points_of_their_own(tmp_path):
    run = write_run(tmp_path, [1.0, 3.0, 8.0], [(0, [2.0, 4.0]), (2, [6.0, 8.0, 10.0])])
    session = session_of_run(run, "a", split="eval", window=1)
    assert session.strengths.tolist() == [2.0, 7.0]
    assert (session.frames.tolist(), session.optimiser_steps.tolist()) == ([10, 30], [4, 12])
    with pytest.raises(ConfigError, match="no evaluations on the way: train with eval_every"):
        session_of_run(write_run(tmp_path / "plain", [1.0]), split="eval")
    with pytest.raises(ConfigError, match="nowhere is not a run folder"):
        session_of_run(tmp_path / "nowhere")


def test_a_run_without_a_baseline_or_such_an_agent_says_so(tmp_path):
    run = write_run(tmp_path, [1.0])
    with pytest.raises(ConfigError, match=r"no random baseline of agent 'c': there are a, b"):
        session_of_run(run, "c")
    with pytest.raises(ConfigError, match=r"no train episode of agent 'c'"):
        session_of_run(run, "c", random_return=0.0)
    save_to_file({"returns": [1]}, run, "evaluation-random.json")
    with pytest.raises(CorruptFileError, match=r"evaluation-random.json: no mean returns"):
        random_baseline(run)
    (run / "evaluation-random.json").unlink()
    with pytest.raises(ConfigError, match=r"final_policy_eval_episodes above 0, or give random_return"):
        session_of_run(run)


@pytest.mark.slow
def test_the_figures_of_real_runs_follow_from_their_own_files(tmp_path):
    results = train(
        RunConfig.from_flat(
            {
                "env": "crossing",
                "native": True,
                "timesteps": 300,
                "num_envs": 2,
                "num_runs": 2,
                "rollouts": 50,
                "hidden": (8,),
                "video_episodes": 0,
                "final_policy_eval_episodes": 2,
                "out": str(tmp_path / "runs"),
            }
        )
    )
    sessions = [session_of_run(result.folder) for result in results]
    for result, session in zip(results, sessions, strict=True):
        updates = list(read_jsonl(result.folder / "updates.jsonl"))
        baseline = load_from_file(result.folder, "evaluation-random.json")["returns"]["mean_over_agents"][
            "mean"
        ]
        expected = [row["mean_return"] - baseline for row in updates]
        assert session.strengths.tolist() == pytest.approx(expected)
        assert session.optimiser_steps.tolist() == [16, 32, 48]
        assert baseline == result.before.mean_returns()["mean over agents"]
        assert sum(log.split == "train" for log in read_episodes(result.folder / "episodes.jsonl")) > 3
    trial = trial_metrics(sessions)
    assert trial.sessions == 2
    assert trial.strength == pytest.approx(np.mean([session.strengths.mean() for session in sessions]))
    assert all(math.isfinite(value) for value in vars(trial).values())
