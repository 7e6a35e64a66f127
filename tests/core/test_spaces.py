"""Spaces seen from the policy's side: shapes, encodings, round trips, groups and plain descriptions."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from marl_tools.core.errors import ConfigError, CorruptFileError
from marl_tools.core.space_json import space_from_json, space_to_json
from marl_tools.core.spaces import AgentSpaces, group_agents

BOX = gs.Box(-1, 1, (2,), np.float32)
FLAT_BOUNDS = {"low": st.floats(-1e4, 1e4, width=32), "width": st.floats(0.125, 1e4, width=32)}


def acting(space: gs.Space) -> AgentSpaces:
    return AgentSpaces(BOX, space)


def seeing(space: gs.Space) -> AgentSpaces:
    return AgentSpaces(space, gs.Discrete(2))


@st.composite
def boxes(draw, dtypes=(np.float32, np.float64)):
    """Boxes of up to three dimensions, each side of each element bounded or not."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    dtype = draw(st.sampled_from(dtypes))
    number = st.floats(-1000, 1000, width=32)
    low = draw(hnp.arrays(dtype, shape, elements=number))
    high = low + draw(hnp.arrays(dtype, shape, elements=st.floats(0, 1000, width=32)))
    open_low, open_high = (draw(hnp.arrays(bool, shape)) for _ in range(2))
    low = np.where(open_low, -np.inf, low).astype(dtype)
    return gs.Box(low, np.where(open_high, np.inf, high).astype(dtype), shape, dtype)


discretes = st.builds(gs.Discrete, st.integers(1, 20), start=st.integers(-50, 50))


@st.composite
def multi_discretes(draw):
    nvec = draw(hnp.arrays(np.int64, hnp.array_shapes(max_dims=2, max_side=3), elements=st.integers(1, 5)))
    start = draw(hnp.arrays(np.int64, nvec.shape, elements=st.integers(-9, 9)))
    return gs.MultiDiscrete(nvec, start=start)


multi_binaries = st.builds(
    gs.MultiBinary, st.integers(1, 5) | st.lists(st.integers(1, 3), min_size=1, max_size=3)
)
simple = st.one_of(discretes, multi_discretes(), multi_binaries, boxes())
playable = st.recursive(
    simple,
    lambda parts: (
        st.lists(parts, min_size=1, max_size=3).map(gs.Tuple)
        | st.dictionaries(st.text("abc", max_size=2), parts, min_size=1, max_size=3).map(gs.Dict)
    ),
    max_leaves=4,
)


def leaves(space, action):
    """The simple parts of a space, each with its part of the action."""
    match space:
        case gs.Dict():
            assert list(action) == list(space.spaces)
            return [leaf for key, part in space.spaces.items() for leaf in leaves(part, action[key])]
        case gs.Tuple():
            assert isinstance(action, tuple)
            pairs = zip(space.spaces, action, strict=True)
            return [leaf for part, value in pairs for leaf in leaves(part, value)]
    return [(space, np.asarray(action))]


def assert_same(space, action, again, *, rounding=0.0):
    """Equal to the bit, but for a number that is tiny beside its bounds; ``rounding`` is relative to those."""
    assert space.contains(again)
    for (part, left), (_, right) in zip(leaves(space, action), leaves(space, again), strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        if isinstance(part, gs.Box):
            both = part.bounded_below & part.bounded_above
            scale = np.where(both, np.maximum(abs(part.low), abs(part.high)), abs(left)).astype(float)
            eps = max(rounding, 4 * np.finfo(float).eps)
            assert (abs(left.astype(float) - right) <= eps * scale).all()
            if not rounding and part.dtype == np.float32:
                large = abs(left) >= 1e-6 * scale
                assert (left == right)[large].all()
        else:
            np.testing.assert_array_equal(left, right)


@given(space=playable, seed=st.integers(0, 2**31 - 1))
def test_an_action_of_the_env_comes_back_from_the_policys_side(space, seed):
    space.seed(seed)
    spaces = acting(space)
    actions = [space.sample() for _ in range(4)]
    policy = np.stack([spaces.to_policy(action) for action in actions])
    assert policy.shape == (4, *spaces.action_shape)
    assert policy.dtype == (np.int64 if spaces.is_discrete else np.float64)
    for action, again in zip(actions, spaces.to_env(policy), strict=True):
        assert_same(space, action, again)


@given(space=playable, seed=st.integers(0, 2**31 - 1))
def test_an_action_of_the_env_comes_back_from_its_vector(space, seed):
    space.seed(seed)
    spaces, action = acting(space), space.sample()
    vector = spaces.one_hot(action)
    assert (vector.dtype, vector.shape) == (np.float32, (spaces.action_dim,))
    assert_same(space, action, spaces.from_one_hot(vector), rounding=1e-6)
    if spaces.is_discrete:
        # Scores count by their order alone.
        assert_same(space, action, spaces.from_one_hot(3.0 * vector - 1.0))


@given(space=playable, data=st.data())
def test_whatever_a_policy_puts_out_is_an_action_and_the_same_one_when_it_comes_back(space, data):
    spaces = acting(space)
    rows = []
    for part, size in sizes(space):
        top = None if isinstance(part, gs.Box) else part
        rows.append(data.draw(policy_numbers(top, size)))
    numbers = np.concatenate(rows).astype(spaces.action_dtype).reshape(1, *spaces.action_shape)
    action = spaces.to_env(numbers)[0]
    assert space.contains(action)
    assert_same(space, action, spaces.to_env(spaces.to_policy(action)[None])[0])


def sizes(space):
    """The simple parts of a space and how many numbers each takes."""
    match space:
        case gs.Dict():
            return [leaf for part in space.spaces.values() for leaf in sizes(part)]
        case gs.Tuple():
            return [leaf for part in space.spaces for leaf in sizes(part)]
    return [(space, int(np.prod(space.shape or ())))]


def policy_numbers(space, size):
    match space:
        case gs.Discrete():
            tops = [int(space.n)]
        case gs.MultiDiscrete():
            tops = space.nvec.reshape(-1).tolist()
        case gs.MultiBinary():
            tops = [2] * size
        case _:
            return hnp.arrays(np.float32, size, elements=st.floats(-5, 5, width=32))
    return st.tuples(*(st.integers(0, top - 1) for top in tops)).map(np.array)


@given(space=boxes(), values=st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=8))
def test_whatever_a_policy_puts_out_is_in_the_box(space, values):
    spaces = acting(space)
    actions = np.resize(np.array(values, np.float32), (3, *spaces.action_shape))
    assert all(space.contains(action) for action in spaces.to_env(actions))


def test_the_bounds_are_spanned_dimension_by_dimension():
    low, high = np.array([[-2.0, 0.0, 10.0]]), np.array([[2.0, 1.0, 10.5]])
    spaces = acting(gs.Box(low, high, (1, 3), np.float64))
    actions = np.array([[-1.0, -1, -1], [0, 0, 0], [1, 1, 1], [-7, 0.5, 7]])
    np.testing.assert_allclose(
        spaces.to_env(actions), [[[-2, 0, 10]], [[0, 0.5, 10.25]], [[2, 1, 10.5]], [[-2, 0.75, 10.5]]]
    )


def test_a_dimension_without_a_bound_passes_through_and_one_with_a_single_bound_is_clipped_there():
    low, high = np.array([-np.inf, 0.0, -np.inf, -1.0]), np.array([np.inf, np.inf, 5.0, 1.0])
    spaces = acting(gs.Box(low, high, dtype=np.float64))
    actions = np.array([[-7.0, -7, -7, -7], [7, 7, 7, 7]])
    np.testing.assert_array_equal(spaces.to_env(actions), [[-7, 0, -7, -1], [7, 7, 5, 1]])


def test_bounds_near_the_end_of_the_floats_do_not_overflow():
    spaces = acting(gs.Box(-1e308, 1e308, (1,), np.float64))
    np.testing.assert_allclose(spaces.to_env(np.array([[-1.0], [0.0], [1.0]])), [[-1e308], [0], [1e308]])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int8])
def test_every_value_of_an_integer_box_can_be_reached_and_comes_back_exactly(dtype):
    least = 0 if dtype is np.uint8 else -10
    space = gs.Box(least, 100, (3,), dtype)
    spaces = acting(space)
    for value in range(least, 101):
        action = np.full(3, value, dtype)
        again = spaces.to_env(spaces.to_policy(action)[None])[0]
        assert again.dtype == dtype
        np.testing.assert_array_equal(again, action)
    # Halfway between two values the nearer is meant: no shift towards 0.
    np.testing.assert_array_equal(
        acting(gs.Box(-1, 1, (2,), dtype=np.int32)).to_env(np.array([[-0.6, 0.6]]))[0], [-1, 1]
    )


def test_an_integer_box_without_bounds_takes_the_rounded_number():
    assert acting(gs.Box(-np.inf, np.inf, (2,), np.int64)).to_env(np.array([[-3.6, 2.4]]))[0].tolist() == [
        -4,
        2,
    ]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32])
def test_the_ends_of_an_integer_type_can_be_played_without_overflow(dtype):
    info = np.iinfo(dtype)
    space = gs.Box(info.min, info.max, (1,), dtype)
    for number in (-1.0, 0.0, 1.0, 3.0):
        (action,) = acting(space).to_env(np.array([[number]], np.float32))
        assert space.contains(action)
        assert float(action[0]) == pytest.approx(
            np.clip(number, -1, 1) * (info.max / 2 - info.min / 2) + (info.max / 2 + info.min / 2),
            rel=1e-9,
            abs=4096,
        )


def test_a_dimension_of_no_width_has_one_action():
    spaces = acting(gs.Box(3.0, 3.0, (1,), np.float32))
    assert np.isfinite(spaces.to_policy(np.array([3.0], np.float32))).all()
    assert spaces.to_env(np.array([[-1.0], [1.0]])) == [3.0, 3.0]


def test_a_discrete_action_is_a_plain_int_counted_from_the_spaces_start():
    actions = acting(gs.Discrete(3, start=5)).to_env(np.array([0, 2]))
    assert (actions, [type(action) for action in actions]) == ([5, 7], [int, int])


@pytest.mark.parametrize(
    ("space", "action", "vector"),
    [
        (gs.Discrete(3, start=5), 6, [0, 1, 0]),
        (gs.MultiDiscrete([2, 3], start=[1, -1]), [2, -1], [0, 1, 1, 0, 0]),
        (gs.MultiDiscrete([[2], [2]]), [[1], [0]], [0, 1, 1, 0]),
        (gs.MultiBinary((2, 2)), [[1, 0], [0, 1]], [1, 0, 0, 1]),
        (gs.Box(0, 4, (2,), np.float32), [0.0, 3.0], [-1, 0.5]),
        (gs.Box(0, np.inf, (1,), np.float32), [7.0], [7]),
        (
            gs.Tuple([gs.Discrete(2), gs.Dict(b=gs.Box(-2, 2, ()), a=gs.MultiBinary(2))]),
            (1, {"b": 1.0, "a": [0, 1]}),
            [0, 1, 0.5, 0, 1],
        ),
    ],
)
def test_one_hot_is_a_flat_vector_with_an_entry_an_output(space, action, vector):
    spaces = acting(space)
    result = spaces.one_hot(action)
    assert (result.dtype, result.tolist()) == (np.float32, vector)
    assert spaces.action_dim == len(vector)
    np.testing.assert_equal(leaves(space, spaces.from_one_hot(result)), leaves(space, action))


@pytest.mark.parametrize(
    ("space", "kind", "dim", "shape"),
    [
        (gs.Discrete(4), "discrete", 4, ()),
        (gs.MultiDiscrete([[2, 3], [4, 5]]), "multi_discrete", 14, (4,)),
        (gs.MultiBinary((2, 3)), "multi_binary", 6, (6,)),
        (gs.Box(-1, 1, (2, 3)), "continuous", 6, (6,)),
        (gs.Box(-1, 1, ()), "continuous", 1, (1,)),
        (gs.Tuple([gs.Discrete(4), gs.Dict(a=gs.MultiBinary(2))]), "composite", 6, (3,)),
        (gs.Dict(a=gs.Discrete(4), b=gs.Box(-1, 1, (2, 3))), "composite", 10, (7,)),
    ],
)
def test_the_figures_that_a_network_is_built_from(space, kind, dim, shape):
    spaces = acting(space)
    assert (spaces.action_type, spaces.action_dim, spaces.action_shape) == (kind, dim, shape)
    numbers = any(isinstance(part, gs.Box) for part, _ in sizes(space))
    assert spaces.is_discrete == (not numbers)
    assert spaces.action_dtype == (np.float32 if numbers else np.int64)
    action = spaces.to_env(np.zeros((1, *shape), spaces.action_dtype))[0]
    assert space.contains(action)


def test_a_space_of_a_users_own_subclass_is_played_as_its_parent():
    class Buttons(gs.Discrete):
        pass

    assert acting(Buttons(3)).action_type == "discrete"


@pytest.mark.parametrize(
    ("space", "shape", "dtype", "state_dim"),
    [
        (gs.Box(-1, 1, (3,), np.float64), (3,), np.float32, 3),
        (gs.Box(0, 255, (4, 5, 3), np.uint8), (4, 5, 3), np.uint8, (4, 5, 3)),
        (gs.Box(0, 9, (4, 4), np.int64), (4, 4), np.float32, (4, 4)),
        (gs.Box(-1, 1, ()), (1,), np.float32, 1),
        (gs.Discrete(4), (4,), np.float32, 4),
        (gs.Dict(a=gs.Discrete(2), b=gs.Box(0, 1, (2, 2))), (6,), np.float32, 6),
        (gs.Tuple([gs.MultiBinary(3), gs.MultiDiscrete([2, 2])]), (7,), np.float32, 7),
    ],
)
def test_an_observation_is_an_array_of_the_announced_shape(space, shape, dtype, state_dim):
    spaces = seeing(space)
    assert (spaces.obs_shape, spaces.obs_dtype, spaces.masked) == (shape, dtype, False)
    assert (spaces.state_dim, spaces.observable_dim) == (state_dim, {"state": state_dim})
    assert np.shape(spaces.encode(space.sample())) == shape


@pytest.mark.parametrize(
    ("space", "observation", "encoded"),
    [
        (gs.Discrete(3, start=-1), 1, [0, 0, 1]),
        (gs.MultiDiscrete([2, 3], start=[5, 1]), np.array([6, 3]), [0, 1, 0, 0, 1]),
        (gs.Box(-1, 1, ()), np.float32(0.5), [0.5]),
        (gs.Dict(b=gs.Discrete(2), a=gs.Box(0, 9, (2,))), {"a": np.array([3.0, 4.0]), "b": 1}, [0, 1, 3, 4]),
        (gs.Tuple([gs.Box(0, 9, (1,)), gs.MultiBinary(2)]), (np.array([7.0]), np.array([0, 1])), [7, 0, 1]),
    ],
)
def test_observations_that_are_no_box_become_one_flat_vector(space, observation, encoded):
    assert seeing(space).encode(observation).tolist() == encoded


def test_a_mask_in_the_observation_is_taken_out_of_what_the_network_sees():
    inner = gs.Box(0, 1, (3, 3, 2), np.float32)
    spaces = seeing(gs.Dict(observation=inner, action_mask=gs.Box(0, 1, (2,), np.int8)))
    observation = {"observation": inner.sample(), "action_mask": np.array([1, 0])}
    assert (spaces.masked, spaces.network_space, spaces.obs_shape) == (True, inner, (3, 3, 2))
    assert spaces.encode(observation) is observation["observation"]
    # With a third key it is an observation like any other.
    assert not seeing(gs.Dict(observation=inner, action_mask=gs.MultiBinary(2), time=gs.Discrete(2))).masked


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (gs.Text(4), "observation space Text"),
        (gs.Graph(BOX, None), "observation space Graph"),
        (gs.Sequence(BOX), "observation space Sequence"),
        (gs.OneOf([BOX, BOX]), "observation space OneOf"),
        (gs.Dict(a=BOX, b=gs.Tuple([gs.Text(2)])), "observation space Text"),
    ],
)
def test_an_observation_without_a_fixed_size_is_refused_by_name(space, named):
    with pytest.raises(ConfigError, match=named):
        seeing(space)


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (gs.Text(4), "Text"),
        (gs.Graph(BOX, None), "Graph"),
        (gs.Sequence(BOX), "Sequence"),
        (gs.OneOf([BOX, gs.Discrete(2)]), "OneOf"),
        (gs.Dict(a=BOX, b=gs.Tuple([gs.Text(2)])), "Text"),
    ],
)
def test_an_action_space_that_no_policy_plays_is_refused_by_name_with_a_remedy(space, named):
    with pytest.raises(ConfigError, match=f"action space {named}.* cannot be played.* in a wrapper"):
        acting(space)


@pytest.mark.parametrize("space", [gs.Dict(), gs.Tuple([gs.Tuple([])]), gs.Box(-1, 1, (0,))])
def test_an_action_space_with_nothing_to_choose_is_refused(space):
    with pytest.raises(ConfigError, match="nothing to choose"):
        acting(space)


def test_spaces_travel_to_other_processes():
    spaces = acting(gs.Dict(a=gs.Discrete(2), b=BOX))
    again = pickle.loads(pickle.dumps(spaces))
    assert again == spaces
    np.testing.assert_array_equal(again.one_hot({"a": 1, "b": [0.5, -0.5]}), [0, 1, 0.5, -0.5])


def spaces_of(**sizes: int) -> dict[str, AgentSpaces]:
    return {agent: seeing(gs.Box(0, 1, (size,))) for agent, size in sizes.items()}


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ({"piston_0": 1, "piston_1": 1, "piston_10": 1}, {"piston": ["piston_0", "piston_1", "piston_10"]}),
        (
            {"adversary_0": 2, "agent_0": 1, "adversary_1": 2},
            {"adversary": ["adversary_0", "adversary_1"], "agent": ["agent_0"]},
        ),
        ({"archer_0": 1, "knight_0": 1}, {"agents": ["archer_0", "knight_0"]}),
        ({"000": 1, "001": 1}, {"agents": ["000", "001"]}),
        (
            {"agent_0": 1, "agent_1": 2, "agent_2": 3},
            {"agent": ["agent_0"], "agent-2": ["agent_1"], "agent-3": ["agent_2"]},
        ),
        ({"alice": 1, "bob": 2, "carol": 1}, {"agents": ["alice", "carol"], "bob": ["bob"]}),
        ({"a-2_0": 1, "a_0": 2, "a_1": 3}, {"a-2": ["a-2_0"], "a": ["a_0"], "a-3": ["a_1"]}),
    ],
)
def test_agents_with_equal_spaces_are_one_group_named_after_their_stem(sizes, groups):
    made = group_agents(list(sizes), spaces_of(**sizes))
    assert {group.name: list(group.agents) for group in made} == groups
    assert [group.agents[0] for group in made] == sorted(
        (g[0] for g in groups.values()), key=list(sizes).index
    )


@given(st.dictionaries(st.text("ab_-012", max_size=5), st.integers(1, 3), min_size=1, max_size=8))
def test_every_agent_is_in_the_one_group_of_its_space_and_names_are_distinct(sizes):
    spaces = spaces_of(**sizes)
    groups = group_agents(list(sizes), spaces)
    assert sorted(agent for group in groups for agent in group.agents) == sorted(sizes)
    assert len({group.name for group in groups}) == len(groups) == len(set(sizes.values()))
    assert all(group.name for group in groups)
    assert all(spaces[agent] == group.spaces for group in groups for agent in group.agents)


def test_spaces_that_differ_in_the_action_alone_are_two_groups():
    spaces = {
        "a_0": acting(gs.Discrete(2)),
        "a_1": acting(gs.Discrete(2, start=1)),
        "a_2": acting(gs.Discrete(2)),
    }
    assert [group.agents for group in group_agents(list(spaces), spaces)] == [("a_0", "a_2"), ("a_1",)]


any_space = st.recursive(
    st.one_of(
        playable,
        boxes(dtypes=(np.float16,)),
        st.builds(lambda n: gs.Box(0, n, (2,), np.int64), st.integers(0, 2**62)),
        st.just(gs.Box(0, 255, (2, 2), np.uint8)),
        st.just(gs.Box(-np.inf, np.inf, (1,), np.int64)),
        st.just(gs.Box(0, 1, (0,))),
        st.just(gs.Box(0, 1, (2,), np.bool_)),
        st.just(gs.Discrete(3, dtype=np.int32)),
        st.just(gs.MultiDiscrete([2, 3], dtype=np.int32)),
    ),
    lambda parts: (
        st.lists(parts, max_size=3).map(gs.Tuple)
        | st.dictionaries(st.text("abc", max_size=2), parts, max_size=3).map(gs.Dict)
    ),
    max_leaves=4,
)


@given(any_space)
def test_a_description_survives_json_and_makes_an_equal_space(space):
    row = json.loads(json.dumps(space_to_json(space)))
    again = space_from_json(row)
    assert again == space
    assert space_to_json(again) == row
    if isinstance(space, gs.Box):
        np.testing.assert_array_equal(again.low, space.low, strict=True)
        np.testing.assert_array_equal(again.high, space.high, strict=True)


def test_the_parts_of_a_dict_keep_their_order_which_is_that_of_the_networks_inputs():
    space = gs.Dict(b=gs.Discrete(2), a=gs.Dict(d=gs.Discrete(2), c=BOX))
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    observation = space.sample()
    np.testing.assert_array_equal(seeing(again).encode(observation), seeing(space).encode(observation))
    assert list(again["a"]) == ["d", "c"]


def test_a_space_that_cannot_be_described_says_so():
    with pytest.raises(ConfigError, match=r"Text.* has no plain description"):
        space_to_json(gs.Text(3))


@pytest.mark.parametrize(
    "row",
    [
        None,
        7,
        "Box",
        [1, 2],
        {},
        {"kind": "Text"},
        {"kind": ["Box"]},
        {"kind": "Discrete"},
        {"kind": "Discrete", "n": 0, "start": 0},
        {"kind": "Discrete", "n": 2.5, "start": 0},
        {"kind": "Discrete", "n": 2, "start": 0, "dtype": "float32"},
        {"kind": "Box", "low": 2, "high": 1, "shape": [1], "dtype": "float32"},
        {"kind": "Box", "low": 0, "high": 1, "shape": [-1], "dtype": "float32"},
        {"kind": "Box", "low": [0, 0], "high": 1, "shape": [3], "dtype": "float32"},
        {"kind": "Box", "low": "zero", "high": 1, "shape": [3], "dtype": "float32"},
        {"kind": "Box", "low": float("nan"), "high": 1, "shape": [3], "dtype": "float32"},
        {"kind": "Box", "low": 0, "high": 1, "shape": [3], "dtype": "words"},
        {"kind": "Box", "low": 0, "high": 1, "shape": [3], "dtype": "object"},
        {"kind": "Box", "low": 0, "high": 1, "shape": [10**14], "dtype": "float32"},
        {"kind": "Box", "low": 0, "high": 1, "shape": [3]},
        {"kind": "MultiDiscrete", "nvec": [2, 0], "start": [0, 0]},
        {"kind": "MultiDiscrete", "nvec": [2, 2], "start": [0]},
        {"kind": "MultiDiscrete", "nvec": [2.5, 2], "start": [0, 0]},
        {"kind": "MultiDiscrete", "nvec": [2**31, 2], "start": [0, 0], "dtype": "int32"},
        {"kind": "MultiDiscrete", "nvec": [2, 2], "start": [float(2**31), 0], "dtype": "int32"},
        {"kind": "MultiBinary", "n": [0]},
        {"kind": "MultiBinary", "n": None},
        {"kind": "Dict", "spaces": [1]},
        {"kind": "Dict", "spaces": {"a": 3}},
        {"kind": "Tuple", "spaces": 3},
        {"kind": "Tuple", "spaces": [None]},
    ],
)
def test_a_corrupt_description_is_named_as_one(row):
    with pytest.raises(CorruptFileError, match=r"not a space|unknown space kind"):
        space_from_json(row)


def test_a_description_nested_beyond_measure_is_an_error_like_any_other():
    row = {"kind": "Discrete", "n": 2, "start": 0}
    for _ in range(3000):
        row = {"kind": "Tuple", "spaces": [row]}
    with pytest.raises(CorruptFileError, match="not a space"):
        space_from_json(row)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats()
    | st.sampled_from(["Box", "int8", "float32", "x"]),
    lambda parts: (
        st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(["kind", "a"]), parts, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=200)
@given(space=any_space, data=st.data())
def test_any_field_may_be_spoilt_and_nothing_but_a_space_or_that_error_comes_of_it(space, data):
    row = space_to_json(space)
    row[data.draw(st.sampled_from(sorted(row)))] = data.draw(plain)
    try:
        again = space_from_json(row)
    except CorruptFileError:
        return
    assert space_from_json(space_to_json(again)) == again


def test_bounds_that_no_number_of_their_kind_holds_are_no_space():
    row = space_to_json(gs.Box(0.0, 1.0, (), np.float16)) | {"high": 65520.0}
    with pytest.raises(CorruptFileError, match="not a space"):
        space_from_json(row)
