"""Floors of the opponents: valid at every count at once, never falling within a stream, honest when policies change."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from marl_tools.core.bounds import ppr_lower, rank_level
from marl_tools.core.errors import ConfigError
from marl_tools.core.io import load_from_file, save_to_file
from marl_tools.models.opponent import OpponentModel
from marl_tools.models.world import WorldModel

ACTIONS = (3, 2)
DELTA = 0.1
MODES = ["oracle", "uniform", "empirical", "worst_case", "monotone_floor"]


def level(agent, rank=1, stream=1):
    """What one action of an agent may spend at its ``rank``-th key in the ``stream``-th stream there."""
    return rank_level(rank_level(DELTA / len(ACTIONS) / ACTIONS[agent], rank), stream)


def at_one_key(proposed, agent=0, key=0, model=None):
    model = model or OpponentModel(ACTIONS, DELTA)
    model.add(np.full(len(proposed), key), agent, proposed)
    return model


def proposals(policy, n=200, seed=0):
    return np.random.default_rng(seed).choice(len(policy), n, p=policy)


moves = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=80)


# Validity


def test_floors_are_below_the_truth_at_every_count_in_all_but_delta_of_the_runs():
    # A floor is the greatest bound so far: above the truth at the end if it ever was.
    policy, delta, runs, wrong = np.array([0.6, 0.3, 0.1]), 0.9, 400, 0
    for run in range(runs):
        model = OpponentModel((3,), delta)
        model.add(np.zeros(600, int), 0, proposals(policy, 600, run))
        wrong += (model.floors(0, 1)[0] > policy).any()
    assert wrong <= stats.binom.ppf(1 - 1e-6, runs, delta)
    assert wrong > 0  # the bound is not so loose that the test says nothing


def test_floors_approach_the_policy_and_leave_little_free():
    floors = at_one_key(proposals([0.6, 0.3, 0.1], 20_000)).floors(0, 1)
    np.testing.assert_allclose(floors[0], [0.6, 0.3, 0.1], atol=0.03)
    assert floors.sum() < 1


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_a_floor_is_the_greatest_lower_bound_at_any_count_so_far(proposed):
    floors = np.zeros(3)
    for m in range(1, len(proposed) + 1):
        floors = np.maximum(floors, ppr_lower(np.bincount(proposed[:m], minlength=3), m, level(0)))
    if floors.sum() > 1:
        floors = np.zeros(3)
    np.testing.assert_allclose(at_one_key(proposed).floors(0, 1)[0], floors, atol=1e-12)


@settings(max_examples=40)
@given(moves)
def test_free_mass_never_grows_within_a_stream_unless_the_stream_contradicts_itself(steps):
    model, before = OpponentModel(ACTIONS, DELTA), np.zeros((5, 3))
    for key, action in steps:
        model.add([key], 0, [action])
        floors = model.floors(0, 5)
        held = floors.any(1) | ~before.any(1)
        assert (floors >= before)[held].all()
        assert (floors.sum(1) <= 1).all()
        before = floors


@settings(max_examples=40)
@given(moves, st.integers(0, 80))
def test_a_batch_counts_as_its_draws_do_one_by_one(steps, cut):
    batches, single = OpponentModel(ACTIONS, DELTA), OpponentModel(ACTIONS, DELTA)
    for part in (steps[:cut], steps[cut:]):
        batches.add([key for key, _ in part], 0, [action for _, action in part])
    for key, action in steps:
        single.add([key], 0, [action])
    assert_same(batches, single)


def assert_same(ours, theirs):
    ours, theirs = ours.state(), theirs.state()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@given(st.permutations(range(5)))
def test_delta_is_split_over_agents_keys_in_order_of_discovery_and_actions(order):
    for agent in (0, 1):
        model = OpponentModel(ACTIONS, DELTA)
        for key in order:
            at_one_key([1] * 50, agent, key, model)
        for rank, key in enumerate(order, 1):
            assert model.floors(agent, 5)[key, 1] == pytest.approx(
                float(ppr_lower(50, 50, level(agent, rank)))
            )
        assert not model.floors(1 - agent, 5).any()


def test_the_shares_of_all_floors_sum_to_at_most_delta():
    ranks = np.arange(1, 10**5)
    one_action = rank_level(1.0, ranks).sum() * rank_level(1.0, ranks).sum()
    agents = sum(n * DELTA / len(ACTIONS) / n for n in ACTIONS)
    assert one_action * agents <= DELTA


# Streams


def test_a_stream_that_contradicts_itself_keeps_no_floor_until_the_next():
    model = at_one_key([0] * 200 + [1] * 2000)
    assert not model.floors(0, 1).any()
    at_one_key([1] * 500, model=model)
    assert not model.floors(0, 1).any()
    model.new_stream(0, drift=0.0)
    at_one_key([1] * 500, model=model)
    assert model.floors(0, 1)[0, 1] > 0.9


def test_a_known_drift_is_taken_off_and_new_draws_raise_the_floor_again():
    model = at_one_key(proposals([0.7, 0.3, 0.0], 2000))
    before = model.floors(0, 1)
    model.new_stream(0, drift=0.6)
    np.testing.assert_allclose(model.floors(0, 1), np.maximum(before - 0.6, 0))
    at_one_key([1] * 40, model=model)
    after = model.floors(0, 1)[0]
    assert after[0] == pytest.approx(before[0, 0] - 0.6)
    assert after[1] == pytest.approx(float(ppr_lower(40, 40, level(0, stream=2))))


def test_an_unknown_drift_resets_floors_everywhere_or_just_there():
    model = OpponentModel(ACTIONS, DELTA)
    for key in range(4):
        at_one_key([1] * 100, key=key, model=model)
    before = model.floors(0, 4)
    model.new_stream(0, drift=[0.1, np.nan, 0.0])
    np.testing.assert_allclose(model.floors(0, 4)[[0, 2], 1], before[[0, 2], 1] - [0.1, 0.0])
    assert not model.floors(0, 4)[[1, 3]].any()
    model.new_stream(0)
    assert not model.floors(0, 4).any()


def test_only_streams_with_draws_at_a_key_use_up_its_delta():
    model = OpponentModel(ACTIONS, DELTA)
    for _ in range(100):
        model.new_stream(0)
    at_one_key([1] * 50, model=model)
    assert model.floors(0, 1)[0, 1] == pytest.approx(float(ppr_lower(50, 50, level(0))))
    model.new_stream(0)
    at_one_key([1] * 50, model=model)
    assert model.floors(0, 1)[0, 1] == pytest.approx(float(ppr_lower(50, 50, level(0, stream=2))))


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_the_share_of_a_stream_is_spent_only_if_somebody_reads_its_floors(asked):
    model, spent = OpponentModel(ACTIONS, DELTA), 0
    for reads in asked:
        at_one_key([1] * 50, model=model)
        if reads:
            spent += 1
            share = level(0, stream=spent)
            assert model.floors(0, 1)[0, 1] == pytest.approx(float(ppr_lower(50, 50, share)))
        model.new_stream(0)
    # All streams that were read have different ranks, hence their shares sum to no more than that of one action.
    assert sum(level(0, stream=v) for v in range(1, spent + 1)) <= DELTA / len(ACTIONS) / ACTIONS[0]
    assert model.guess(0, 1)[0, 1] == (50 * len(asked) + 1) / (50 * len(asked) + 3)


def test_a_floor_that_is_carried_over_has_spent_its_share_unread():
    model = at_one_key([1] * 50)
    model.new_stream(0, drift=0.5)
    at_one_key([1] * 50, model=model)
    assert model.floors(0, 1)[0, 1] == pytest.approx(float(ppr_lower(50, 50, level(0, stream=2))))


def test_floors_that_were_read_are_all_right_in_all_but_delta_of_the_runs_however_many_streams_were_not():
    policy, delta, runs, wrong = np.array([0.6, 0.3, 0.1]), 0.9, 200, 0
    for run in range(runs):
        model, missed = OpponentModel((3,), delta), False
        for stream in range(30):
            model.add(np.zeros(200, int), 0, proposals(policy, 200, 1000 * run + stream))
            if stream % 10 == 9:
                missed |= bool((model.floors(0, 1)[0] > policy).any())
            model.new_stream(0)
        wrong += missed
    assert 0 < wrong <= stats.binom.ppf(1 - 1e-6, runs, delta)


def test_a_model_that_is_saved_while_its_stream_was_read_knows_so():
    model = at_one_key([1] * 50)
    model.floors(0, 1)
    back = OpponentModel.from_state(model.state(), ACTIONS, DELTA)
    for one in (model, back):
        one.new_stream(0)
        at_one_key([1] * 50, model=one)
        assert one.floors(0, 1)[0, 1] == pytest.approx(float(ppr_lower(50, 50, level(0, stream=2))))


def test_a_new_stream_of_one_agent_leaves_the_others_alone():
    model = at_one_key([1] * 50, agent=1, model=at_one_key([1] * 50))
    kept = model.floors(1, 1)
    model.new_stream(0)
    np.testing.assert_array_equal(model.floors(1, 1), kept)


# Modes


def test_each_mode_covers_what_it_says():
    policy = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    floors = {}
    for mode in MODES:
        model = at_one_key([0, 0, 1], key=1, model=OpponentModel(ACTIONS, DELTA, mode=mode))
        model.set_policy(0, policy)
        floors[mode] = model.floors(0, 3)
        assert model.guaranteed == (mode in ("oracle", "worst_case", "monotone_floor"))
        np.testing.assert_allclose(model.guess(0, 3).sum(1), 1)
    np.testing.assert_array_equal(floors["oracle"], [*policy, [0, 0, 0]])
    np.testing.assert_allclose(floors["uniform"], 1 / 3)
    np.testing.assert_allclose(floors["empirical"], [[1 / 3] * 3, [3 / 6, 2 / 6, 1 / 6], [1 / 3] * 3])
    assert not floors["worst_case"].any()
    assert 0 < floors["monotone_floor"][1, 0] < 2 / 3


@pytest.mark.parametrize("mode", MODES)
def test_actions_that_the_opponents_shield_may_replace_have_no_floor(mode):
    model = OpponentModel(ACTIONS, DELTA, mode=mode)
    model.set_policy(0, np.full((3, 3), 1 / 3))
    for key in range(3):
        at_one_key([0, 1, 2] * 200, key=key, model=model)
    free = model.floors(0, 3)
    allowed = np.array([[True, False, True], [False, False, True]])
    model.restrict(0, allowed)
    np.testing.assert_array_equal(model.floors(0, 3), free * [*allowed, [False] * 3])


def test_the_guess_remembers_earlier_streams_but_the_floors_do_not():
    model = at_one_key([2] * 7)
    model.new_stream(0)
    np.testing.assert_allclose(model.guess(0, 1), [[0.1, 0.1, 0.8]])
    assert not model.floors(0, 1).any()


def test_an_oracle_without_a_policy_or_with_an_old_one_is_refused():
    model = OpponentModel(ACTIONS, DELTA, mode="oracle", env_name="crossing")
    with pytest.raises(ConfigError, match=r"no policy of agent 1 in env 'crossing'.*set_policy"):
        model.floors(1, 2)
    model.set_policy(1, np.array([[0.5, 0.5]]))
    model.new_stream(1)
    with pytest.raises(ConfigError, match="no policy of agent 1"):
        model.floors(1, 2)


# Merging, saving, bad input


def test_merging_appends_the_other_stream_at_its_own_keys():
    ours, theirs = at_one_key([1] * 40), OpponentModel(ACTIONS, DELTA)
    at_one_key([1] * 60, key=2, model=theirs)
    at_one_key([2] * 80, key=0, model=theirs)
    ours.merge(theirs, np.array([5, 3, 0]))
    floors = ours.floors(0, 6)
    assert floors[0, 1] == pytest.approx(float(ppr_lower(100, 100, level(0))))
    assert floors[5, 2] == pytest.approx(float(ppr_lower(80, 80, level(0, rank=2))))
    assert not floors[[1, 2, 3, 4]].any()
    np.testing.assert_allclose(ours.guess(0, 1)[0], [1 / 103, 101 / 103, 1 / 103])


@settings(max_examples=40)
@given(moves, moves)
def test_a_saved_model_comes_back_exactly_and_goes_on_alike(steps, more):
    model = OpponentModel(ACTIONS, DELTA, env_name="e")
    for key, action in steps:
        model.add([key], 0, [action])
    model.new_stream(0, drift=0.1)
    model.restrict(1, np.ones((2, 2), np.bool_))
    back = OpponentModel.from_state(model.state(), ACTIONS, DELTA, env_name="e")
    for one in (model, back):
        one.add([key for key, _ in more], 0, [action for _, action in more])
    assert_same(model, back)
    np.testing.assert_array_equal(model.floors(1, 3), back.floors(1, 3))


def test_a_model_survives_an_npz_file(tmp_path):
    model = at_one_key([1, 2, 1], key=9)
    save_to_file(model.state(), tmp_path, "opponent.npz")
    assert_same(model, OpponentModel.from_state(load_from_file(tmp_path, "opponent.npz"), ACTIONS, DELTA))


def test_a_state_of_something_else_is_refused_with_both_values():
    state = OpponentModel(ACTIONS, DELTA, env_name="crossing").state()
    for arguments, name, match in [
        ((ACTIONS, DELTA), "corridor", "env_name 'crossing', here it is 'corridor'"),
        (((3, 3), DELTA), "crossing", r"actions \[3, 2\], here it is \[3, 3\]"),
        ((ACTIONS, 0.2), "crossing", r"delta 0.1, here it is 0.2"),
    ]:
        with pytest.raises(ConfigError, match=match):
            OpponentModel.from_state(state, *arguments, env_name=name)
    with pytest.raises(ConfigError, match="kind 'world model'"):
        OpponentModel.from_state(WorldModel(ACTIONS).state(), ACTIONS, DELTA)
    with pytest.raises(ConfigError, match="env_name"):
        OpponentModel(ACTIONS, DELTA, env_name="a").merge(
            OpponentModel(ACTIONS, DELTA, env_name="b"), np.zeros(0, int)
        )


def test_what_cannot_be_counted_or_set_is_refused():
    model = OpponentModel(ACTIONS, DELTA, env_name="crossing")
    with pytest.raises(ConfigError, match="action 2 of agent 1 in env 'crossing'"):
        model.add([0], 1, [2])
    with pytest.raises(ConfigError, match="key id -1 of agent 0"):
        model.add([0, -1], 0, [0, 0])
    with pytest.raises(ConfigError, match="distributions over 2 actions"):
        model.set_policy(1, np.array([[0.5, 0.6]]))
    with pytest.raises(ConfigError, match=r"must be \(K, 3\)"):
        model.restrict(0, np.ones((4, 2), np.bool_))
    with pytest.raises(ConfigError, match=r"drift -0\.1"):
        model.new_stream(0, drift=-0.1)
    with pytest.raises(ConfigError, match=r"opponent mode='nice'.*'worst_case'"):
        OpponentModel(ACTIONS, DELTA, mode="nice")
    with pytest.raises(ConfigError, match=r"delta=1\.5"):
        OpponentModel(ACTIONS, 1.5)
    assert not model.floors(0, 1).any()
