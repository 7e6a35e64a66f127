"""The figures of one run, out of its folder."""

import pytest

from marl_tools.bench.run_figures import figures_of_run
from marl_tools.core.errors import CorruptFileError
from marl_tools.core.io import load_from_file, save_to_file
from tests.bench.plan_folder import finished_run

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
    figures = figures_of_run(finished_run(tmp_path, final=None, random=None), **KEY)
    assert figures.training_return == 2.5
    for name in ("final_return", "random_return", "strength", "sample_efficiency", "stability"):
        assert getattr(figures, name) is None
    # No costs were ever seen: that nobody violated says nothing.
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
