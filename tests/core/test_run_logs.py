"""The logs of a run read back: running totals of updates, and damaged lines by name."""

import math

import pytest

from marl_tools.core.errors import CorruptFileError
from marl_tools.core.io import JsonLines
from marl_tools.core.run_logs import read_episodes, read_updates
from tests.core.test_types import episode


def test_episodes_come_back_as_they_were_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "episodes.jsonl"
    logs = [episode(t_end=t) for t in (3, 6)]
    with JsonLines(path) as lines:
        for log in logs:
            lines.append(log.to_json())
        row = logs[0].to_json()
        del row["returns"]
        lines.append(row)
    reader = read_episodes(path)
    assert [next(reader), next(reader)] == logs
    with pytest.raises(CorruptFileError, match=r"episodes.jsonl, row 3: .*returns"):
        next(reader)


def test_steps_that_an_older_log_did_not_count_are_unknown(tmp_path):
    with JsonLines(tmp_path / "updates.jsonl") as lines:
        lines.append(
            {
                "update": 0,
                "frames": 8,
                "collect_seconds": 1,
                "update_seconds": 1,
                "groups": {"g": {"rows": 8}},
            }
        )
    (log,) = read_updates(tmp_path / "updates.jsonl")
    assert math.isnan(log.optimiser_steps["g"])


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("frames", "many", r"field 'frames' is 'many'"),
        ("collect_seconds", None, "field 'collect_seconds'"),
        ("groups", [1], "field 'groups'"),
        ("groups", {"agent": 3}, "field 'groups'"),
        ("groups", {"g": {"optimiser_steps": "many"}}, "field 'optimiser_steps' is 'many'"),
        ("groups", {"g": {"optimiser_steps": 10**400}}, "field 'optimiser_steps'"),
        ("frames", float("nan"), "field 'frames' is nan, not a whole number"),
        ("frames", float("inf"), "field 'frames' is inf, not a whole number"),
        ("update", 10**400, "field 'update'"),
    ],
)
def test_a_damaged_line_of_updates_is_named(tmp_path, field, value, named):
    row = {"update": 0, "frames": 8, "collect_seconds": 1.0, "update_seconds": 0.5, "groups": {}}
    with JsonLines(tmp_path / "updates.jsonl") as lines:
        lines.append(row)
        lines.append({**row, field: value})
    with pytest.raises(CorruptFileError, match=rf"updates.jsonl, row 2: {named}"):
        list(read_updates(tmp_path / "updates.jsonl"))


def test_seconds_and_steps_add_up_over_updates(tmp_path):
    with JsonLines(tmp_path / "updates.jsonl") as lines:
        for update, figures in enumerate(({"optimiser_steps": 4}, {"rows": 0}, {"optimiser_steps": 2})):
            lines.append(
                {
                    "update": update,
                    "frames": 10 * (update + 1),
                    "collect_seconds": 2.0,
                    "update_seconds": 1.0,
                    "groups": {"g": figures},
                }
            )
    first, second, third = read_updates(tmp_path / "updates.jsonl")
    assert [log.optimiser_steps["g"] for log in (first, second, third)] == [4, 4, 6]
    assert (third.frames_before, third.collecting_from, third.collected_at, third.done_at) == (20, 6, 8, 9)
    assert [third.seconds_at(frame) for frame in (15, 20, 25, 30, 99)] == [6, 6, 7, 8, 8]
    assert first.groups == {"g": {"optimiser_steps": 4}}
