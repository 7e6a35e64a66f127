"""The plan.json of a folder as strangers and crashes may leave it, for whoever only looks at its runs."""

import pytest

from marl_tools.bench.plan_folder import read_plan
from marl_tools.core.errors import ConfigError, CorruptFileError
from tests.bench.plan_folder import write_plan


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
