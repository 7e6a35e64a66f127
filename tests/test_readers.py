"""Files that a stranger could have made: whatever is in them, readers refuse them by name or read them, and run nothing."""

import json
import pickle
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, example, given, settings, strategies as st

from marl_tools.core.errors import ConfigError, CorruptFileError, FileFormatError
from marl_tools.core.io import load_from_file, save_to_file
from marl_tools.core.types import EpisodeLog
from marl_tools.experiment.folder import load_config
from marl_tools.experiment.records import read_episodes, rewind
from marl_tools.experiment.runs import summarise_run
from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint
from marl_tools.training.checkpoint_folder import CheckpointFolder
from marl_tools.training.policy import load_policy

REFUSALS = (CorruptFileError, ConfigError, FileFormatError)
# A folder a test, whatever the example: they overwrite each other's file.
small = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged(draw, whole):
    """Bytes that began as a whole file: cut, with bytes changed, or with others put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(["cut", "change", "insert"]))
        if how == "cut":
            del data[place:]
        elif how == "change" and data:
            data[place] = draw(st.integers(0, 255))
        else:
            data[place:place] = draw(st.binary(max_size=4))
    return bytes(data)


def trap(folder):
    """A pickle that leaves a trace when it is loaded."""

    class Trap:
        def __reduce__(self):
            return open, (str(folder / "trapped"), "w")

    return pickle.dumps(Trap())


VALUES = {
    "a.json": {"x": [1, 2.5, None]},
    "a.jsonl": [{"x": 1}, {"y": "z"}],
    "a.csv": [{"x": "1", "y": "2"}],
    "a.txt": "text",
    "a.npz": {"x": np.arange(4)},
    "a.safetensors": {"x": torch.arange(4.0)},
    "a.pt": {"x": torch.arange(4.0)},
}


@pytest.mark.parametrize("name", VALUES)
@small
@given(data=st.data())
def test_files_of_every_format(tmp_path, name, data):
    whole = save_to_file(VALUES[name], tmp_path, name).read_bytes()
    (tmp_path / name).write_bytes(data.draw(damaged(whole) | st.binary(max_size=50)))
    with suppress(CorruptFileError):
        load_from_file(tmp_path, name)


@pytest.mark.parametrize("name", [*VALUES, "a.toml"])
def test_no_reader_of_files_runs_a_pickle(tmp_path, name):
    (tmp_path / name).write_bytes(trap(tmp_path))
    with suppress(CorruptFileError):
        load_from_file(tmp_path, name)
    assert not (tmp_path / "trapped").exists()


@small
@given(data=st.data())
def test_checkpoints(tmp_path, data):
    path = tmp_path / "checkpoints" / "latest.safetensors"
    save_checkpoint(path, {"x/network/weight": torch.arange(4.0)}, {"groups": [], "rows": np.arange(3)})
    whole = path.read_bytes()
    path.write_bytes(
        data.draw((damaged(whole) | st.binary(max_size=50)).filter(lambda other: other != whole))
    )
    for read in (
        lambda: load_checkpoint(path),
        lambda: load_policy(tmp_path),
        lambda: CheckpointFolder(tmp_path).load(),
    ):
        with pytest.raises(REFUSALS, match=r"latest\.safetensors|checkpoint at"):
            read()


@small
@given(JSON)
@example({"groups": [{"name": "a", "agents": ["x"], "observation_space": {}, "action_space": {}}]})
@example({"network": {"hidden": [10**9]}, "groups": []})
@example({"$array": "$state/x"})
def test_checkpoints_that_are_whole_but_hold_anything(tmp_path, state):
    path = tmp_path / "checkpoints" / "latest.safetensors"
    save_checkpoint(path, {}, state if isinstance(state, dict) else {"groups": state})
    with pytest.raises(REFUSALS, match=r"latest\.safetensors|checkpoint at"):
        load_policy(tmp_path)


@small
@given(JSON | st.dictionaries(st.sampled_from(["env", "seed", "hidden", "cap", "env_kwargs", "out"]), JSON))
def test_settings(tmp_path, value):
    (tmp_path / "config.json").write_text(json.dumps(value))
    with suppress(*REFUSALS):
        load_config(tmp_path)
    assert summarise_run(tmp_path).folder == str(tmp_path)


EPISODE = EpisodeLog(
    env_name="e",
    episode=0,
    t_start=0,
    t_end=1,
    wall_time=0.1,
    length=1,
    returns={"a": 1.0},
    costs={"a": 0.0},
    lengths={"a": 1},
    ends={"a": "terminated"},
    first_violation={"a": None},
).to_json()


@small
@given(st.dictionaries(st.sampled_from(list(EPISODE)), JSON, min_size=1))
def test_episode_logs_hold_what_their_fields_say_or_are_refused_with_the_row(tmp_path, wrong):
    path = tmp_path / "episodes.jsonl"
    path.write_text(json.dumps(EPISODE) + "\n" + json.dumps({**EPISODE, **wrong}) + "\n")
    try:
        logs = list(read_episodes(path))
    except CorruptFileError as error:
        message = str(error)
        event("refused")
    else:
        # Whoever was let through can be computed with.
        message = f"{path}, row 2: "
        assert all(isinstance(log.mean_return + log.team_cost + log.t_end, int | float) for log in logs)
        assert logs[0].mean_return == 1.0
    assert f"{path}, row 2: " in message


@small
@given(data=st.data())
def test_logs_that_are_damaged_are_rewound_or_refused_and_lose_nothing(tmp_path, data):
    path, aside = tmp_path / "episodes.jsonl", tmp_path / "episodes.replayed.jsonl"
    aside.unlink(missing_ok=True)
    whole = b"".join(json.dumps({**EPISODE, "t_end": t}).encode() + b"\n" for t in (1, 2, 3))
    path.write_bytes(data.draw(damaged(whole)))
    before = path.read_bytes()
    with suppress(CorruptFileError):
        rewind(tmp_path, frames=1, updates=0)
    kept = [file.read_bytes() for file in (path, aside, tmp_path / "episodes.jsonl.torn") if file.exists()]
    assert all(line in b"\n".join(kept) for line in before.split(b"\n") if line.strip())
