"""Methods of a plan side by side: figures worked out by hand, what is missing, what may be said, and a plan of real runs."""

import json

import numpy as np
import pytest

from marl_tools.bench.comparison import compare
from marl_tools.bench.statistics import smallest_p
from marl_tools.core.errors import ConfigError
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train
from tests.bench.plan_folder import finished_run, run_id, write_plan

TASKS = ["near", "far"]
QUICK = {"reps": 100}


@pytest.fixture(scope="module")
def six_seeds(tmp_path_factory):
    """Six seeds on two tasks: ``good`` always earns more and violates less than ``bad``; ``even`` is now this, now that."""
    folder = tmp_path_factory.mktemp("plan")
    write_plan(folder, ["good", "bad", "even"], TASKS, seeds=6)
    for seed in range(6):
        for task, scale in (("near", 1.0), ("far", 100.0)):
            for method, final, violating in (
                ("good", 9 + seed % 3, 0),
                ("bad", 2 + seed % 2, 3),
                ("even", 8 + 2 * (seed % 3), 1),
            ):
                finished_run(
                    folder / "runs" / run_id(method, task, seed),
                    final=scale * final,
                    random=0.0,
                    violation=0.1 * violating,
                    upper=0.05 if method == "good" else 0.5,
                    violating=violating,
                    seed=seed,
                )
    return folder


def pair(comparison, measure, *methods):
    [found] = [one for one in comparison.pairs if (one.measure, one.x, one.y) == (measure, *methods)]
    return found


def aggregate(comparison, method, statistic="iqm", measure="score"):
    key = (method, measure, statistic)
    [found] = [one for one in comparison.aggregates if (one.method, one.measure, one.statistic) == key]
    return found


def test_scores_are_relative_to_random_play_and_the_best_method(six_seeds):
    comparison = compare(six_seeds, **QUICK)
    scales = {scale.task: (scale.random, scale.best, scale.best_method) for scale in comparison.scales}
    assert scales == {"near": (0, 10, "good"), "far": (0, 1000, "good")}
    assert (comparison.common_tasks, comparison.common_seeds) == (TASKS, list(range(6)))
    assert aggregate(comparison, "good", "mean").value == pytest.approx(1)
    assert aggregate(comparison, "bad", "mean").value == pytest.approx(0.25)
    assert aggregate(comparison, "bad", "optimality_gap").value == pytest.approx(0.75)
    # Of 12 scores three go at either end; 0.2 and 0.3 are equally many.
    assert aggregate(comparison, "bad").value == pytest.approx(0.25)
    assert aggregate(comparison, "bad", "mean", "violation").value == pytest.approx(0.3)
    for one in comparison.aggregates:
        assert one.low <= one.value <= one.high
        assert one.runs == 12


def test_a_cell_has_the_means_of_its_runs_and_how_many_keep_the_risk(six_seeds):
    cells = {(cell.method, cell.task): cell for cell in compare(six_seeds, **QUICK).cells}
    assert len(cells) == 6
    bad = cells["bad", "far"]
    assert (bad.planned, bad.finished, bad.certified, bad.under_risk) == (6, 6, 6, 0)
    assert bad.figures["final_return"].mean == pytest.approx(250)
    assert bad.figures["training_violations"].mean == pytest.approx(0.75)
    assert bad.figures["final_return"].low < 250 < bad.figures["final_return"].high
    assert "overrides" not in bad.figures
    assert cells["good", "near"].under_risk == 6


def test_a_difference_is_claimed_where_all_runs_agree_and_only_there(six_seeds):
    comparison = compare(six_seeds, **QUICK)
    clear, unclear = pair(comparison, "score", "good", "bad"), pair(comparison, "score", "good", "even")
    assert clear.improvement == 1.0
    assert clear.p == smallest_p(12)
    # Nine tests are made: three pairs by three measures.
    assert clear.p_holm == pytest.approx(9 * smallest_p(12))
    assert unclear.difference == pytest.approx(0)
    assert unclear.p_holm == 1
    lower = pair(comparison, "violation", "good", "bad")
    assert (lower.better, lower.improvement) == ("lower", 1.0)
    assert lower.difference == pytest.approx(-0.3)
    assert [(row.task, row.seeds, row.p) for row in clear.by_task] == [
        (task, 6, smallest_p(6)) for task in TASKS
    ]
    # Eighteen tests on single tasks are a family of their own: none of them can be shown by six seeds.
    assert all(row.p_holm > 0.05 for one in comparison.pairs for row in one.by_task)
    said = "\n".join(comparison.sentences)
    assert "good has a higher score than bad over 2 tasks and 6 seeds" in said
    assert "good has a lower violation probability of the trained team than bad" in said
    assert "No difference in score between good and even is shown" in said
    assert "no evidence that they are equal" in said
    assert "On near every agent's interval lies below 0.1 in 6 of 6 certified runs of good" in said
    assert "no claim of a difference" not in said


def test_a_profile_starts_at_one_and_says_where_methods_differ(six_seeds):
    curves = {curve.method: curve for curve in compare(six_seeds, **QUICK).profiles}
    assert set(curves) == {"good", "bad", "even"}
    assert curves["good"].taus == curves["bad"].taus
    middle = int(np.searchsorted(curves["good"].taus, 0.5))
    assert (curves["good"].share[middle], curves["bad"].share[middle]) == (1, 0)
    assert curves["even"].share[-1] == 0


def test_the_same_folder_gives_the_same_strict_json_and_another_seed_other_intervals(six_seeds):
    first, again = (compare(six_seeds, **QUICK).to_json() for _ in range(2))
    assert json.dumps(first, allow_nan=False) == json.dumps(again, allow_nan=False)
    assert json.loads(json.dumps(first))["sentences"] == first["sentences"]
    other = compare(six_seeds, **QUICK, seed=1).to_json()
    assert other["profiles"] != first["profiles"]
    assert [one["p"] for one in other["pairs"]] == [one["p"] for one in first["pairs"]]


def write_some(folder, methods, tasks, seeds, without=(), **settings):
    write_plan(folder, methods, tasks, seeds)
    for method in methods:
        for task in tasks:
            for seed in range(seeds):
                if (method, task, seed) not in without:
                    final = 5.0 + seed + methods.index(method)
                    finished_run(folder / "runs" / run_id(method, task, seed), **{"final": final, **settings})


def test_a_lost_run_takes_its_seed_from_the_pairing_but_not_its_task_from_the_cells(tmp_path):
    write_some(tmp_path, ["a", "b", "c"], TASKS, 3, without=[("b", "far", 1)])
    comparison = compare(tmp_path, **QUICK)
    assert [(run.id, run.state) for run in comparison.missing] == [(run_id("b", "far", 1), "missing")]
    assert comparison.common_seeds == [0, 2]
    assert pair(comparison, "score", "a", "b").seeds == [0, 2]
    assert [row.seeds for row in pair(comparison, "score", "a", "b").by_task] == [3, 2]
    # The pair that lost nothing keeps all its seeds.
    assert pair(comparison, "score", "a", "c").seeds == [0, 1, 2]
    assert {cell.finished for cell in comparison.cells} == {2, 3}
    assert (
        f"1 of 18 planned runs are not among these figures: {run_id('b', 'far', 1)} (missing)"
        in comparison.sentences[0]
    )


def test_nobody_is_said_to_train_safely_where_training_counted_no_costs(tmp_path):
    write_plan(tmp_path, ["ippo", "lagrangian"], ["simple_spread"], seeds=6)
    for seed in range(6):
        for method, settings, violating in (("ippo", {}, 0), ("lagrangian", {"constraint": "lagrange"}, 2)):
            folder = tmp_path / "runs" / run_id(method, "simple_spread", seed)
            finished_run(
                folder, env="simple_spread", violation=0.5, violating=violating, seed=seed, **settings
            )
    comparison = compare(tmp_path, **QUICK)
    ippo, lagrangian = (cell.figures for cell in comparison.cells)
    assert "training_violations" not in ippo
    assert lagrangian["training_violations"].mean == 0.5
    # Evaluations did count them.
    assert ippo["violation"].mean == 0.5
    assert "training_violations" not in {pair.measure for pair in comparison.pairs}


def test_a_run_without_a_violation_counts_in_the_mean_as_one(tmp_path):
    write_plan(tmp_path, ["ippo"], ["crossing"], seeds=4)
    for seed in range(4):
        finished_run(
            tmp_path / "runs" / run_id("ippo", "crossing", seed), violating=4 * (seed == 0), seed=seed
        )
    (cell,) = compare(tmp_path, **QUICK).cells
    assert cell.figures["training_violations"].mean == 0.25
    assert cell.figures["training_violations"].runs == 4


def test_with_three_seeds_nothing_is_claimed_however_clear_it_looks(tmp_path):
    write_some(tmp_path, ["a", "b"], TASKS, 3)
    comparison = compare(tmp_path, **QUICK)
    assert pair(comparison, "score", "a", "b").p == smallest_p(6)
    said = "\n".join(comparison.sentences)
    assert (
        "With 3 seeds a paired sign-flip test cannot give p < 0.25; no claim of a difference is made." in said
    )
    assert " has a " not in said


def test_a_task_that_not_all_methods_play_is_left_out_of_what_is_over_all_tasks(tmp_path):
    without = [("b", "far", seed) for seed in range(2)]
    write_some(tmp_path, ["a", "b"], TASKS, 2, without)
    plan = json.loads((tmp_path / "plan.json").read_text())
    plan["runs"] = [run for run in plan["runs"] if (run["method"], run["task"]) != ("b", "far")]
    plan["except"] = [{"method": "b", "task": "far", "why": "far has no state key"}]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    comparison = compare(tmp_path, **QUICK)
    assert (comparison.common_tasks, comparison.missing) == (["near"], [])
    assert pair(comparison, "score", "a", "b").tasks == ["near"]
    assert comparison.sentences[0] == "b was not run on far: far has no state key."
    assert "Figures over all tasks leave out far, where not every method has runs." in comparison.sentences


def test_a_task_on_which_nobody_beats_random_play_has_no_scores(tmp_path):
    write_some(tmp_path, ["a", "b"], ["near"], 2, random=50.0, env="pursuit")
    comparison = compare(tmp_path, **QUICK)
    assert (comparison.scales, comparison.aggregates, comparison.pairs) == ([], [], [])
    assert comparison.cells[0].figures["final_return"].mean == 5.5
    assert any("On near there are no scores" in sentence for sentence in comparison.sentences)


def test_a_single_seed_has_means_and_no_intervals(tmp_path):
    write_some(tmp_path, ["a", "b"], ["near"], 1)
    comparison = compare(tmp_path, **QUICK)
    spread = comparison.cells[0].figures["final_return"]
    assert (spread.mean, spread.low, spread.high, spread.runs) == (5, None, None, 1)
    assert (pair(comparison, "score", "a", "b").low, comparison.profiles) == (None, [])
    assert any("One seed says nothing" in sentence for sentence in comparison.sentences)


def test_a_plan_of_which_nothing_is_done_is_compared_to_nothing(tmp_path):
    write_plan(tmp_path, ["a", "b"], ["near"], 2)
    comparison = compare(tmp_path)
    assert comparison.sentences == ["None of the 4 planned runs is finished: nothing is compared."]
    assert [cell.finished for cell in comparison.cells] == [0, 0]
    json.dumps(comparison.to_json(), allow_nan=False)


def test_a_mean_that_most_runs_contradict_is_no_claim_of_who_is_better(tmp_path):
    # On near b is hopeless, on a scale on which that weighs more than all else; on the others it is a little better.
    finals = {"near": (1.0, -90.0), "far": (9.0, 10.0), "farther": (9.0, 10.0)}
    write_plan(tmp_path, ["a", "b"], list(finals), seeds=8)
    for task, returns in finals.items():
        for method, final in zip("ab", returns, strict=True):
            for seed in range(8):
                folder = tmp_path / "runs" / run_id(method, task, seed)
                finished_run(folder, final=final, seed=seed, env="pursuit")
    comparison = compare(tmp_path, **QUICK)
    [only] = comparison.pairs
    assert only.improvement == pytest.approx(1 / 3)
    assert only.p_holm < 0.05
    said = "\n".join(comparison.sentences)
    assert "neither is better throughout: a by 30.3 on average, b in 67% of pairs of runs." in said
    assert " has a higher " not in said
    assert "On near the best method is hardly better than random play" in said
    assert "On far the best" not in said


@pytest.mark.parametrize("changes", [{"reps": 0}, {"confidence": 95.0}])
def test_settings_that_cannot_be_are_refused(six_seeds, changes):
    with pytest.raises(ConfigError):
        compare(six_seeds, **changes)


def test_real_runs_of_two_methods_are_compared(tmp_path):
    write_plan(tmp_path, ["ippo", "lagrange"], ["crossing"], seeds=2)
    for method in ("ippo", "lagrange"):
        for seed in range(2):
            settings = {
                "env": "crossing",
                "constraint": "none" if method == "ippo" else "lagrange",
                "timesteps": 128,
                "num_envs": 4,
                "rollouts": 32,
                "seed": seed,
                "final_policy_eval_episodes": 3,
                "video_episodes": 0,
                "out": str(tmp_path / "runs" / run_id(method, "crossing", seed)),
            }
            train(RunConfig.from_flat(settings))
    comparison = compare(tmp_path, reps=50)
    assert comparison.missing == []
    for run in comparison.runs:
        known = (
            "final_return",
            "random_return",
            "training_return",
            "violation",
            "training_violations",
            "strength",
        )
        assert None not in [getattr(run, name) for name in known]
        assert run.frames == 128
        assert run.training_episodes > 0
    for cell in comparison.cells:
        returns = [run.final_return for run in comparison.runs if run.method == cell.method]
        assert cell.figures["final_return"].mean == pytest.approx(np.mean(returns))
        assert (cell.finished, cell.certified) == (2, 2)
    json.dumps(comparison.to_json(), allow_nan=False)
