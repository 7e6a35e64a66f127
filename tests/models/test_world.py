"""The world model: what it counts, when it looks, how delta is spent, and whether the sets hold the truth."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from marl_tools.core.bounds import clopper_pearson, cp_upper, ppr_interval, rank_level, schedule_level
from marl_tools.core.errors import ConfigError
from marl_tools.core.io import load_from_file, save_to_file
from marl_tools.core.transitions import Outcome, TransitionTable, joint_index
from marl_tools.models._credible import credible_sets
from marl_tools.models.opponent import OpponentModel
from marl_tools.models.world import WorldModel

DELTA = 0.1
ACTIONS = (2, 3)
NOBODY = (False, False)
SCHEDULES = ["constant", "summable", "geometric", "ppr"]


def key(number):
    return int(number).to_bytes(3, "big") + b"\0"


def feed(model, outcomes, start=b"s", choices=(0, 0), ended=False):
    """Draws of one row, in one batch: ``outcomes`` are the numbers of the next keys."""
    n, flags = len(outcomes), np.zeros((len(outcomes), len(model.actions)), np.bool_)
    model.add_batch([start] * n, np.array([choices] * n), [key(o) for o in outcomes], flags, flags | ended)


def undeclared_shares(slots):
    """The part of a row's delta that each outcome gets by rank of discovery; the unseen mass has the other half."""
    return rank_level(0.5, np.arange(1, slots + 1))


# What is counted


@st.composite
def draws(draw):
    step = st.tuples(
        st.integers(0, 2),
        st.tuples(st.integers(0, 2), st.integers(0, 3)),
        st.integers(0, 3),
        st.tuples(st.booleans(), st.booleans()),
        st.tuples(st.booleans(), st.booleans()),
    )
    return draw(st.lists(step, max_size=60))


def add_all(model, steps):
    for at, choices, then, violated, ended in steps:
        model.add(key(at), choices, key(then), violated, ended)
    return model


def add_in_batches(model, steps, cut):
    for part in (steps[:cut], steps[cut:]):
        if part:
            at, choices, then, violated, ended = zip(*part, strict=True)
            flags = np.array(violated), np.array(ended)
            model.add_batch([key(k) for k in at], np.array(choices), [key(k) for k in then], *flags)
    return model


def assert_same(ours, theirs):
    ours, theirs = ours.state(), theirs.state()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@settings(max_examples=40)
@given(draws(), st.integers(0, 60))
def test_a_batch_counts_as_its_draws_do_one_by_one(steps, cut):
    assert_same(add_all(WorldModel(ACTIONS), steps), add_in_batches(WorldModel(ACTIONS), steps, cut))


@settings(max_examples=40)
@given(draws())
def test_a_table_holds_every_row_and_its_means_sum_to_one(steps):
    model = add_all(WorldModel(ACTIONS), steps)
    table = model.table(DELTA)
    seen = {(at, choices) for at, choices, *_ in steps}
    assert len(table.row_key) == model.num_rows == len(seen)
    rows = set(zip(table.row_key.tolist(), table.row_joint.tolist(), strict=True))
    assert rows == {(model.key_id(key(at)), int(joint_index(ACTIONS, np.array(c)))) for at, c in seen}
    np.testing.assert_allclose(table.mean.sum(1) + table.mean_unseen, 1)
    padding = table.succ < 0
    for array in (table.lo, table.hi, table.mean, table.violated, table.ended):
        assert not array[padding].any()
    assert (table.lo <= table.hi).all()
    assert table.num_keys == len(model.keys)


def test_outcomes_differ_by_key_violation_and_end_and_a_violation_counts_before_an_end():
    model = WorldModel(ACTIONS)
    for violated, ended in [
        ((True, False), (True, True)),
        (NOBODY, (True, True)),
        (NOBODY, NOBODY),
        (NOBODY, NOBODY),
    ]:
        model.add(b"s", (0, 0), b"t", violated, ended)
    table = model.table(DELTA)
    assert table.succ.tolist() == [[1, 1, 1]]
    assert table.violated[0].tolist() == [[True, False], [False, False], [False, False]]
    assert table.ended[0].tolist() == [[False, True], [True, True], [False, False]]


def test_draws_of_a_row_are_told_and_rows_that_do_not_exist_have_none():
    model = WorldModel(ACTIONS)
    feed(model, [1, 1, 2], choices=(1, 3))
    joint = joint_index(ACTIONS, np.array([1, 3]))
    assert model.draws([model.key_id(b"s"), model.key_id(key(1))], joint).tolist() == [3, 0]
    assert model.key_ids([b"s", b"nowhere"]).tolist() == [0, -1]


# When it looks


@pytest.mark.parametrize("cuts", [[100], [1, 99], [63, 1, 36], [64, 36], [65, 35]])
def test_a_look_is_taken_at_exactly_a_power_of_two_even_within_a_batch(cuts):
    outcomes = np.random.default_rng(1).integers(0, 2, 100)
    model = WorldModel(ACTIONS, support=two_ways)
    for part in np.split(outcomes, np.cumsum(cuts)[:-1]):
        feed(model, part)
    table = model.table(DELTA)
    level = schedule_level(rank_level(DELTA, 1), 64, "summable")
    lo, hi = clopper_pearson(np.bincount(outcomes[:64]), 64, level)
    np.testing.assert_allclose([table.lo[0], table.hi[0]], [lo, hi])


def two_ways(_key, _choices):
    return [Outcome(0.5, key(i), NOBODY, NOBODY) for i in range(2)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_between_looks_the_very_same_table_comes_back(schedule):
    model = WorldModel(ACTIONS)
    feed(model, [0] * 64)
    table = model.table(DELTA, schedule=schedule)
    feed(model, [1] * 63)
    assert not model.stale_rows.size
    assert model.table(DELTA, schedule=schedule) is table
    feed(model, [1])
    assert model.stale_rows.tolist() == [0]
    assert model.table(DELTA, schedule=schedule) is not table


def test_a_renewed_table_equals_one_made_from_scratch_and_leaves_the_old_one_as_it_was():
    rng = np.random.default_rng(0)
    model, kept = WorldModel(ACTIONS), []
    for _ in range(12):
        for start in rng.integers(0, 40, 8):
            feed(model, rng.integers(0, 9, rng.integers(1, 30)), start=key(start))
        table = model.table(DELTA)
        fresh = WorldModel.from_state(model.state(), ACTIONS).table(DELTA)
        for name in ("row_key", "row_joint", "succ", "lo", "hi", "unseen", "mean", "mean_unseen"):
            np.testing.assert_array_equal(getattr(table, name), getattr(fresh, name))
        kept.append((table, table.lo.copy(), table.succ.copy()))
    for table, lo, succ in kept:
        np.testing.assert_array_equal(table.lo, lo)
        np.testing.assert_array_equal(table.succ, succ)


def test_an_outcome_found_since_the_look_is_unseen_mass_until_the_next():
    model = WorldModel(ACTIONS)
    feed(model, [0] * 64)
    before = model.table(DELTA)
    feed(model, [1])
    assert model.table(DELTA).succ.tolist() == before.succ.tolist()
    newest = model.table(DELTA, schedule="ppr", newest=True)
    assert newest.succ[0].tolist() == [model.key_id(key(0)), model.key_id(key(1))]
    assert newest.hi[0, 1] == newest.unseen[0] < 0.3


def test_newest_uses_every_draw_and_only_ppr_may():
    model = WorldModel(ACTIONS, support=two_ways)
    feed(model, [0] * 64 + [1] * 30)
    table = model.table(DELTA, schedule="ppr", newest=True)
    lo, hi = ppr_interval([64, 30], 94, rank_level(DELTA, 1))
    np.testing.assert_allclose([table.lo[0], table.hi[0]], [lo, hi])
    feed(model, [0])
    assert model.table(DELTA, schedule="ppr", newest=True) is not table
    with pytest.raises(ConfigError, match="newest=True with schedule='summable'"):
        model.table(DELTA, newest=True)


# How delta is spent


@pytest.mark.parametrize("schedule", ["summable", "geometric", "constant"])
def test_rows_spend_delta_by_rank_and_outcomes_half_of_it_by_rank(schedule):
    model = WorldModel(ACTIONS)
    for start in range(5):
        feed(model, [0, 1] + [0, 1] * 63, start=key(start))
    table = model.table(DELTA, schedule=schedule)
    rows = rank_level(DELTA, np.arange(1, 6))[:, None]
    share = schedule_level(rows * undeclared_shares(2), 128, schedule)
    # The draw that found an outcome is left out: 63 of 127 and 63 of 126 remain.
    lo, hi = clopper_pearson([63, 63], [127, 126], share)
    np.testing.assert_allclose(table.lo, lo)
    np.testing.assert_allclose(table.hi, hi)
    unseen = cp_upper(1, 127, schedule_level(rows[:, 0] / 2, 128, "summable") / 128)
    np.testing.assert_allclose(table.unseen, unseen)


def test_the_shares_of_all_rows_outcomes_and_looks_sum_to_at_most_delta():
    ranks, looks = np.arange(1, 10**5), 2.0 ** np.arange(60)
    within_row = (
        undeclared_shares(10**5).sum() + 0.5
    )  # the second half is the unseen mass, over its k and looks
    over_looks = schedule_level(1.0, looks, "summable").sum()
    assert rank_level(DELTA, ranks).sum() * within_row * max(1.0, over_looks) <= DELTA


def test_declared_rows_share_delta_evenly_and_those_with_one_outcome_need_none():
    def support(_, choices):
        return [Outcome(1.0, key(i), NOBODY, (True, True)) for i in range(1 + choices[0] + choices[1])]

    model = WorldModel(ACTIONS, support=support)
    model.declare([b"s"])
    for choices in product(range(2), range(3)):
        feed(model, [i % (1 + sum(choices)) for i in range(64)], choices=choices, ended=True)
    table = model.table(DELTA)
    for row in range(6):
        outcomes = int((table.succ[row] >= 0).sum())
        if outcomes == 1:
            assert table.lo[row, 0] == table.hi[row, 0] == 1
            continue
        # Five rows are uncertain. Two outcomes are one event, more are one each.
        level = schedule_level(DELTA / 5 / (1 if outcomes == 2 else outcomes), 64, "summable")
        hits = np.bincount(np.arange(64) % outcomes)
        lo, hi = clopper_pearson(hits, 64, level)
        np.testing.assert_allclose([table.lo[row, :outcomes], table.hi[row, :outcomes]], [lo, hi])
    assert not table.unseen.any()


# Rows at the edge


def test_declared_rows_without_draws_leave_each_outcome_anywhere_from_0_to_1():
    model = WorldModel(ACTIONS, support=lambda k, c: two_ways(k, c) if k == b"s" else two_ends(k, c))
    model.declare([b"s"])
    table = model.table(DELTA)
    assert len(table.row_key) == 3 * 6
    assert np.unique(table.lo).tolist() == [0]
    assert np.unique(table.hi).tolist() == [1]
    assert not table.unseen.any()
    np.testing.assert_allclose(table.mean, 0.5)


def two_ends(_key, _choices):
    return [Outcome(0.5, b"end", (i == 1, False), (True, True)) for i in range(2)]


def test_without_support_a_row_without_draws_is_no_row_and_one_draw_says_nothing():
    model = WorldModel(ACTIONS)
    assert model.table(DELTA).row_key.shape == (0,)
    feed(model, [7])
    table = model.table(DELTA)
    assert (table.lo[0, 0], table.hi[0, 0], table.unseen[0]) == (0, 1, 1)


def test_a_row_that_always_ends_alike_is_nearly_certain():
    model = WorldModel(ACTIONS)
    feed(model, [7] * 4096)
    for schedule in SCHEDULES:
        table = model.table(DELTA, schedule=schedule)
        assert table.lo[0, 0] > 0.99
        assert table.hi[0, 0] == 1
        assert table.unseen[0] < 0.01
    assert model.table(DELTA, interval="beta").hi[0, 0] < 1


def test_bounds_that_contradict_each_other_leave_the_row_wholly_unknown():
    model = WorldModel(ACTIONS)
    feed(model, [0] * 512 + [1] * 512)
    table = model.table(DELTA)
    assert table.unseen.tolist() == [1]
    assert not table.lo.any()


def test_all_outcomes_of_a_known_number_leave_nothing_unseen():
    model = WorldModel(ACTIONS, max_successors=2)
    feed(model, [0] * 63)
    assert model.table(DELTA).unseen[0] == cp_upper(
        0, 31, schedule_level(rank_level(DELTA, 1) / 4, 32, "summable")
    )
    feed(model, [1])
    table = model.table(DELTA)
    assert table.unseen[0] == 0
    level = schedule_level(rank_level(DELTA, 1) / 4, 64, "summable")
    np.testing.assert_allclose(table.lo[0, 0], clopper_pearson(62, 63, level)[0])
    with pytest.raises(ConfigError, match="max_successors=2 excludes"):
        feed(model, [2])
    assert model.draws(0, 0) == 64


# Whether the sets hold the truth


def rows_ever_wrong(law, level, schedule, *, declared=False, newest=False, rows=600, steps=256):
    """Which of many independent rows ever had a false interval or unseen bound, each row at ``level``."""
    rng = np.random.default_rng(11)
    keys = [key(i) for i in range(len(law))]
    support = (lambda *_: [Outcome(1.0, k, (False,), (False,)) for k in keys]) if declared else None
    model = WorldModel((1,), support=support)
    starts, flags = [b"row %d" % i for i in range(rows)], np.zeros((rows, 1), np.bool_)
    number = np.full(2 * rows + len(law) + 1, -1)
    wrong = np.zeros(rows, np.bool_)
    for step in range(1, steps + 1):
        drawn = rng.choice(len(law), rows, p=law)
        model.add_batch(starts, np.zeros((rows, 1), np.int64), [keys[i] for i in drawn], flags, flags)
        number[model.key_ids(keys)] = np.arange(len(law))
        if not newest and step & (step - 1):
            continue
        counts, index = model._known.rows, np.arange(rows)
        sets = credible_sets(
            counts,
            index,
            np.full(rows, level),
            schedule=schedule,
            interval="clopper_pearson",
            newest=newest,
            max_successors=None,
        )
        truth = np.where(sets.shown, law[number[counts.succ[:rows, : sets.shown.shape[1]]]], 0)
        known = ((sets.lo <= truth + 1e-12) & (truth <= sets.hi + 1e-12)) | ~sets.shown
        wrong |= ~known.all(1) | (1 - truth.sum(1) > sets.unseen + 1e-9)
    return int(wrong.sum()), rows


LAWS = {
    "coin": np.array([0.5, 0.5]),
    "rare": np.array([0.97, 0.01, 0.01, 0.01]),
    "tail": 0.5 ** np.arange(1, 13) / (1 - 0.5**12),
    "many": np.full(200, 1 / 200),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("schedule", ["summable", "geometric", "ppr"])
def test_whole_rows_of_unknown_support_are_ever_wrong_in_at_most_delta_of_the_streams(schedule, law):
    wrong, rows = rows_ever_wrong(LAWS[law], 0.3, schedule)
    assert wrong <= stats.binom.ppf(1 - 1e-6, rows, 0.3)


@pytest.mark.parametrize("law", ["coin", "rare"])
@pytest.mark.parametrize("schedule", ["summable", "geometric", "ppr"])
def test_whole_rows_of_declared_support_are_ever_wrong_in_at_most_delta_of_the_streams(schedule, law):
    wrong, rows = rows_ever_wrong(LAWS[law], 0.3, schedule, declared=True)
    assert wrong <= stats.binom.ppf(1 - 1e-6, rows, 0.3)


def test_ppr_rows_are_right_at_every_single_draw_at_once():
    for law in ("coin", "tail"):
        wrong, rows = rows_ever_wrong(LAWS[law], 0.3, "ppr", newest=True, rows=300, steps=150)
        assert wrong <= stats.binom.ppf(1 - 1e-6, rows, 0.3)


def test_a_constant_level_is_ever_wrong_too_often():
    wrong, rows = rows_ever_wrong(LAWS["coin"], 0.05, "constant", declared=True)
    assert wrong > 2 * 0.05 * rows


def test_the_draw_that_finds_an_outcome_is_no_evidence_that_it_is_frequent():
    # Counted in, it would put the lower bound of the first outcome above 1/200 in every single stream.
    model = WorldModel((1,))
    model.add(b"s", (0,), b"t", (False,), (False,))
    assert model.table(0.9).lo[0, 0] == 0
    assert clopper_pearson(1, 1, 0.9 * rank_level(0.5, 1))[0] > 1 / 200


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["summable", "ppr"]))
def test_whole_tables_of_random_rows_hold_the_truth(seed, schedule):
    # At delta 1e-9 a miss in any example is a fault, not bad luck.
    rng = np.random.default_rng(seed)
    model, laws = WorldModel(ACTIONS), rng.dirichlet([0.3] * 5, 4)
    for _ in range(6):
        for start, law in enumerate(laws):
            feed(model, rng.choice(5, rng.integers(1, 40), p=law), start=b"row %d" % start)
        table = model.table(1e-9, schedule=schedule)
        for row, at in enumerate(table.row_key):
            law = laws[int(model.keys[at][4:])]
            truth = {model.key_id(key(i)): p for i, p in enumerate(law)}
            shown = [
                (truth.pop(int(s)), lo, hi)
                for s, lo, hi in zip(table.succ[row], table.lo[row], table.hi[row], strict=True)
                if s >= 0
            ]
            assert all(lo <= p <= hi for p, lo, hi in shown)
            assert sum(truth.values()) <= table.unseen[row] + 1e-12


# Merging and saving


@settings(max_examples=40)
@given(draws(), draws())
def test_merging_counts_every_draw_of_both_once(ours, theirs):
    model, other = add_all(WorldModel(ACTIONS), ours), add_all(WorldModel(ACTIONS), theirs)
    ids = model.merge(other)
    together = add_all(WorldModel(ACTIONS), ours + theirs)
    assert [model.keys[i] for i in ids] == other.keys
    whole, merged = together.state(), model.state()
    for name in ("row_draws", "edge_count", "edge_found", "edge_violated", "edge_ended", "edge_row"):
        np.testing.assert_array_equal(merged[name], whole[name])
    assert (merged["row_look"] <= whole["row_look"]).all()
    assert (merged["row_look"] >= 1).all()


def test_a_merged_row_waits_for_the_next_power_of_two_and_then_looks_at_all_draws():
    model, other = WorldModel(ACTIONS, support=two_ways), WorldModel(ACTIONS, support=two_ways)
    feed(model, [0] * 16)
    feed(other, [1] * 20)
    before = model.table(DELTA)
    model.merge(other)
    assert model.table(DELTA) is before
    feed(model, [0] * 27)
    assert model.table(DELTA) is before
    feed(model, [0])
    level = schedule_level(rank_level(DELTA, 1), 64, "summable")
    np.testing.assert_allclose(model.table(DELTA).lo[0], clopper_pearson([44, 20], 64, level)[0])


def test_a_merge_that_lands_on_a_power_of_two_or_on_a_new_row_is_looked_at_at_once():
    model, other = WorldModel(ACTIONS), WorldModel(ACTIONS)
    feed(model, [0, 1] * 10)
    feed(other, [0, 2] * 6)
    feed(other, [1] * 9, start=b"t")
    model.merge(other)
    together = WorldModel(ACTIONS)
    feed(together, [0, 1] * 10 + [0, 2] * 6)
    feed(together, [1] * 9, start=b"t")
    ours, whole = model.table(DELTA), together.table(DELTA)
    np.testing.assert_array_equal(ours.lo, whole.lo)
    np.testing.assert_array_equal(ours.unseen, whole.unseen)


@settings(max_examples=40)
@given(draws(), draws())
def test_a_saved_model_comes_back_exactly_and_goes_on_alike(steps, more):
    model = add_all(WorldModel(ACTIONS, env_name="e", max_successors=99), steps)
    back = WorldModel.from_state(model.state(), ACTIONS, env_name="e")
    assert_same(model, back)
    assert_same(add_all(model, more), add_all(back, more))


def test_a_model_survives_an_npz_file_with_keys_that_end_in_zeros(tmp_path):
    model = WorldModel(ACTIONS, env_name="e", support=two_ways)
    feed(model, [0, 1, 1, 0, 1])
    feed(model, [1], start=b"")
    save_to_file(model.state(), tmp_path, "world.npz")
    back = WorldModel.from_state(
        load_from_file(tmp_path, "world.npz"), ACTIONS, env_name="e", support=two_ways
    )
    assert back.keys == model.keys
    assert_same(model, back)
    np.testing.assert_array_equal(back.table(DELTA).hi, model.table(DELTA).hi)


def test_a_state_of_something_else_is_refused_with_both_values():
    state = WorldModel(ACTIONS, env_name="crossing").state()
    with pytest.raises(ConfigError, match="env_name 'crossing', here it is 'corridor'"):
        WorldModel.from_state(state, ACTIONS, env_name="corridor")
    with pytest.raises(ConfigError, match=r"actions \[2, 3\], here it is \[2, 2\]"):
        WorldModel.from_state(state, (2, 2), env_name="crossing")
    with pytest.raises(ConfigError, match="kind 'opponent model', here it is 'world model'"):
        WorldModel.from_state(
            OpponentModel(ACTIONS, DELTA, env_name="crossing").state(), ACTIONS, env_name="crossing"
        )
    with pytest.raises(ConfigError, match="lacks 'kind'"):
        WorldModel.from_state({}, ACTIONS)
    with pytest.raises(ConfigError, match="env_name"):
        WorldModel(ACTIONS, env_name="crossing").merge(WorldModel(ACTIONS, env_name="corridor"))


# What a declaration excludes


def table_of(model):
    """The model's own topology as an explicit table."""
    return model.keys, model.table(DELTA)


def test_a_support_function_and_its_table_declare_the_same():
    def support(at, _):
        return two_ways(at, _) if at == b"s" else two_ends(at, _)

    function = WorldModel(ACTIONS, support=support)
    function.declare([b"s"])
    table = WorldModel(ACTIONS, support=table_of(function))
    for model in (function, table):
        feed(model, [0] * 5 + [1] * 9)
    ours, theirs = function.table(DELTA), table.table(DELTA)
    for name in TransitionTable.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    back = WorldModel.from_state(table.state(), ACTIONS)
    with pytest.raises(ConfigError, match="not among the declared rows"):
        feed(back, [0], start=b"elsewhere")


def test_agents_that_have_ended_play_nothing_in_declared_rows():
    def support(at, _):
        if at == b"s":
            return [Outcome(1.0, b"half", NOBODY, (True, False)), Outcome(0.0, b"all", NOBODY, (True, True))]
        return [Outcome(1.0, b"all", NOBODY, (True, True))]

    model = WorldModel(ACTIONS, support=support)
    model.declare([b"s"])
    table = model.table(DELTA)
    half = table.row_joint[table.row_key == model.key_id(b"half")]
    assert half.tolist() == joint_index(ACTIONS, np.array([(2, 0), (2, 1), (2, 2)])).tolist()
    assert not (table.row_key == model.key_id(b"all")).any()


def test_an_outcome_outside_of_the_support_is_refused_and_nothing_is_counted():
    model = WorldModel(ACTIONS, support=two_ways, env_name="crossing")
    with pytest.raises(
        ConfigError, match=r"key b's' and choices \(0, 0\) in env 'crossing'.*declared support excludes"
    ):
        feed(model, [0, 1, 2])
    assert model.draws(0, 0) == 0
    feed(model, [0, 1])
    assert model.draws(model.key_id(b"s"), 0) == 2


def test_rows_whose_support_is_not_known_are_learned_without_it():
    model = WorldModel(ACTIONS, support=lambda at, _: two_ways(at, _) if at == b"s" else None)
    feed(model, [0, 1])
    feed(model, [5, 6], start=b"t")
    table = model.table(DELTA)
    assert table.unseen[0] == 0
    assert table.unseen[1] == 1


def test_what_a_declaration_needs_is_said():
    with pytest.raises(ConfigError, match="needs a support function"):
        WorldModel(ACTIONS).declare([b"s"])
    late = WorldModel(ACTIONS, support=two_ways)
    feed(late, [0])
    with pytest.raises(ConfigError, match="a model without rows"):
        late.declare([b"s"])
    with pytest.raises(ConfigError, match="has no support"):
        WorldModel(ACTIONS, support=lambda *_: None).declare([b"s"])
    with pytest.raises(ConfigError, match="empty support"):
        WorldModel(ACTIONS, support=lambda *_: []).declare([b"s"])
    ends = [Outcome(1.0, b"s", NOBODY, (True, True))]
    with pytest.raises(ConfigError, match="must tell who has ended"):
        WorldModel(ACTIONS, support=lambda *_: ends).declare([b"s"])
    with pytest.raises(ConfigError, match=r"actions \(2, 3\)"):
        WorldModel((4, 4), support=table_of(WorldModel(ACTIONS)))
    with pytest.raises(ConfigError, match="needs its support function"):
        WorldModel.from_state(late.state(), ACTIONS)
    closed = WorldModel(ACTIONS, support=two_ends)
    closed.declare([b"s"])
    with pytest.raises(ConfigError, match="declare different rows"):
        WorldModel(ACTIONS, support=two_ends).merge(closed)


@pytest.mark.parametrize(
    ("choices", "violated", "match"),
    [
        ([[2, 4]], [[0, 0]], r"choices \[2, 4\]"),
        ([[-1, 0]], [[0, 0]], r"choices \[-1, 0\]"),
        ([[0, 0]], [[0]], r"violated has shape \(1, 1\)"),
        ([[0, 0], [0, 0]], [[0, 0]], r"choices has shape \(2, 2\)"),
    ],
)
def test_draws_that_do_not_fit_the_agents_are_refused(choices, violated, match):
    with pytest.raises(ConfigError, match=match):
        WorldModel(ACTIONS).add_batch(
            [b"s"], np.array(choices), [b"t"], np.array(violated, bool), np.zeros((1, 2), bool)
        )


def test_settings_that_cannot_work_are_refused():
    model = WorldModel(ACTIONS)
    for settings_, match in [
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 0.1, "schedule": "never"}, "schedule='never'"),
    ]:
        with pytest.raises(ConfigError, match=match):
            model.table(**settings_)
    with pytest.raises(ConfigError, match="interval='wald'"):
        model.table(0.1, interval="wald")
    with pytest.raises(ConfigError, match="is no bytes"):
        model.key_ids(["text"], create=True)
    with pytest.raises(ConfigError, match=r"joint actions of 20 agents"):
        WorldModel((9,) * 20)
