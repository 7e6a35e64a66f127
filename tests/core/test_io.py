"""Persistence: what is saved comes back, what is broken says so, and nothing that a file holds is run."""

import dataclasses
import errno
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.core import durable, io
from marl_tools.core.errors import ConfigError, CorruptFileError, FileFormatError
from marl_tools.core.io import (
    JsonLines,
    atomic_write,
    create_dir,
    load_from_file,
    load_from_file_if_exists,
    read_jsonl,
    save_to_file,
)
from marl_tools.core.types import EpisodeLog

EPISODE = EpisodeLog(
    env_name="simple_spread",
    episode=0,
    t_start=0,
    t_end=25,
    wall_time=0.5,
    length=25,
    returns={"000": -1.5, "agent_1": 2.0},
    costs={"000": 0.0, "agent_1": 1.0},
    lengths={"000": 25, "agent_1": 25},
    ends={"000": "truncated", "agent_1": "terminated"},
    first_violation={"000": None, "agent_1": 3},
)

# The disk sets the pace, and it is shared.
quick = settings(deadline=None, max_examples=50)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


class Bomb:
    """Unpickling one makes a folder: the mark of code that ran."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_create_dir_makes_parents_and_accepts_what_is_there(tmp_path):
    made = create_dir(str(tmp_path / "a" / "b"))
    assert made == create_dir(made) == tmp_path / "a" / "b"
    assert made.is_dir()


@quick
@given(value=json_values)
def test_json_gives_back_plain_values(tmp_path_factory, value):
    folder = tmp_path_factory.getbasetemp()
    save_to_file(value, folder, "value.json")
    assert load_from_file(folder, "value.json") == value


def test_json_takes_numpy_paths_dataclasses_mappings_and_sets(tmp_path):
    @dataclasses.dataclass
    class Setting:
        rate: np.float32
        folder: Path

    value = {
        "setting": Setting(np.float32(0.5), Path("a/b")),
        "array": np.arange(4).reshape(2, 2),
        "flag": np.bool_(True),
        "count": np.int64(7),
        "set": {"b", "a", "c"},
        "mixed": {1, "a"},
        "view": MappingProxyType({"x": 1}),
        "tuple": (1, 2),
        "log": EPISODE,
    }
    save_to_file(value, tmp_path, "value.json")
    loaded = load_from_file(tmp_path, "value.json")
    assert EpisodeLog.from_json(loaded.pop("log")) == EPISODE
    assert loaded == {
        "setting": {"rate": 0.5, "folder": "a/b"},
        "array": [[0, 1], [2, 3]],
        "flag": True,
        "count": 7,
        "set": ["a", "b", "c"],
        "mixed": [1, "a"],
        "view": {"x": 1},
        "tuple": [1, 2],
    }


def test_json_gives_back_nan_and_infinities(tmp_path):
    save_to_file([float("nan"), np.inf, -np.inf], tmp_path, "numbers.json")
    np.testing.assert_array_equal(load_from_file(tmp_path, "numbers.json"), [np.nan, np.inf, -np.inf])


@quick
@given(
    rows=st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.fixed_dictionaries(
                {f"column {n}, '\"": st.text(st.characters(codec="utf-8")) for n in range(width)}
            ),
            max_size=5,
        )
    )
)
def test_csv_gives_back_any_strings(tmp_path_factory, rows):
    folder = tmp_path_factory.getbasetemp()
    save_to_file(rows, folder, "rows.csv")
    assert load_from_file(folder, "rows.csv") == rows


def test_csv_keeps_an_agent_called_000_and_leaves_gaps_empty(tmp_path):
    rows = [{"agent": "000", "return": np.float64(1.5)}, {"agent": "001", "cost": None}]
    save_to_file(rows, tmp_path, "rows.csv")
    assert load_from_file(tmp_path, "rows.csv") == [
        {"agent": "000", "return": "1.5", "cost": ""},
        {"agent": "001", "return": "", "cost": ""},
    ]


@quick
@given(text=st.text(st.characters(codec="utf-8")))
def test_txt_keeps_a_string_to_the_byte(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp()
    save_to_file(text, folder, "note.txt")
    assert load_from_file(folder, "note.txt") == text


def test_toml_is_read_but_not_written(tmp_path):
    (tmp_path / "settings.toml").write_text('rate = 0.5\n[env]\nname = "tag"\n')
    assert load_from_file(tmp_path, "settings.toml") == {"rate": 0.5, "env": {"name": "tag"}}
    with pytest.raises(FileFormatError, match=r"only read here; save as \.json"):
        save_to_file({}, tmp_path, "other.toml")
    assert names(tmp_path) == ["settings.toml"]


def test_npz_gives_back_arrays(tmp_path):
    arrays = {"obs": np.ones((3, 2), np.float32), "meta": np.array('{"a": 1}'), "empty": np.zeros((0, 4))}
    save_to_file(arrays, tmp_path, "segment.npz")
    loaded = load_from_file(tmp_path, "segment.npz")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array, strict=True)


def test_safetensors_takes_tied_and_strided_tensors_and_arrays(tmp_path):
    torch = pytest.importorskip("torch")
    weight = torch.arange(6.0).reshape(2, 3)
    frozen = np.arange(3)[::-1]
    frozen.flags.writeable = False
    tensors = {
        "a": weight,
        "tied": weight,
        "turned": weight.T,
        "grad": torch.nn.Parameter(weight),
        "array": frozen,
    }
    save_to_file(tensors, tmp_path, "weights.safetensors")
    loaded = load_from_file(tmp_path, "weights.safetensors")
    assert loaded.keys() == tensors.keys()
    assert torch.equal(loaded["tied"], weight)
    assert torch.equal(loaded["turned"], weight.T)
    assert torch.equal(loaded["grad"], weight)
    assert loaded["array"].tolist() == [2, 1, 0]


def test_pt_gives_back_an_optimiser_and_random_states_without_running_code(tmp_path):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 1)
    optimiser = torch.optim.Adam(layer.parameters())
    layer(torch.ones(2)).sum().backward()
    optimiser.step()
    state = {
        "layer": layer.state_dict(),
        "optimiser": optimiser.state_dict(),
        "numpy": np.random.default_rng(0).bit_generator.state,
        "torch": torch.Generator().manual_seed(1).get_state(),
        "scalar": np.float32(0.5),
        "path": tmp_path,
        "array": np.arange(3),
        "log": EPISODE,
    }
    save_to_file(state, tmp_path, "state.pt")
    loaded = load_from_file(tmp_path, "state.pt")
    layer.load_state_dict(loaded["layer"])
    optimiser.load_state_dict(loaded["optimiser"])
    assert loaded["numpy"] == state["numpy"]
    assert torch.equal(loaded["torch"], state["torch"])
    assert loaded["scalar"] == 0.5
    assert loaded["path"] == str(tmp_path)
    assert loaded["array"].tolist() == [0, 1, 2]
    assert EpisodeLog.from_json(loaded["log"]) == EPISODE


def test_a_pickle_is_refused_unless_asked_for(tmp_path):
    for act in (lambda: save_to_file({1}, tmp_path, "x.pkl"), lambda: load_from_file(tmp_path, "x.pickle")):
        with pytest.raises(FileFormatError, match="allow_pickle=True"):
            act()
    save_to_file({1, (2, 3)}, tmp_path, "x.pkl", allow_pickle=True)
    assert load_from_file(tmp_path, "x.pkl", allow_pickle=True) == {1, (2, 3)}


@pytest.mark.parametrize("suffix", ["npz", "pt", "safetensors", "json"])
def test_a_malicious_pickle_under_another_suffix_never_runs(tmp_path, suffix):
    mark = tmp_path / "code ran"
    (tmp_path / f"x.{suffix}").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(CorruptFileError):
        load_from_file(tmp_path, f"x.{suffix}")
    assert not mark.exists()


def test_malicious_objects_inside_real_archives_never_run(tmp_path):
    torch = pytest.importorskip("torch")
    mark = tmp_path / "code ran"
    np.savez(tmp_path / "x.npz", bomb=np.array([Bomb(mark)], dtype=object))
    torch.save({"bomb": Bomb(mark)}, tmp_path / "x.pt")
    for name in ("x.npz", "x.pt"):
        with pytest.raises(CorruptFileError, match=name):
            load_from_file(tmp_path, name)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("x.jsn", r"'\.jsn'.*Did you mean '\.json'.*\.npz"),
        ("x", "unknown suffix ''.*safetensors"),
        (".json", "suffix"),
    ],
)
def test_an_unknown_suffix_lists_the_known_ones(tmp_path, name, hint):
    with pytest.raises(FileFormatError, match=hint):
        save_to_file({}, tmp_path, name)
    with pytest.raises(FileFormatError, match=hint):
        load_from_file(tmp_path, name)


@pytest.mark.parametrize("name", ["../x.json", "a/../../x.json", "/etc/x.json", "", "."])
def test_a_file_name_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    for act in (lambda: save_to_file({}, tmp_path, name), lambda: load_from_file_if_exists(tmp_path, name)):
        with pytest.raises(ConfigError, match="leads out of"):
            act()
    assert names(tmp_path) == []


def test_a_file_name_may_name_a_subfolder(tmp_path):
    assert save_to_file([1], tmp_path, "a/b/x.JSON") == tmp_path / "a" / "b" / "x.JSON"
    assert load_from_file(tmp_path, Path("a/b/x.JSON")) == [1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x.json", {"f": print}),
        ("x.json", {(1, 2): 3}),
        ("x.jsonl", {"a": 1}),
        ("x.jsonl", [[1]]),
        ("x.csv", {"a": 1}),
        ("x.txt", 3),
        ("x.txt", "\ud800"),
        ("x.npz", {"x": np.array([{}])}),
        ("x.npz", [1, 2]),
        ("x.safetensors", {"x": {"y": 1}}),
        ("x.safetensors", {"x": np.array(["text"])}),
        ("x.pt", {"f": print}),
    ],
)
def test_what_a_format_cannot_hold_is_refused_and_an_older_file_stays(tmp_path, name, value):
    (tmp_path / name).write_text("older")
    with pytest.raises(FileFormatError, match=name):
        save_to_file(value, tmp_path, name)
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "older"


def test_the_default_stands_in_for_a_missing_file_only(tmp_path):
    assert load_from_file_if_exists(tmp_path, "x.json", default=7) == 7
    assert load_from_file_if_exists(tmp_path / "nowhere", "x.json") is None
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(CorruptFileError, match=r"x\.json"):
        load_from_file_if_exists(tmp_path, "x.json", default=7)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(IsADirectoryError):
        load_from_file_if_exists(tmp_path, "folder.json", default=7)


@pytest.mark.parametrize("suffix", ["json", "npz", "safetensors", "pt", "pkl"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_a_damaged_file_raises_its_name_and_is_left_as_it_was(tmp_path, suffix, damage):
    name = f"x.{suffix}"
    whole = save_to_file({"a": np.arange(100.0)}, tmp_path, name, allow_pickle=True).read_bytes()
    broken = {"cut": whole[: len(whole) // 2], "garbage": b"\x93\x00garbage" * 20, "empty": b""}[damage]
    (tmp_path / name).write_bytes(broken)
    with pytest.raises(CorruptFileError, match=name):
        load_from_file(tmp_path, name, allow_pickle=True)
    assert (tmp_path / name).read_bytes() == broken


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.csv", b"a,b\n1\n"),
        ("x.csv", b"a,b\n1,2,3\n"),
        ("x.csv", b"a,a\n1,2\n"),
        ("x.csv", b'a\n"1\n'),
        ("x.txt", b"\xff\xfe\xfa"),
        ("x.toml", b"a = \n"),
        ("x.json", b"[" * 200_000),
        ("x.jsonl", b'{"a": 1}\n{"a": \n{"a": 3}\n'),
    ],
)
def test_text_that_does_not_parse_is_corrupt(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorruptFileError, match=name):
        load_from_file(tmp_path, name)


def test_a_flipped_bit_in_an_npz_is_noticed(tmp_path):
    path = save_to_file({"a": np.arange(1000)}, tmp_path, "x.npz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="CRC"):
        load_from_file(tmp_path, "x.npz")
    assert zipfile.is_zipfile(path)


def test_a_block_that_raises_leaves_the_older_file_and_no_temporary(tmp_path):
    target = tmp_path / "x.bin"
    target.write_text("older")

    def write():
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            assert target.read_text() == "older"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert names(tmp_path) == ["x.bin"]
    assert target.read_text() == "older"


def test_a_failing_rename_leaves_no_temporary(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OSError):
        save_to_file({}, tmp_path, "x.json")
    assert names(tmp_path) == ["x.json"]


def make_checkpoint(target, text):
    with atomic_write(target) as temporary:
        (temporary / "inner").mkdir(parents=True)
        (temporary / "inner" / "weights").write_text(text)


@pytest.mark.parametrize("kernel_can_swap", [True, False])
def test_a_folder_takes_the_place_of_an_older_one(tmp_path, monkeypatch, kernel_can_swap):
    if not kernel_can_swap:
        monkeypatch.setattr(durable.ctypes, "CDLL", lambda name: object())
    target = tmp_path / "run" / "latest"
    make_checkpoint(target, "old")
    make_checkpoint(target, "new")
    assert (target / "inner" / "weights").read_text() == "new"
    assert names(target.parent) == ["latest"]


def test_a_temporary_is_fsynced_before_it_gets_its_name(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("rename"), replace(a, b)))
    save_to_file({}, tmp_path, "x.json")
    assert [Path(entry).suffix for entry in order] == [".tmp", "", ""]
    assert order[1:] == ["rename", str(tmp_path)]


KILLED = """
import os, sys
from marl_tools.core.io import JsonLines, save_to_file
lines = JsonLines(sys.argv[1] + "/episodes.jsonl")
for n in range(10**9):
    save_to_file({"n": n, "fill": "x" * 50_000}, sys.argv[1], "state.json")
    lines.append({"n": n})
    print(n, flush=True)
"""


def test_a_kill_at_any_moment_leaves_whole_files_and_every_finished_row(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        for line in child.stdout:
            if int(line) == 30:
                child.send_signal(signal.SIGKILL)
                break
        told = [30] + [int(line) for line in child.stdout if line.endswith("\n")]
    rows = [row["n"] for row in read_jsonl(tmp_path / "episodes.jsonl")]
    assert rows == list(range(len(rows)))
    assert rows[-1] >= told[-1]
    assert load_from_file(tmp_path, "state.json")["n"] >= told[-1]


def test_json_lines_take_numpy_and_read_back_one_by_one(tmp_path):
    path = tmp_path / "deep" / "episodes.jsonl"
    with JsonLines(path) as lines:
        lines.append({"agent": "000", "return": np.float32(0.5), "nan": np.nan, "obs": np.arange(2)})
        lines.append(EPISODE.to_json())
    rows = read_jsonl(path)
    first = next(rows)
    assert np.isnan(first.pop("nan"))
    assert first == {"agent": "000", "return": 0.5, "obs": [0, 1]}
    assert EpisodeLog.from_json(next(rows)) == EPISODE
    assert list(rows) == []
    assert load_from_file(tmp_path, "deep/episodes.jsonl")[1] == EPISODE.to_json()


def test_pandas_reads_json_lines_with_nan_and_000(tmp_path):
    with JsonLines(tmp_path / "x.jsonl") as lines:
        lines.append({"agent": "000", "x": np.nan, "y": np.inf})
        lines.append({"agent": "001", "x": 2.0, "y": -1.0})
    frame = pd.read_json(tmp_path / "x.jsonl", lines=True, dtype=False)
    assert list(frame["agent"]) == ["000", "001"]
    np.testing.assert_array_equal(frame["x"].astype(float), [np.nan, 2.0])
    np.testing.assert_array_equal(frame["y"].astype(float), [np.inf, -1.0])


def test_save_to_file_writes_episode_logs_as_json_lines(tmp_path):
    save_to_file([EPISODE, {"a": 1}], tmp_path, "episodes.jsonl")
    first, second = load_from_file(tmp_path, "episodes.jsonl")
    assert EpisodeLog.from_json(first) == EPISODE
    assert second == {"a": 1}


def test_each_row_is_one_write_and_on_disk_before_append_returns(tmp_path, monkeypatch):
    writes = []
    whole = durable.write_whole
    monkeypatch.setattr(durable, "write_whole", lambda file, data: (writes.append(data), whole(file, data)))
    with JsonLines(tmp_path / "x.jsonl") as lines:
        lines.append({"a": 1})
        assert (tmp_path / "x.jsonl").read_bytes() == writes[0] == b'{"a": 1}\n'


@quick
@given(cut=st.integers(0, 40), text=st.text(min_size=1))
def test_a_line_torn_anywhere_is_set_aside_and_the_next_row_is_whole(tmp_path_factory, cut, text):
    path = tmp_path_factory.mktemp("torn") / "x.jsonl"
    with JsonLines(path) as lines:
        lines.append({"n": 0})
        lines.append({"n": 1, "text": text})
    data = path.read_bytes()
    cut = max(len(b'{"n": 0}\n'), len(data) - cut)
    path.write_bytes(data[:cut])
    survivors = list(read_jsonl(path))
    assert len(survivors) == 1 + (cut >= len(data) - 1)
    with JsonLines(path) as lines:
        lines.append({"n": 2})
    assert list(read_jsonl(path)) == [*survivors, {"n": 2}]
    aside = path.with_name("x.jsonl.torn")
    kept = aside.read_bytes() if aside.exists() else b""
    assert len(path.read_bytes()) + len(kept) >= cut
    assert len(survivors) == 2 or kept[:-1] == data[len(b'{"n": 0}\n') : cut]


def test_a_torn_line_longer_than_one_block_is_set_aside_whole(tmp_path):
    path = tmp_path / "x.jsonl"
    torn = b'{"x": "' + b"y" * 200_000
    path.write_bytes(b'{"n": 0}\n' + torn)
    JsonLines(path).close()
    assert path.read_bytes() == b'{"n": 0}\n'
    assert path.with_name("x.jsonl.torn").read_bytes() == torn + b"\n"


def test_a_broken_line_in_the_middle_names_file_and_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n": 0}\n\n{"n": \n{"n": 2}\n')
    rows = read_jsonl(path)
    assert next(rows) == {"n": 0}
    with pytest.raises(CorruptFileError, match=r"x\.jsonl, line 3"):
        next(rows)


def test_a_row_that_json_cannot_hold_is_refused_and_leaves_the_file_usable(tmp_path):
    path = tmp_path / "x.jsonl"
    with JsonLines(path) as lines:
        for row in ({"f": print}, [1], {("a", 1): 1}):
            with pytest.raises(FileFormatError, match=r"x\.jsonl"):
                lines.append(row)
        lines.append({"n": 1})
    assert list(read_jsonl(path)) == [{"n": 1}]


def test_a_full_disk_raises_and_half_a_line_is_cut_off(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"

    def half(file, data):
        file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with JsonLines(path) as lines:
        lines.append({"n": 0})
        with monkeypatch.context() as patch:
            patch.setattr(durable, "write_whole", half)
            with pytest.raises(OSError, match="No space"):
                lines.append({"n": 1})
        lines.append({"n": 2})
    assert list(read_jsonl(path)) == [{"n": 0}, {"n": 2}]


def test_closing_twice_is_fine_and_reading_a_missing_file_is_an_error(tmp_path):
    lines = JsonLines(tmp_path / "x.jsonl")
    lines.close()
    lines.close()
    with pytest.raises(FileNotFoundError):
        list(read_jsonl(tmp_path / "none.jsonl"))


def test_the_module_loads_no_torch():
    code = "import sys, marl_tools.core.io; print([m for m in ('torch', 'safetensors', 'pandas') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    assert io.load_from_file is load_from_file
