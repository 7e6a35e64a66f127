"""The checkpoints of a run: which one is read, what stands in for a damaged one, and what the manifest says."""

import hashlib
import json
import os

import pytest
import torch

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.training import checkpoint_folder as module
from marl_tools.training.checkpoint_folder import CheckpointFolder


@pytest.fixture
def folder(tmp_path):
    """A run that was saved three times, the second of them its best."""
    folder = CheckpointFolder(tmp_path)
    for update in (1, 2, 3):
        save(folder, "latest", update)
        if update == 2:
            save(folder, "best", update)
    return folder


def save(folder, which, update):
    tensors = {"weight": torch.full((3,), float(update))}
    folder.save(which, tensors, {"update": update, "frames": 10 * update}, update=update, frames=10 * update)


def names(folder):
    return sorted(path.name for path in folder.path.iterdir())


def test_the_latest_the_one_before_and_the_best_are_kept(folder):
    assert folder.load()[1]["update"] == folder.load("latest")[1]["update"] == 3
    assert folder.load("best")[1]["update"] == 2
    assert names(folder) == [
        "best.safetensors",
        "latest.safetensors",
        "manifest.json",
        "previous.safetensors",
    ]


def test_the_manifest_says_what_each_file_is_and_its_checksum_fits(folder):
    manifest = json.loads((folder.path / "manifest.json").read_text())
    assert {which: entry["update"] for which, entry in manifest.items()} == {
        "latest": 3,
        "previous": 2,
        "best": 2,
    }
    for entry in manifest.values():
        data = (folder.path / entry["file"]).read_bytes()
        assert (entry["sha256"], entry["bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
        assert entry["frames"] == 10 * entry["update"]


@pytest.mark.parametrize("how", ["a bit", "cut off", "gone"])
def test_where_the_latest_is_damaged_the_one_before_is_used_and_the_log_says_so(folder, capsys, how):
    latest = folder.file("latest")
    data = latest.read_bytes()
    if how == "gone":
        latest.unlink()
    else:
        latest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if how == "a bit" else data[:-7])
    tensors, state = folder.load()
    assert (state["update"], tensors["weight"].tolist()) == (2, [2.0] * 3)
    assert "latest.safetensors" in (said := capsys.readouterr().err)
    assert "previous.safetensors, 20 env steps" in said
    save(folder, "latest", 4)
    assert folder.load()[1]["update"] == 4


def test_where_nothing_is_sound_both_files_are_named(folder):
    for which in ("latest", "previous"):
        folder.file(which).write_bytes(b"rubbish")
    with pytest.raises(
        CorruptFileError, match=r"latest\.safetensors is not .* and .*previous\.safetensors is not"
    ):
        folder.load()


def test_nothing_stands_in_for_the_best(folder):
    folder.file("best").write_bytes(b"rubbish")
    with pytest.raises(CorruptFileError, match=r"best\.safetensors"):
        folder.load("best")
    folder.file("best").unlink()
    with pytest.raises(FileNotFoundError, match="no update has been the best yet; use the latest"):
        folder.load("best")
    with pytest.raises(ConfigError, match=r"no checkpoint is called 'bets'\. Did you mean 'best'\?"):
        folder.load("bets")


@pytest.mark.parametrize("content", ["", "[]", '{"latest": 3}', '{"latest": {"file"'])
def test_a_damaged_manifest_is_no_hindrance(folder, content):
    (folder.path / "manifest.json").write_text(content)
    assert folder.manifest() == {}
    save(folder, "latest", 4)
    assert folder.load()[1]["update"] == 4
    assert folder.manifest()["latest"]["update"] == 4


def test_a_file_system_without_hard_links_will_do(folder, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    save(folder, "latest", 4)
    folder.file("latest").unlink()
    assert folder.load()[1]["update"] == 3


def test_a_disk_that_fills_up_leaves_what_was_there(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_checkpoint", full)
    with pytest.raises(OSError, match="No space"):
        save(folder, "latest", 4)
    assert folder.load()[1]["update"] == 3
