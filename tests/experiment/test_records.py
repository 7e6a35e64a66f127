"""The logs of a run that goes on from a checkpoint: how it is said what becomes of later lines."""

import json

import pytest

from marl_tools.experiment.records import rewind


@pytest.mark.parametrize(("frames", "said"), [(1, "2 lines later"), (2, "1 line later"), (3, "")])
def test_how_many_lines_are_set_aside_is_said_in_words(tmp_path, capsys, frames, said):
    rows = [json.dumps({"t_end": end}) + "\n" for end in (1, 2, 3)]
    (tmp_path / "episodes.jsonl").write_text("".join(rows))
    rewind(tmp_path, frames=frames, updates=0)
    words = capsys.readouterr().err
    assert (f"{said} than the checkpoint moved from episodes.jsonl" in words) == bool(said)
    assert (tmp_path / "episodes.jsonl").read_text() == "".join(rows[:frames])
