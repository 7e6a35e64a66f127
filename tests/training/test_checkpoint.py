"""Checkpoints: whole or not at all, never code, and refused with a reason when they are not ours."""

import json
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from marl_tools import __version__
from marl_tools.core import durable
from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.training.checkpoint import SCHEMA, load_checkpoint, save_checkpoint
from tests.core.film import run_script

TENSORS = {
    "a/weight": torch.arange(6.0).reshape(2, 3),
    "a/transposed": torch.arange(6.0).reshape(2, 3).T,
    "count": torch.tensor(3.0, dtype=torch.float64),
    "generator": torch.Generator().get_state(),
    "empty": torch.zeros(0, 4),
}
STATE = {
    "updates": 7,
    "frames": 2**40,
    "rng": {"state": 2**100},
    "nested": [1, {"é": None}],
    "bound": float("-inf"),
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "checkpoints" / "latest.safetensors"
    save_checkpoint(file, TENSORS, STATE)
    return file


def test_what_is_loaded_is_what_was_saved_and_is_no_view_of_it(path):
    tensors, state = load_checkpoint(path)
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert state == {"schema": SCHEMA, "version": __version__, **STATE}
    tensors["a/weight"].zero_()
    assert torch.equal(load_checkpoint(path)[0]["a/weight"], TENSORS["a/weight"])


def test_tensors_that_share_memory_are_saved_each(tmp_path):
    base = torch.arange(4.0)
    save_checkpoint(tmp_path / "x.safetensors", {"all": base, "half": base[:2]}, {})
    assert load_checkpoint(tmp_path / "x.safetensors")[0]["half"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), ()])
def test_an_array_of_any_shape_comes_back_with_it(tmp_path, shape):
    save_checkpoint(tmp_path / "x.safetensors", {}, {"keys": np.zeros(shape, np.int64)})
    loaded = load_checkpoint(tmp_path / "x.safetensors")[1]["keys"]
    assert (loaded.shape, loaded.dtype) == (shape, np.int64)


def test_text_in_an_array_comes_back_as_one(tmp_path):
    state = {"kind": np.array("world"), "names": np.array(["a", "über"])}
    save_checkpoint(tmp_path / "x.safetensors", {}, state)
    _, loaded = load_checkpoint(tmp_path / "x.safetensors")
    for name, array in state.items():
        assert (loaded[name].shape, loaded[name].dtype.kind) == (array.shape, "U")
        assert np.array_equal(loaded[name], array)


def test_arrays_may_lie_anywhere_in_the_state(tmp_path):
    actions = np.arange(6).reshape(2, 3)
    state = {
        "copies": [{"actions": {"agent": actions.T}}, {"actions": {"agent": np.zeros((0, 3))}}],
        "done": np.array(True),
    }
    save_checkpoint(tmp_path / "x.safetensors", TENSORS, state)
    tensors, loaded = load_checkpoint(tmp_path / "x.safetensors")
    assert tensors.keys() == TENSORS.keys()
    assert np.array_equal(loaded["copies"][0]["actions"]["agent"], actions.T)
    assert loaded["copies"][1]["actions"]["agent"].shape == (0, 3)
    assert loaded["done"].dtype == bool


def test_saving_again_replaces_the_file_and_leaves_nothing_beside_it(path):
    save_checkpoint(path, {"b": torch.ones(1)}, {"updates": 8})
    assert load_checkpoint(path)[1]["updates"] == 8
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*none\.safetensors"):
        load_checkpoint(tmp_path / "none.safetensors")


def wrong_header(path, **metadata):
    save_file({"x": torch.ones(1)}, path, metadata or None)


def truncate(path):
    os.truncate(path, path.stat().st_size - 5)


def pickled(path):
    path.write_bytes(pickle.dumps({"marl_tools": 1}))


def huge_header(path):
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")


DAMAGE = {
    "cut off": truncate,
    "cut to its header": lambda path: os.truncate(path, 40),
    "empty": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "a pickle": pickled,
    "a header of any length": huge_header,
    "no metadata": wrong_header,
    "another program's metadata": lambda path: wrong_header(path, format="pt"),
    "a state that is no JSON": lambda path: wrong_header(path, marl_tools="{"),
    "a state that is no mapping": lambda path: wrong_header(path, marl_tools="[1]"),
    "a state without schema": lambda path: wrong_header(path, marl_tools="{}"),
    "a schema that is no number": lambda path: wrong_header(path, marl_tools='{"schema": "2"}'),
    "no checksum": lambda path: wrong_header(path, marl_tools=f'{{"schema": {SCHEMA}}}'),
    "another checksum": lambda path: wrong_header(
        path, marl_tools=f'{{"schema": {SCHEMA}}}', sha256="0" * 64
    ),
    "a state nested without end": lambda path: wrong_header(path, marl_tools="[" * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_by_name_and_left_as_it_was(path, damage):
    damage(path)
    before = path.read_bytes()
    with pytest.raises(
        CorruptFileError, match=r"latest\.safetensors is not a readable checkpoint .*left as it is"
    ):
        load_checkpoint(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("schema", "remedy"),
    [(SCHEMA + 1, "upgrade marl-tools"), (SCHEMA - 1, "use marl-tools 77.0, or train anew")],
)
def test_a_file_of_another_version_is_refused_with_both_versions(path, schema, remedy):
    wrong_header(path, marl_tools=json.dumps({"schema": schema, "version": "77.0"}))
    both = rf"has checkpoint format {schema}, written by marl-tools 77\.0; this is marl-tools {__version__}, .* {SCHEMA}: "
    with pytest.raises(ConfigError, match=both + remedy):
        load_checkpoint(path)


def test_every_byte_of_a_file_counts(path):
    """A bit that turned over on the disk, in the weights or in the state, is found."""
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises((CorruptFileError, ConfigError)):
            load_checkpoint(path)


def test_no_pickle_is_executed(path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(path.parent / "trapped"),)

    for content in (pickle.dumps(Trap()), pickle.dumps({"x": Trap()})):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError):
            load_checkpoint(path)
    torch.save({"x": Trap()}, path)
    with pytest.raises(CorruptFileError):
        load_checkpoint(path)
    assert not (path.parent / "trapped").exists()


def test_a_failure_while_writing_leaves_the_old_file_and_no_litter(path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "_fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, {"b": torch.ones(1)}, {"updates": 8})
    monkeypatch.undo()
    assert load_checkpoint(path)[1]["updates"] == 7
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_kill_between_writing_and_renaming_leaves_the_old_file(path):
    killed = run_script(
        """
import os, signal, sys, torch
from marl_tools.training.checkpoint import save_checkpoint
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
save_checkpoint(sys.argv[1], {"b": torch.ones(1000)}, {"updates": 8})
""",
        path,
    )
    assert killed.returncode == -9, killed.stderr
    assert load_checkpoint(path)[1]["updates"] == 7
    assert len(list(path.parent.iterdir())) == 2, "the new one was there under another name"
    assert [file.name for file in path.parent.glob("*.safetensors")] == [path.name]
