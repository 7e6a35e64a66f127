"""The robust recursion against linear programs and brute force, and what it does with gaps."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import TransitionTable, joint_choices, joint_index
from marl_tools.safety.exact import solve
from marl_tools.safety.recursion import Sweep, risk_tables, robust_mass
from marl_tools.safety.rows import AgentRows
from tests.random_mdps import RandomTeam, loosen, random_policies, take_rows


def table_of(rows, *, actions=(2,), num_keys=2, unseen=0.0) -> TransitionTable:
    """Rows of (key, choices, [(successor, lo, hi, violated, ended)]), flags for all agents alike."""
    width, agents = max(len(successors) for _, _, successors in rows), len(actions)
    succ = np.full((len(rows), width), -1, np.int32)
    lo, hi = np.zeros((2, len(rows), width))
    violated, ended = np.zeros((2, len(rows), width, agents), bool)
    for row, (_, _, successors) in enumerate(rows):
        for slot, (key, low, high, bad, out) in enumerate(successors):
            succ[row, slot], lo[row, slot], hi[row, slot] = key, low, high
            violated[row, slot], ended[row, slot] = bad, out
    return TransitionTable(
        actions=tuple(actions),
        num_keys=num_keys,
        row_key=np.array([key for key, _, _ in rows], np.int32),
        row_joint=joint_index(actions, np.array([choices for _, choices, _ in rows])),
        succ=succ,
        violated=violated,
        ended=ended,
        lo=lo,
        hi=hi,
        unseen=np.full(len(rows), unseen),
        mean=lo,
        mean_unseen=1 - lo.sum(1),
    )


def brute_force(table: TransitionTable, agent: int, horizon: int, floors, sign: int):
    """Q (T+1, K, n): a linear program a row, every vertex of the replies. ``sign`` 1 is the worst case, -1 the best."""
    choices = joint_choices(table.actions, table.row_joint)
    row_of = {
        (int(key), *map(int, c)): r for r, (key, c) in enumerate(zip(table.row_key, choices, strict=True))
    }
    n, nothing = table.actions[agent], list(table.actions)
    q = np.zeros((horizon + 1, table.num_keys, n))
    for k in range(1, horizon + 1):
        v = q[k - 1].min(1)
        for key in range(table.num_keys):
            mine = [c for (at, *c) in row_of if at == key]
            if any(c[agent] == n for c in mine):
                continue
            options = []
            for other, size in enumerate(table.actions):
                out = any(c[other] == size for c in mine)
                options.append([nothing[other]] if out else list(range(size)))
            for action in range(n):
                options[agent] = [action]
                risks, weights = [], []
                for choice in product(*options):
                    row = row_of.get((key, *choice))
                    risks.append(float(sign > 0) if row is None else _row(table, row, agent, v, sign))
                    shares = [
                        floors[o][key, c] for o, c in enumerate(choice) if o != agent and c < table.actions[o]
                    ]
                    weights.append(np.prod(shares))
                pick = max if sign > 0 else min
                free = 1 - sum(weights)
                q[k, key, action] = np.dot(risks, weights) + free * pick(risks)
    return q


def _row(table: TransitionTable, row: int, agent: int, v: np.ndarray, sign: int) -> float:
    real = table.succ[row] >= 0
    ended, violated = table.ended[row, real, agent], table.violated[row, real, agent]
    risk = np.where(violated, 1.0, np.where(ended, 0.0, v[table.succ[row, real]]))
    risk = np.append(risk, float(sign > 0))
    bounds = [*zip(table.lo[row, real], table.hi[row, real], strict=True), (0, table.unseen[row])]
    solution = linprog(-sign * risk, A_eq=np.ones((1, len(risk))), b_eq=[1.0], bounds=bounds)
    return -sign * solution.fun


@pytest.mark.parametrize("seed", range(6))
def test_both_sides_equal_linear_programs_and_every_vertex_of_the_replies(seed):
    rng = np.random.default_rng(seed)
    actions = [(2, 2), (2, 2, 2), (3,)][seed % 3]
    model = solve(RandomTeam(seed, states=2, actions=actions, successors=3, hazards=(0.0, 0.3)))
    table = loosen(model.table, rng, width=0.5)
    table = take_rows(table, np.flatnonzero(table.row_key < 6))
    floors = [0.8 * law for law in random_policies(table.num_keys, actions, rng)]
    for side, sign in (("upper", 1), ("lower", -1)):
        q = risk_tables(table, 0, 2, floors, side=side).q
        np.testing.assert_allclose(q, brute_force(table, 0, 2, floors, sign), atol=1e-9)


def test_mass_is_a_law_within_its_bounds_that_no_exchange_improves():
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.ones(5), 400).T
    lo = law * rng.random(law.shape)
    spread = (law - lo) + (1 - law) * rng.random(law.shape)
    mass = robust_mass(lo, spread)
    np.testing.assert_allclose(mass.sum(0), 1.0)
    assert (mass >= lo).all()
    assert (mass <= lo + spread + 1e-15).all()
    full, bare = mass >= lo + spread - 1e-12, mass <= lo + 1e-12
    for ahead in range(4):
        assert (full[ahead] | bare[ahead + 1 :].all(0)).all()


@pytest.mark.parametrize("seed", range(20))
def test_risk_never_falls_with_more_steps_and_q_is_never_below_v(seed):
    rng = np.random.default_rng(seed)
    table = loosen(solve(RandomTeam(seed)).table, rng)
    for side in ("upper", "lower", "mean"):
        risk = risk_tables(table, 1, 12, side=side)
        assert (np.diff(risk.v, axis=0) >= -1e-12).all()
        np.testing.assert_array_equal(risk.v, risk.q.min(-1))
        assert ((risk.q >= 0) & (risk.q <= 1 + 1e-12)).all()


def test_an_ended_agent_risks_nothing_and_the_others_face_nobody():
    safe, deadly = [(0, 1.0, 1.0, False, False)], [(0, 1.0, 1.0, True, False)]
    rows = [(0, (0, 2), safe), (0, (1, 2), deadly), (1, (2, 0), deadly), (1, (2, 1), deadly)]
    table = table_of(rows, actions=(2, 2))
    first, second = risk_tables(table, 0, 3), risk_tables(table, 1, 3)
    np.testing.assert_array_equal(first.q[1:, 0], [[0.0, 1.0]] * 3)
    assert not first.q[:, 1].any()
    assert not second.q[:, 0].any()
    assert (second.q[1:, 1] == 1).all()


def test_an_end_without_a_violation_stops_the_risk_and_a_violation_beats_an_end():
    rows = [
        (0, (0,), [(1, 0.7, 0.7, False, True), (1, 0.3, 0.3, False, False)]),
        (0, (1,), [(1, 1.0, 1.0, True, True)]),
    ]
    q = risk_tables(table_of(rows), 0, 2).q
    np.testing.assert_allclose(q[2, 0], [0.3, 1.0])  # key 1 has no rows: risk 1


def test_what_has_no_row_is_a_violation_above_and_harmless_below():
    rows = [(0, (0, 0), [(0, 1.0, 1.0, False, False)])]
    table = table_of(rows, actions=(2, 2))
    upper, lower = risk_tables(table, 0, 2), risk_tables(table, 0, 2, side="lower")
    assert (upper.q[1:] == 1).all()  # action 0 lacks the reply 1, action 1 lacks all
    assert not lower.q.any()
    certain = [None, np.array([[1.0, 0.0], [1.0, 0.0]])]
    np.testing.assert_array_equal(risk_tables(table, 0, 2, certain).q[2], [[0, 1], [1, 1]])


def test_unseen_mass_is_a_violation_above_and_harmless_below():
    rows = [(0, (0,), [(0, 0.5, 1.0, False, False)])]
    table = table_of(rows, actions=(1,), unseen=0.25)
    np.testing.assert_allclose(risk_tables(table, 0, 2).q[:, 0, 0], [0, 0.25, 1 - 0.75**2])
    assert not risk_tables(table, 0, 2, side="lower").q[:, 0].any()


@pytest.mark.parametrize("bounds", [(0.7, 0.8), (0.1, 0.2)])
def test_bounds_that_no_law_fits_count_as_never_seen(bounds):
    successors = [(0, *bounds, False, False), (0, *bounds, False, True)]
    table = table_of([(0, (0,), successors)], actions=(1,))
    assert risk_tables(table, 0, 1).q[1, 0, 0] == 1
    assert risk_tables(table, 0, 1, side="lower").q[1, 0, 0] == 0


def test_known_deterministic_rows_leave_exactly_no_risk():
    thirds = [(0, 1 / 3, 1 / 3, False, False)] * 3
    tenths = [(0, 0.1, 0.1, False, False)] * 10
    table = table_of([(0, (0,), thirds), (0, (1,), tenths)])
    assert not risk_tables(table, 0, 50).q[:, 0].any()


def test_floors_that_fill_up_leave_the_exact_behaviour():
    team = RandomTeam(3, actions=(2, 3))
    model = solve(team)
    policies = random_policies(len(model.keys), team.actions, np.random.default_rng(1))
    upper = risk_tables(model.table, 0, 8, policies)
    lower = risk_tables(model.table, 0, 8, policies, side="lower")
    mean = risk_tables(model.table, 0, 8, policies, side="mean")
    played = ~model.ended.all(1)
    np.testing.assert_allclose(upper.q[:, played], lower.q[:, played], atol=1e-12)
    np.testing.assert_allclose(upper.q[:, played], mean.q[:, played], atol=1e-12)


def test_more_floor_never_raises_the_risk():
    team = RandomTeam(5, actions=(2, 2, 2))
    model = solve(team)
    policies = random_policies(len(model.keys), team.actions, np.random.default_rng(1))
    free, half, full = (
        risk_tables(model.table, 1, 8, [share * law for law in policies]).q for share in (0.0, 0.5, 1.0)
    )
    assert (free >= half - 1e-12).all()
    assert (half >= full - 1e-12).all()
    np.testing.assert_array_equal(free, risk_tables(model.table, 1, 8).q)


def test_more_than_25_joint_actions_of_the_others_are_refused():
    table = table_of([(0, (0, 0, 0), [(0, 1.0, 1.0, False, False)])], actions=(2, 2, 13))
    with pytest.raises(ConfigError, match="26 joint actions, more than 25"):
        AgentRows(table, 0)
    assert AgentRows(table, 2).num_actions == 13


def test_floors_of_another_shape_are_refused():
    table = table_of([(0, (0, 0), [(0, 1.0, 1.0, False, False)])], actions=(2, 2))
    with pytest.raises(ConfigError, match=r"agent 1 have shape \(3, 2\): must be \(2, 2\)"):
        risk_tables(table, 0, 1, [None, np.zeros((3, 2))])


@pytest.mark.parametrize("side", ["upper", "lower", "mean"])
def test_an_update_of_stale_keys_equals_a_run_from_nothing(side):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        exact = solve(RandomTeam(seed, states=12)).table
        before = loosen(exact, rng)
        rows = np.flatnonzero(rng.random(len(before.row_key)) < 0.1)
        lo, hi, mean = before.lo.copy(), before.hi.copy(), before.mean.copy()
        lo[rows] *= 0.9
        hi[rows] = np.where(hi[rows] > 0, np.minimum(1, hi[rows] * 1.05), 0)
        mean[rows] = mean[rows][:, ::-1]
        after = replace(before, lo=lo, hi=hi, mean=mean)
        value = risk_tables(before, 0, 15, side=side).v
        stale = np.zeros(before.num_keys, bool)
        stale[before.row_key[rows]] = True
        computed = [len(keys) for keys, _ in Sweep(AgentRows(after, 0), side).run(value, stale=stale)]
        np.testing.assert_allclose(value, risk_tables(after, 0, 15, side=side).v, atol=1e-15)
        assert computed[0] <= before.num_keys


def test_a_stale_key_that_nothing_leads_to_is_the_only_one_computed():
    chain = [(key, (0,), [(min(key + 1, 9), 0.9, 1.0, False, False)]) for key in range(10)]
    table = table_of(chain, actions=(1,), num_keys=10, unseen=0.05)
    changed = replace(table, unseen=np.where(np.arange(10) == 0, 0.1, table.unseen), lo=table.lo * 0.9)
    value = risk_tables(table, 0, 20).v
    stale = np.arange(10) == 0
    computed = [keys.tolist() for keys, _ in Sweep(AgentRows(changed, 0), "upper").run(value, stale=stale)]
    assert computed == [[0]] * 20


def test_values_that_stand_still_are_not_computed_again():
    rows = [(key, (0,), [(0 if key == 1 else key, 1.0, 1.0, key == 0, False)]) for key in range(40)]
    table = table_of(rows, actions=(1,), num_keys=40)
    computed = [len(keys) for keys, _ in Sweep(AgentRows(table, 0), "upper").run(np.zeros((6, 40)))]
    assert computed == [40, 1, 0, 0, 0]
