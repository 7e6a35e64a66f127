"""Segments as files: what goes in comes out, and whatever is wrong with a file is said by file and field."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marl_tools.core.errors import CorruptFileError
from marl_tools.core.npz import NpzReader, pack_npz
from marl_tools.core.segments import SCHEMA, pack_segment, read_meta, read_segment
from tests.core.segments import BOX, WHOLE, agent, rewritten, segment


def written(tmp_path, content):
    path = tmp_path / "w-00000000.npz"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("compress", [False, True])
def test_a_segment_comes_back_as_it_went_in(tmp_path, compress):
    ours = segment({"a": agent(masked=True, arrival=(2.0, 0.5)), "../b\0": agent(0, end="interrupted")})
    theirs = read_segment(written(tmp_path, pack_segment(ours, compress=compress)))
    for name in ("env", "env_index", "split", "seed", "episode", "segment", "t_start", "frame", "final"):
        assert getattr(theirs, name) == getattr(ours, name)
    assert list(theirs.agents) == list(ours.agents)
    for name, there in theirs.agents.items():
        here = ours.agents[name]
        assert (there.end, there.arrival) == (here.end, here.arrival)
        assert there.arrays.keys() == here.arrays.keys()
        for key, array in there.arrays.items():
            assert array.dtype == here.arrays[key].dtype
            assert np.array_equal(array, here.arrays[key], equal_nan=array.dtype.kind == "f")
    assert theirs.transitions == 4
    assert theirs.agents["a"].total_reward == 0 + 0.5 + 1 + 1.5 + 2.0
    assert theirs.agents["a"].total_cost == 0.5
    assert str(theirs.agents["a"].spaces().action_space) == "Discrete(3)"


def test_numpy_reads_a_segment_without_this_package_and_without_pickle(tmp_path):
    with np.load(written(tmp_path, WHOLE), allow_pickle=False) as file:
        meta = json.loads(file["meta"].item())
        assert (meta["schema"], meta["env"], meta["episode"], meta["segment"]) == (SCHEMA, "team_v0", 3, 1)
        assert [row["name"] for row in meta["agents"]] == ["a", "b"]
        assert file["a0.obs"].shape == (5, 2)
        assert {name.split(".")[0] for name in file.files} == {"meta", "a0", "a1"}
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        assert archive.testzip() is None


def test_the_meta_can_be_read_alone(tmp_path):
    assert [row["steps"] for row in read_meta(written(tmp_path, WHOLE))["agents"]] == [4, 2]


def test_a_missing_file_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_segment(tmp_path / "gone.npz")
    with pytest.raises(IsADirectoryError):
        read_segment(tmp_path)


def wrong(**fields):
    return lambda meta: {**meta, **fields}


def wrong_agent(**fields):
    return lambda meta: meta["agents"][0].update(fields)


DAMAGES = {
    # What was changed: the field that the error names.
    "no meta": ({"meta": None}, "meta"),
    "meta of bytes": ({"meta": np.array(b"{}")}, "meta"),
    "meta is no JSON": ({"meta": np.array("{")}, "meta"),
    "meta is a list": ({"meta": np.array("[]")}, "meta.schema"),
    "a later schema": (wrong(schema="marl_tools.segment/2"), "meta.schema"),
    "no env": (wrong(env=None), "meta.env"),
    "final is 1": (wrong(final=1), "meta.final"),
    "t_start below 0": (wrong(t_start=-1), "meta.t_start"),
    "t_start is true": (wrong(t_start=True), "meta.t_start"),
    "t_start too late": (wrong(t_start=10**30), "a0.t"),
    "agents is no list": (wrong(agents={}), "meta.agents"),
    "an agent that is a number": (wrong(agents=[3]), "meta.agents"),
    "two agents of one name": (wrong_agent(name="b"), "meta.agents"),
    "steps are wrong": (wrong_agent(steps=3), "a0.obs"),
    "steps without bound": (wrong_agent(steps=10**30), "a0.obs"),
    "an unknown end": (wrong_agent(end="won"), r"meta.agents\[0\].end"),
    "an end that the flags do not know": (wrong_agent(end="terminated"), "a0.term"),
    "an arrival of three": (wrong_agent(arrival=[1, 2, 3]), r"meta.agents\[0\].arrival"),
    "a space that is a string": (wrong_agent(action_space="Discrete(3)"), r"meta.agents\[0\].action_space"),
    "an agent more than arrays": (
        lambda meta: meta["agents"].append({**meta["agents"][0], "name": "c"}),
        "a2.obs",
    ),
    "an array is missing": ({"a1.act": None}, "a1.act"),
    "objects": ({"a0.obs": np.array([None, 1], object)}, "a0.obs"),
    "records": ({"a0.obs": np.zeros(5, [("x", float)])}, "a0.obs"),
    "strings": ({"a0.act": np.array(["x"] * 4)}, "a0.act"),
    "a scalar": ({"a0.obs": np.array(3.0)}, "a0.obs"),
    "an observation short": ({"a0.obs": np.zeros((4, 2), np.float32)}, "a0.obs"),
    "rewards of whole numbers": ({"a0.rew": np.zeros(4, int)}, "a0.rew"),
    "a table of rewards": ({"a0.rew": np.zeros((4, 1))}, "a0.rew"),
    "a mask of one row": ({"a0.mask": np.ones(5, bool)}, "a0.mask"),
    "an end in the middle": ({"a0.trunc": np.array([False, True, False, True])}, "a0.trunc"),
    "time runs backwards": ({"a0.t": np.array([10, 11, 11, 12])}, "a0.t"),
    "time before the segment": ({"a0.t": np.array([9, 10, 11, 12])}, "a0.t"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_with_its_field_and_left_as_it_was(tmp_path, damage):
    change, field = DAMAGES[damage]
    content = rewritten(WHOLE, **change) if isinstance(change, dict) else rewritten(WHOLE, change)
    path = written(tmp_path, content)
    with pytest.raises(CorruptFileError, match=rf"w-00000000.npz, field '{field}': .*left as it is"):
        read_segment(path)
    assert path.read_bytes() == content


def test_a_pickle_in_a_file_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    out = io.BytesIO()
    np.savez(out, meta=np.array(Trap(), object))
    with pytest.raises(CorruptFileError, match="field 'meta'"):
        read_segment(written(tmp_path, out.getvalue()))
    assert not (tmp_path / "trapped").exists()


def test_spaces_that_make_no_sense_are_found_when_they_are_asked_for(tmp_path):
    content = rewritten(WHOLE, change=wrong_agent(observation_space={**BOX, "shape": [2**60]}))
    read = read_segment(written(tmp_path, content)).agents["a"]
    with pytest.raises(CorruptFileError, match="not a space"):
        read.spaces()


def header_only(shape, dtype="<f8"):
    text = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        header_only((2**60,)),
        header_only((-1,)),
        header_only((), f"<U{2**29}"),
        header_only((2**40, 0, 2**40)),
    ],
)
def test_a_shape_that_is_not_in_the_file_is_refused_before_memory_is_taken(tmp_path, content):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", content)
    path = written(tmp_path, out.getvalue())
    with NpzReader(path) as file:
        with pytest.raises(CorruptFileError, match="field 'x': "):
            file.read("x")


def test_a_bomb_is_refused_by_what_it_claims(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("meta.npy", bytes(2**22))
    path = written(tmp_path, out.getvalue())
    assert path.stat().st_size < 2**14
    with pytest.raises(CorruptFileError, match=f"claims to hold {2**22} bytes"):
        read_segment(path, max_bytes=2**20)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "f-00000000.npz"


def fault_of(path):
    """What the reader says of the file; nothing but its own error gets out."""
    try:
        read_segment(path)
    except CorruptFileError as error:
        return str(error)
    return None


@settings(max_examples=150)
@given(data=st.data())
def test_no_damage_to_the_bytes_raises_anything_but_what_the_reader_promises(place, data):
    content = bytearray(
        data.draw(st.sampled_from([WHOLE, pack_npz({"meta": np.array("{}")}, compress=True)]))
    )
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    place.write_bytes(bytes(content[:cut]))
    fault = fault_of(place)
    assert str(place) in fault if fault else cut == len(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
META = json.loads(np.load(io.BytesIO(WHOLE))["meta"].item())


@settings(max_examples=80)
@given(st.sampled_from([*META, *(f"agents.{key}" for key in META["agents"][0])]), json_values)
def test_no_value_in_the_meta_raises_anything_but_what_the_reader_promises(place, key, value):
    def change(meta):
        row = meta["agents"][0] if key.startswith("agents.") else meta
        row[key.removeprefix("agents.")] = value

    place.write_bytes(rewritten(WHOLE, change))
    assert str(place) in (fault_of(place) or str(place))


@given(
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    dtype=st.sampled_from(["u1", "i8", "f4", "f8", "?", ">f4", ">i8"]),
    compress=st.booleans(),
    order=st.sampled_from("CF"),
)
@settings(max_examples=60)
def test_arrays_of_every_shape_and_kind_come_back(place, shape, dtype, compress, order):
    array = np.asarray(np.random.default_rng(0).integers(0, 2, shape), dtype, order=order)
    place.write_bytes(pack_npz({"x": np.ascontiguousarray(array).reshape(shape)}, compress=compress))
    with NpzReader(place) as file:
        back = file.read("x")
    assert back.dtype == array.dtype.newbyteorder("=")
    assert back.shape == shape
    assert np.array_equal(back, array)
    np.savez(place, x=array)
    with NpzReader(place) as file:
        assert np.array_equal(file.read("x"), array)
