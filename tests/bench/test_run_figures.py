"""The figures of runs, out of their folders."""

import pytest

from marl_tools.bench.plan_folder import read_plan
from marl_tools.bench.report.gather import Collection
from marl_tools.bench.run_figures import figures_of_run, figures_of_runs
from marl_tools.bench.statistics import session_of_run
from marl_tools.core.errors import CorruptFileError
from marl_tools.core.io import load_from_file, save_to_file
from tests.bench.plan_folder import finished_run, run_id, write_plan
from tests.core.test_types import episode

KEY = {"id": "x", "method": "m", "task": "t", "seed": 3}


def test_every_figure_of_a_run_comes_from_the_file_that_has_it(tmp_path):
    run = finished_run(tmp_path, final=4.0, random=0.5, violation=0.2, upper=0.05, violating=1)
    figures = figures_of_run(run, **KEY)
    assert (figures.id, figures.method, figures.task, figures.seed) == ("x", "m", "t", 3)
    assert (figures.final_return, figures.random_return, figures.frames) == (4.0, 0.5, 40)
    # Every training episode has returns of 1 and 4.
    assert (figures.training_return, figures.strength) == (2.5, 2.0)
    # The longest horizon that has intervals, not the longest.
    assert (figures.horizon, figures.violation, figures.worst_violation) == (9, 0.2, 0.1)
    assert (figures.max_risk, figures.under_risk, figures.bound) == (0.1, True, 0.25)
    assert (figures.training_episodes, figures.training_violations) == (4, 0.25)
    assert figures.overrides is None
    assert figures.stability == 1.0


def test_one_agent_above_the_risk_and_the_run_is_not_under_it(tmp_path):
    run = finished_run(tmp_path, violation=0.0, upper=0.05)
    certificate = load_from_file(run, "certificate.json")
    certificate["horizons"][1]["subjects"]["b"]["interval"] = [0.0, 0.1001]
    save_to_file(certificate, run, "certificate.json")
    assert figures_of_run(run, **KEY).under_risk is False


def test_what_a_run_did_not_measure_is_none_not_zero(tmp_path):
    figures = figures_of_run(finished_run(tmp_path, final=None, random=None, env="pursuit"), **KEY)
    assert figures.training_return == 2.5
    for name in ("final_return", "random_return", "strength", "sample_efficiency", "stability"):
        assert getattr(figures, name) is None
    # There are no costs: that nobody violated says nothing.
    assert (figures.training_violations, figures.violation, figures.under_risk) == (None, None, None)


def test_a_violation_in_training_shows_that_there_are_costs_without_a_certificate(tmp_path):
    assert figures_of_run(finished_run(tmp_path, violating=4), **KEY).training_violations == 1.0


def test_a_run_too_short_for_an_episode_has_no_training_figures(tmp_path):
    figures = figures_of_run(finished_run(tmp_path, episodes=0, violation=0.0), **KEY)
    assert (figures.training_return, figures.training_violations, figures.strength) == (None, None, None)
    assert (figures.frames, figures.final_return) == (0, 1.0)


def test_overrides_are_a_share_of_all_decisions_in_training(tmp_path):
    run = finished_run(tmp_path, shield="ledger", shield_support="declared")
    text = (run / "episodes.jsonl").read_text()
    (run / "episodes.jsonl").write_text(text.replace('"overrides": {}', '"overrides": {"a": 1}', 2))
    # Of 4 episodes with 3 and 2 decisions.
    assert figures_of_run(run, **KEY).overrides == 2 / 20


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("certificate.json", {"horizons": [{"h": 1}]}, "certificate.json: no violation estimates.*subjects"),
        ("certificate.json", [1], "certificate.json"),
        ("certificate.json", {"horizons": [{"h": 1, "subjects": {"team": {"estimate": "x"}}}]}, "estimates"),
        ("evaluation-trained.json", {"returns": 3}, "evaluation-trained.json: no mean returns"),
        ("evaluation-random.json", {}, "evaluation-random.json"),
        # No float is as large as this.
        (
            "certificate.json",
            {"horizons": [{"h": 1, "subjects": {"team": {"estimate": 10**400}}}]},
            "estimates",
        ),
        ("episodes.jsonl", [{**episode().to_json(), "returns": {"a": 10**400}}], "not an episode log"),
        ("config.json", [], "config.json"),
    ],
)
def test_a_damaged_file_is_named_and_left_as_it_is(tmp_path, name, content, hint):
    run = finished_run(tmp_path, violation=0.1)
    save_to_file(content, run, name)
    before = (run / name).read_bytes()
    with pytest.raises(CorruptFileError, match=hint):
        figures_of_run(run, **KEY)
    assert (run / name).read_bytes() == before


def test_a_log_that_is_gone_is_said_so(tmp_path):
    run = finished_run(tmp_path)
    (run / "updates.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"updates\.jsonl"):
        figures_of_run(run, **KEY)


def test_runs_that_are_not_done_are_named_with_their_state_and_why(tmp_path):
    write_plan(tmp_path, ["a"], ["t"], seeds=6)
    places = [tmp_path / "runs" / run_id("a", "t", seed) for seed in range(6)]
    for place in places[:5]:
        finished_run(place)
    (places[1] / "done.json").unlink()
    (places[2] / "done.json").unlink()
    save_to_file({"error": "EnvError", "message": "no such robot"}, places[2], "error.json")
    (places[3] / "evaluation-trained.json").write_text("{")
    (places[4] / "config.json").write_text("{")
    figures, missing = figures_of_runs(tmp_path, read_plan(tmp_path))
    assert [run.seed for run in figures] == [0]
    assert [(run.seed, run.state) for run in missing] == [
        (1, "interrupted"),
        (2, "failed"),
        (3, "damaged"),
        (4, "damaged"),
        (5, "missing"),
    ]
    for run, why in zip(
        missing,
        (
            "40 of 200000 env steps",
            "EnvError: no such robot",
            "evaluation-trained",
            "config.json",
            "not started",
        ),
        strict=True,
    ):
        assert why in run.why


def test_a_run_that_was_read_before_has_the_same_figures_or_the_same_fault(tmp_path):
    write_plan(tmp_path, ["a"], ["t"], seeds=4)
    for seed in range(4):
        settings = {"shield": "ledger", "shield_support": "declared"} if seed == 1 else {}
        finished_run(
            tmp_path / "runs" / run_id("a", "t", seed), violating=seed, violation=0.1, ma_window=2, **settings
        )
    (tmp_path / "runs" / run_id("a", "t", 2) / "episodes.jsonl").write_text('{"split": "train"}\n')
    (tmp_path / "runs" / run_id("a", "t", 3) / "episodes.jsonl").unlink()
    plan, readings = read_plan(tmp_path), Collection(tmp_path).runs.values()
    known = {run.id: run.known for run in readings if run.known}
    assert [reading.training.violated for reading in known.values()] == [0, 1]
    figures, missing = figures_of_runs(tmp_path, plan, known)
    assert (figures, missing) == figures_of_runs(tmp_path, plan)
    assert [(run.seed, run.state) for run in missing] == [(2, "damaged"), (3, "damaged")]
    assert "episodes.jsonl, row 1: not an episode log" in missing[0].why


def test_the_figures_of_merit_are_those_of_the_session_in_its_folder(tmp_path):
    run = finished_run(tmp_path, random=0.5, ma_window=3)
    rows = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
    grown = [row.replace('"a": 1.0', f'"a": {number}.0') for number, row in enumerate(rows)]
    assert grown != rows
    (run / "episodes.jsonl").write_text("".join(grown))
    metrics = session_of_run(run, window=3).metrics()
    figures = figures_of_run(run, **KEY)
    for name in ("strength", "sample_efficiency", "training_efficiency", "stability"):
        assert getattr(figures, name) == getattr(metrics, name)
