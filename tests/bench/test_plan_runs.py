"""The folder of a plan as strangers and crashes may leave it."""

import pytest

from marl_tools.bench.plan_runs import read_plan, read_runs
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.io import save_to_file
from tests.bench.plan_folder import finished_run, run_id, write_plan


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
    figures, missing = read_runs(tmp_path, read_plan(tmp_path))
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


def test_a_folder_without_a_plan_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"is no plan: it has no plan\.json"):
            read_plan(place)


@pytest.mark.parametrize("name", ["../elsewhere", "..", ".", "", "/etc", "a/b", 3, None])
def test_an_id_that_could_lead_out_of_the_folder_is_refused(tmp_path, name):
    runs = [{"id": name, "method": "a", "task": "t", "seed": 0}]
    write_plan(tmp_path, ["a"], ["t"], seeds=1, runs=runs)
    with pytest.raises(CorruptFileError, match=r"plan\.json.*no plain name"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("methods", ["a"], "'methods' is .*no dict"),
        ("tasks", None, "'tasks'"),
        ("runs", {}, "'runs'"),
        ("runs", [{"id": "x", "method": "b", "task": "t", "seed": 0}], "method 'b'"),
        ("runs", [{"id": "x", "method": "a", "task": "t", "seed": "0"}], "seed '0'"),
        ("runs", [{"id": "x"}], "'runs' or 'except': 'method'"),
        ("runs", [4], "'runs'"),
        ("runs", [{"id": "x", "method": [], "task": "t", "seed": 0}], "'runs'"),
        ("except", 5, "'except'"),
    ],
)
def test_a_damaged_plan_is_refused_with_its_field(tmp_path, field, value, hint):
    write_plan(tmp_path, ["a"], ["t"], seeds=1, **{field: value})
    with pytest.raises(CorruptFileError, match=rf"plan\.json.*{hint}"):
        read_plan(tmp_path)
