"""Decisions of the shield: prices, slack, patience, fallback, masks, refreshes, notes, shaping, and its saved state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import TransitionTable
from marl_tools.safety.config import LEVELS, ShieldConfig
from marl_tools.safety.exact import solve
from marl_tools.safety.recursion import risk_tables
from marl_tools.safety.shield import TeamShield
from marl_tools.safety.tables import NEVER, RiskTables, price_levels, slack_levels
from tests.random_mdps import RandomTeam, loosen, random_policies, take_rows

RHO = 0.256
LEVEL = RHO / LEVELS  # 0.001


def cliff(*risks: float, mean: tuple[float, ...] | None = None, lo: tuple[float, ...] | None = None):
    """One agent, one key; action i violates with probability at most ``risks[i]``, else everything stays."""
    count = len(risks)
    high = np.array(risks)
    low = high if lo is None else np.array(lo)
    middle = high if mean is None else np.array(mean)
    flags = np.zeros((count, 2, 1), bool)
    flags[:, 0] = True
    return TransitionTable(
        actions=(count,),
        num_keys=1,
        row_key=np.zeros(count, np.int32),
        row_joint=np.arange(count),
        succ=np.zeros((count, 2), np.int32),
        violated=flags,
        ended=np.zeros_like(flags),
        lo=np.stack([low, 1 - high], 1),
        hi=np.stack([high, 1 - low], 1),
        unseen=np.zeros(count),
        mean=np.stack([middle, 1 - middle], 1),
        mean_unseen=np.zeros(count),
    )


def shield_on(table: TransitionTable, *, num_envs: int = 1, fallback=None, **settings) -> TeamShield:
    defaults = {"horizon": 5, "max_risk": RHO, "patience": 0}
    config = ShieldConfig(**{**defaults, **settings})
    names = [f"agent_{i}" for i in range(len(table.actions))]
    shield = TeamShield(names, table.actions, config, num_envs=num_envs, fallback=fallback)
    shield.refresh(table)
    shield.begin(np.ones(num_envs, bool), np.zeros(num_envs, int))
    return shield


def propose(shield: TeamShield, *actions: int, **more):
    return shield.decide(np.array(actions)[:, None], **more)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=6),
    st.floats(0, 1),
    st.floats(1e-3, 0.999),
)
def test_levels_never_admit_what_exact_arithmetic_refuses(q, slack, max_risk):
    level = max_risk / LEVELS
    prices = np.array(q) - min(q)
    levels = price_levels(np.array([q]), level)[0]
    affordable = levels <= slack_levels(np.array([slack]), level)[0]
    assert (prices[affordable] <= slack + 1e-11).all()
    assert (levels[prices == 0] == 0).all()
    assert (levels[prices > 1e-11] > 0).all()
    assert (levels * level >= np.minimum(prices, (NEVER - 1) * level) - 1e-11).all()
    assert slack_levels(np.array([slack]), level)[0] * level <= slack + 1e-11


def test_an_affordable_action_is_played_and_paid_until_the_slack_is_gone():
    shield = shield_on(cliff(0.0, 0.0999))
    assert shield.slack[0, 0] == LEVELS
    played = []
    for _ in range(4):
        decision = propose(shield, 1)
        played.append((int(decision.executed[0, 0]), bool(decision.overridden[0, 0])))
        shield.observe(np.zeros(1, int), np.zeros(1, bool))
    assert played == [(1, False), (1, False), (0, True), (0, True)]
    assert shield.slack[0, 0] == LEVELS - 200  # 0.0999 is rounded up to 100 levels
    assert shield.bounds[0, 0] == RHO


def test_an_agent_that_does_not_act_is_left_alone_and_pays_nothing():
    shield = shield_on(cliff(0.0, 0.1), num_envs=2)
    decision = propose(shield, 1, 1, active=np.array([[True], [False]]))
    assert decision.executed.tolist() == [[1], [1]]
    assert shield.slack.tolist() == [[LEVELS - 100], [LEVELS]]
    shield.slack[:] = 0
    decision = propose(shield, 1, 1, active=np.array([[True], [False]]))
    assert decision.overridden.tolist() == [[True], [False]]


def test_the_step_rule_looks_no_further_than_its_horizon_and_never_pays():
    shield = shield_on(cliff(0.0, 0.1), rule="step", step_horizon=1)
    for _ in range(4):
        assert not propose(shield, 1).overridden.any()
        shield.observe(np.zeros(1, int), np.zeros(1, bool))
    assert np.isnan(shield.bounds).all()
    assert shield_on(cliff(0.0, 0.3), rule="step", step_horizon=1).decide(np.array([[1]])).overridden.all()


def test_where_the_total_is_above_max_risk_nothing_is_safe_and_a_fallback_counts():
    table = cliff(0.3, 0.3, 0.4, mean=(0.3, 0.2, 0.0))
    decision = propose(shield_on(table), 0)
    assert decision.executed[0, 0] == 1  # of least Q: 0 and 1; of these 1 has the lower mean
    assert decision.fallback.all()
    decision = propose(shield_on(table, over_budget="ledger"), 0)
    assert decision.executed[0, 0] == 0  # free, and so the ledger admits it
    assert not decision.fallback.any()


def test_an_override_without_loss_of_all_safe_actions_is_no_fallback():
    decision = propose(shield_on(cliff(0.0, 0.5)), 1)
    assert decision.overridden.all()
    assert not decision.fallback.any()


@pytest.mark.parametrize(
    ("mean", "probabilities", "proposed", "executed"),
    [
        ((0.3, 0.1, 0.2, 0.0), None, 0, 1),  # the least mean among those of least Q
        ((0.3, 0.2, 0.2, 0.0), [0.1, 0.2, 0.6, 0.1], 0, 2),  # then the policy's own probability
        ((0.2, 0.2, 0.2, 0.0), None, 2, 2),  # or the proposal, where it takes part
        ((0.3, 0.2, 0.2, 0.0), None, 0, 1),
    ],
)
def test_the_replacement_has_least_q_then_least_mean_then_the_policys_favour(
    mean, probabilities, proposed, executed
):
    shield = shield_on(cliff(0.3, 0.3, 0.3, 0.9, mean=mean), horizon=1)
    likely = None if probabilities is None else lambda copies, agents: np.array([probabilities])
    assert propose(shield, proposed, probabilities=likely).executed[0, 0] == executed


def test_probabilities_are_asked_for_the_states_whose_replacements_tie_and_for_no_other():
    asked = []

    def probabilities(copies, agents):
        asked.append((copies.tolist(), agents.tolist()))
        return np.array([[0.1, 0.2, 0.7]] * len(copies))

    shield = shield_on(cliff(0.0, 0.5, 0.9), num_envs=3)
    assert propose(shield, 1, 2, 0, probabilities=probabilities).executed.tolist() == [[0], [0], [0]]
    assert asked == []
    shield.begin(np.ones(3, bool), np.array([0, -1, 0]))  # nothing tells the actions of an unknown key apart
    assert propose(shield, 1, 1, 0, probabilities=probabilities).executed.tolist() == [[0], [2], [0]]
    assert asked == [([1], [0])]
    masking = shield_on(cliff(0.0, 0.5, 0.9), num_envs=2, action="mask")
    masking.begin(np.ones(2, bool), np.array([-1, 0]))
    (mask,) = masking.masks(probabilities=probabilities)
    assert mask.tolist() == [[False, False, True], [True, False, False]]
    assert asked[1:] == [([0], [0])]


def test_a_replacement_is_legal_and_an_unpayable_one_ends_the_bound():
    shield = shield_on(cliff(0.0, 0.6, 0.5))
    decision = propose(shield, 1, legal=[np.array([[False, True, True]])])
    assert decision.executed[0, 0] == 2
    assert decision.fallback.all()
    assert shield.slack[0, 0] == 0
    assert np.isnan(shield.bounds[0, 0])


def test_a_users_fallback_plays_where_nothing_is_safe_and_pays_for_it():
    asked = []

    def choose(agent, key_ids, proposed, q):
        asked.append((agent, key_ids.tolist(), proposed.tolist()))
        np.testing.assert_allclose(q, [[0.3, 0.35, 0.4]] * 2, atol=LEVEL)
        return np.full(len(key_ids), 2)

    shield = shield_on(cliff(0.3, 0.35, 0.4), fallback=choose, horizon=1, num_envs=2)
    decision = propose(shield, 0, 1)
    assert asked == [("agent_0", [0, 0], [0, 1])]
    assert decision.executed.tolist() == [[2], [2]]
    assert np.isnan(shield.bounds).all()
    assert shield_on(cliff(0.0, 0.9), fallback=choose).decide(np.array([[1]])).executed[0, 0] == 0


@pytest.mark.parametrize("answer", [[5], [0, 0], [0.5], [-1]])
def test_a_fallback_that_names_no_action_is_refused(answer):
    shield = shield_on(cliff(0.3, 0.4), fallback=lambda *_: answer)
    with pytest.raises(ConfigError, match="fallback of agent 'agent_0'"):
        propose(shield, 1)


def test_an_unknown_action_is_tried_while_patience_lasts_then_refused():
    shield = shield_on(cliff(0.0, 0.9, lo=(0.0, 0.01)), patience=3, num_envs=2)
    first = propose(shield, 1, 1)
    assert first.unverified.all()
    assert not first.overridden.any()
    assert np.isnan(shield.bounds).all()  # such an episode carries no bound
    assert shield.slack.tolist() == [[0], [0]]
    shield.begin(np.ones(2, bool), np.zeros(2, int))
    second = propose(shield, 1, 1)
    assert second.unverified.tolist() == [[True], [False]]  # the third play, then none is left
    assert second.executed.tolist() == [[1], [0]]
    assert shield.bounds[1, 0] == RHO
    shield.refresh(cliff(0.0, 0.1, lo=(0.0, 0.01)))
    shield.begin(np.ones(2, bool), np.zeros(2, int))
    third = propose(shield, 1, 1)  # the bound admits it now
    assert not (third.unverified | third.overridden).any()


def test_an_action_that_is_surely_too_risky_is_refused_whatever_the_patience():
    decision = propose(shield_on(cliff(0.0, 0.9, lo=(0.0, 0.3)), patience=64), 1)
    assert decision.overridden.all()
    assert not decision.unverified.any()


def test_evaluation_has_no_patience_and_shares_the_tables():
    training = shield_on(cliff(0.0, 0.9, lo=(0.0, 0.01)), patience=64)
    frozen = training.frozen(3)
    frozen.begin(np.ones(3, bool), np.zeros(3, int))
    decision = propose(frozen, 1, 1, 0)
    assert decision.executed.tolist() == [[0]] * 3
    assert frozen.shields[0].tables is training.shields[0].tables


def test_a_wholly_unknown_key_is_not_safe():
    for key_id in (-1, 7):
        for patience, tried in ((5, True), (0, False)):
            shield = shield_on(cliff(0.0, 0.1), patience=patience)
            shield.begin(np.ones(1, bool), np.array([key_id]))
            decision = propose(shield, 1)
            assert decision.unverified.item() is tried
            assert decision.fallback.item() is not tried


def team_shield(seed: int, num_envs: int, **settings) -> tuple[TeamShield, TransitionTable]:
    model = solve(RandomTeam(seed, states=6, actions=(3, 2), hazards=(0.0, 0.05, 0.3)))
    table = loosen(model.table, np.random.default_rng(seed), width=0.2)
    config = ShieldConfig(**{"horizon": 6, "max_risk": 0.3, "patience": 3, **settings})
    shield = TeamShield(model.agents, (3, 2), config, num_envs=num_envs)
    shield.refresh(table)
    return shield, table


@pytest.mark.parametrize("over_budget", ["fallback", "ledger"])
@pytest.mark.parametrize("rule", ["ledger", "step"])
def test_decisions_in_a_batch_equal_decisions_one_by_one(rule, over_budget):
    settings = {"rule": rule, "step_horizon": 3, "over_budget": over_budget}
    copies = 200
    batch, table = team_shield(1, copies, **settings)
    single, _ = team_shield(1, 1, **settings)
    rng = np.random.default_rng(0)
    keys = rng.integers(-1, table.num_keys + 1, copies)
    batch.begin(np.ones(copies, bool), keys)
    batch.slack[:] = rng.integers(0, 257, batch.slack.shape)
    batch.k_left[:] = rng.integers(1, 7, copies)
    slack = batch.slack.copy()
    proposed = np.stack([rng.integers(0, 3, copies), rng.integers(0, 2, copies)], 1)
    likely = np.zeros((copies, 2, 3))
    likely[:, 0], likely[:, 1, :2] = (rng.dirichlet(np.ones(n), copies) for n in (3, 2))
    decision = batch.decide(proposed, probabilities=lambda copies, agents: likely[copies, agents])
    kinds = np.zeros(3, int)
    for env in range(copies):
        single.begin(np.ones(1, bool), keys[env : env + 1])
        single.slack[:], single.k_left[:] = slack[env], batch.k_left[env]
        one = single.decide(
            proposed[env : env + 1], probabilities=lambda _, agents, env=env: likely[env, agents]
        )
        for name in ("executed", "overridden", "fallback", "unverified"):
            np.testing.assert_array_equal(getattr(one, name)[0], getattr(decision, name)[env], err_msg=name)
        np.testing.assert_array_equal(single.slack[0], batch.slack[env])
        kinds += [one.overridden.sum(), one.fallback.sum(), one.unverified.sum()]
    assert kinds[0] > 0
    assert kinds[2] > 0
    for ours, theirs in zip(single.shields, batch.shields, strict=True):
        rows = min(len(ours.visits), len(theirs.visits))
        np.testing.assert_array_equal(ours.visits[:rows], theirs.visits[:rows])


@pytest.mark.parametrize("rule", ["ledger", "step"])
def test_a_mask_admits_exactly_what_an_override_lets_through(rule):
    settings = {"rule": rule, "step_horizon": 3}
    masking, table = team_shield(2, 1, action="mask", **settings)
    for key in range(-1, table.num_keys):
        for proposed in range(3):
            overriding, _ = team_shield(2, 1, **settings)
            for shield in (masking, overriding):
                shield.begin(np.ones(1, bool), np.array([key]))
            mask = masking.masks()[0][0]
            decision = overriding.decide(np.array([[proposed, 0]]))
            passes = not decision.overridden[0, 0]
            if decision.fallback[0, 0]:
                assert mask.sum() == 1
            else:
                assert mask[proposed] == passes


def test_masked_plays_pay_count_and_must_lie_in_the_mask():
    shield = shield_on(
        cliff(0.0, 0.1, 0.9, lo=(0.0, 0.1, 0.01)), action="mask", patience=1, reward_mode="none"
    )
    assert shield.masks()[0].tolist() == [[True, True, True]]
    assert not shield.play(np.array([[1]])).unverified.any()
    assert shield.slack[0, 0] == LEVELS - 100
    shield.masks()
    assert shield.play(np.array([[2]])).unverified.all()
    assert shield.masks()[0].tolist() == [[True, False, False]]
    with pytest.raises(ConfigError, match="plays 2, outside its mask"):
        shield.play(np.array([[2]]))
    shield.play(np.array([[0]]))
    with pytest.raises(ConfigError, match="call masks"):
        shield.play(np.array([[0]]))


def test_override_and_mask_never_mix():
    with pytest.raises(ConfigError, match="action='override'"):
        shield_on(cliff(0.0)).masks()
    with pytest.raises(ConfigError, match="action='mask'"):
        propose(shield_on(cliff(0.0), action="mask"), 0)


def test_a_refresh_in_an_episode_keeps_its_total():
    shield = shield_on(cliff(0.02, 0.05), horizon=2, num_envs=2)
    propose(shield, 0, 1)
    shield.observe(np.zeros(2, int), np.array([False, False]))
    slack = shield.slack.copy()
    shield.refresh(cliff(0.01, 0.03))
    np.testing.assert_array_equal(shield.slack, slack + 10)  # V fell by 10 levels
    shield.refresh(cliff(0.02, 0.05))
    np.testing.assert_array_equal(shield.slack, slack)
    shield.refresh(cliff(0.02, 0.05))
    np.testing.assert_array_equal(shield.slack, slack)
    assert (shield.bounds == RHO).all()


def test_a_refresh_that_raises_the_risk_above_the_total_raises_the_bound():
    shield = shield_on(cliff(0.1, 0.9), horizon=1)
    assert shield.slack[0, 0] == LEVELS - 100
    shield.refresh(cliff(0.4, 0.9))
    assert shield.slack[0, 0] == 0
    assert shield.bounds[0, 0] == pytest.approx(0.4)


@pytest.mark.parametrize("seed", range(6))
def test_tables_updated_step_by_step_equal_tables_made_at_once(seed):
    rng = np.random.default_rng(seed)
    model = solve(RandomTeam(seed, states=8))
    full = loosen(model.table, rng)
    rows = np.arange(len(full.row_key))
    policies = random_policies(full.num_keys, full.actions, rng)
    steps = []
    for part, share in ((0.4, 0.0), (0.4, 0.5), (0.8, 0.5), (1.0, 0.9)):
        table = take_rows(full, rows[: int(part * len(rows))])
        num_keys = int(max(table.row_key.max(), table.succ.max())) + 1
        table = replace(table, num_keys=num_keys, lo=table.lo * rng.choice([0.8, 1.0], table.lo.shape))
        steps.append(
            (table, [share * law[:num_keys] for law in policies], [law[:num_keys] for law in policies])
        )
    stepwise = RiskTables(0, 2, 9, 0.001)
    for step in steps:
        stepwise.update(*step)
        at_once = RiskTables(0, 2, 9, 0.001)
        at_once.update(*step)
        known = slice(0, step[0].num_keys + 1)
        assert stepwise.lower is not None
        assert at_once.lower is not None
        np.testing.assert_allclose(stepwise.value[:, known], at_once.value[:, known], atol=1e-15)
        np.testing.assert_array_equal(stepwise.price[:, known], at_once.price[:, known])
        np.testing.assert_allclose(stepwise.lower[:, known], at_once.lower[:, known], atol=1e-7)
        np.testing.assert_allclose(stepwise.mean[:, known], at_once.mean[:, known], atol=1e-7)
    assert stepwise.update(*steps[-1]) == 0


def test_tables_hold_the_recursion_rounded_to_the_safe_side():
    rng = np.random.default_rng(3)
    table = loosen(solve(RandomTeam(3)).table, rng)
    tables = RiskTables(0, 2, 9, 0.001)
    tables.update(table)
    q, low = risk_tables(table, 0, 9).q, risk_tables(table, 0, 9, side="lower").q
    rows = tables.rows(np.arange(table.num_keys))
    assert tables.lower is not None
    np.testing.assert_array_equal(tables.value[:, rows], q.min(-1))
    assert (tables.value[:, rows, None] + 0.001 * tables.price[:, rows] >= q - 1e-12).all()
    assert (tables.lower[:, rows] <= low).all()
    assert tables.rows(np.array([-1, table.num_keys])).tolist() == [0, 0]


def test_an_episode_beyond_the_horizon_opens_a_new_ledger_and_adds_its_bound():
    shield = shield_on(cliff(0.0, 0.1), horizon=2)
    for _ in range(2):
        propose(shield, 1)
        shield.observe(np.zeros(1, int), np.zeros(1, bool))
    assert shield.k_left[0] == 2
    assert shield.slack[0, 0] == LEVELS
    assert shield.bounds[0, 0] == 2 * RHO
    shield.observe(np.zeros(1, int), np.ones(1, bool))
    assert shield.bounds[0, 0] == RHO


def test_notes_count_what_happened_and_carry_bound_and_slack_when_they_change():
    shield = shield_on(cliff(0.0, 0.1, 0.9, lo=(0.0, 0.1, 0.01)), num_envs=3, patience=1)
    first = shield.notes(propose(shield, 1, 2, 2, active=np.array([[True], [True], [False]])))
    assert first[0] == {"bound": {"agent_0": RHO}, "slack": {"agent_0": pytest.approx(RHO - 0.1)}}
    assert first[1] == {
        "unverified": {"agent_0": 1},
        "bound": {"agent_0": None},
        "slack": {"agent_0": 0.0},
    }
    assert first[2] == {}
    second = shield.notes(propose(shield, 0, 2, 0, active=np.array([[True], [True], [False]])))
    assert second == [{}, {"overrides": {"agent_0": 1}}, {}]
    shield.observe(np.zeros(3, int), np.array([True, False, False]))
    third = shield.notes(propose(shield, 0, 0, 0))
    assert third[0] == {"bound": {"agent_0": RHO}, "slack": {"agent_0": RHO}}
    falling = shield_on(cliff(0.9, 0.9))
    assert falling.notes(propose(falling, 1))[0]["fallbacks"] == {"agent_0": 1}
    stepping = shield_on(cliff(0.0, 0.1), rule="step", step_horizon=1)
    assert stepping.notes(propose(stepping, 0)) == [{"bound": {"agent_0": None}, "slack": {"agent_0": None}}]


def shaped(mode: str, proposed=(2, 0), **settings) -> np.ndarray:
    shield = shield_on(
        cliff(0.0, 0.5, 0.9, mean=(0.1, 0.2, 0.7)), num_envs=2, horizon=1, reward_mode=mode, **settings
    )
    decision = propose(shield, *proposed, active=np.array([[True], [True]]))
    end = np.array([[False], [True]])
    return shield.shaping(decision, np.zeros(2, int), end, gamma=0.9)[:, 0]


def test_each_reward_mode_adds_what_it_says():
    assert shaped("none").tolist() == [0, 0]
    assert shaped("penalty", penalty=0.25).tolist() == [-0.25, 0]
    np.testing.assert_allclose(shaped("bayesian", risk_weight=2.0), [-1.2, 0], atol=1e-6)
    # -w * least risk as the potential, gamma times the next one, none after an end
    np.testing.assert_allclose(shaped("bayesian_potential", risk_weight=2.0), [0.02, 0.2], atol=1e-6)


def test_the_potential_stays_frozen_until_it_is_asked_to_follow():
    shield = shield_on(cliff(0.0, 0.5, mean=(0.1, 0.5)), horizon=1, reward_mode="bayesian_potential")
    end = np.ones((1, 1), bool)
    shield.refresh(cliff(0.0, 0.5, mean=(0.05, 0.5)))
    before = shield.shaping(propose(shield, 0), np.zeros(1, int), end, gamma=1.0)
    shield.freeze_potential()
    after = shield.shaping(propose(shield, 0), np.zeros(1, int), end, gamma=1.0)
    np.testing.assert_allclose([before.item(), after.item()], [0.1, 0.05], atol=1e-6)


def test_agents_that_do_not_act_are_not_shaped():
    for mode in ("penalty", "bayesian", "bayesian_potential"):
        shield = shield_on(cliff(0.0, 0.9), reward_mode=mode)
        decision = propose(shield, 1, active=np.array([[False]]))
        assert not shield.shaping(decision, np.zeros(1, int), np.ones((1, 1), bool), gamma=1.0).any()


def test_a_saved_shield_goes_on_as_if_nothing_had_happened():
    shield, table = team_shield(4, 5, reward_mode="bayesian_potential")
    rng = np.random.default_rng(0)
    shield.begin(np.ones(5, bool), np.arange(5))

    def play(one: TeamShield, seed: int):
        rng = np.random.default_rng(seed)
        proposed = np.stack([rng.integers(0, 3, 5), rng.integers(0, 2, 5)], 1)
        decision = one.decide(proposed)
        added = one.shaping(decision, np.arange(5), np.zeros((5, 2), bool), gamma=0.9)
        one.observe(rng.integers(0, 6, 5), rng.random(5) < 0.3)
        return decision, added

    play(shield, int(rng.integers(100)))
    state = {name: value.copy() for name, value in shield.state().items()}
    again = TeamShield.from_state(shield.agents, shield.actions, shield.config, state)
    again.refresh(table)
    for seed in range(8):
        (ours, our_reward), (theirs, their_reward) = play(shield, seed), play(again, seed)
        np.testing.assert_array_equal(ours.executed, theirs.executed)
        np.testing.assert_array_equal(our_reward, their_reward)
        np.testing.assert_array_equal(shield.slack, again.slack)
        np.testing.assert_array_equal(shield.bounds, again.bounds)
    assert {name: value.tolist() for name, value in shield.state().items() if name != "bounds"} == {
        name: value.tolist() for name, value in again.state().items() if name != "bounds"
    }


def test_the_state_of_other_agents_is_refused():
    shield, _ = team_shield(4, 2)
    with pytest.raises(ConfigError, match=r"\[3, 2\] actions cannot serve"):
        TeamShield.from_state(["a", "b"], [3, 3], shield.config, shield.state())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_risk": 0.0}, "max_risk=0.0"),
        ({"max_risk": 1.0}, "max_risk=1.0"),
        ({"credible_delta": 2}, "credible_delta=2"),
        ({"horizon": 0}, "horizon=0"),
        ({"patience": -1}, "patience=-1"),
        ({"rule": "ledgers"}, "rule='ledgers'"),
        ({"opponent_mode": "kind"}, "opponent_mode='kind'"),
        ({"penalty": -1.0}, "penalty=-1.0"),
        ({"risk_weight": float("nan")}, "risk_weight=nan"),
        ({"rule": "step", "step_horizon": 51}, "step_horizon=51 is beyond horizon=50"),
        ({"action": "mask", "reward_mode": "penalty"}, "a masked policy is never overridden"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        ShieldConfig(**{"horizon": 50, **settings})


def test_a_horizon_beyond_the_episode_is_refused_and_a_visit_count_says_what_it_takes():
    config = ShieldConfig(horizon=50)
    config.check_episode("crossing_v0", 50)
    config.check_episode("crossing_v0", None)
    with pytest.raises(
        ConfigError, match="horizon=50 is beyond the episodes of crossing_v0, which end after 40"
    ):
        config.check_episode("crossing_v0", 40)
    assert config.visits_needed(1000) == pytest.approx(50 * np.log(1000 / 0.05) / 0.05, abs=1)
