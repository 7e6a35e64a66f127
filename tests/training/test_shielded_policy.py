"""Frozen teams behind frozen shields: the same decisions as in training, calibration, explanations, attachment, audit."""

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

import marl_tools
from marl_tools.core.bounds import ppr_lower
from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.envs import corridor, crossing
from marl_tools.models.networks import NetworkConfig
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.exact import solve, violation_probability
from marl_tools.training.attach import attach_shield, certify_policy
from marl_tools.training.audit import Audit
from marl_tools.training.build import build_team
from marl_tools.training.coverage import coverage
from marl_tools.training.evaluate import evaluate
from marl_tools.training.ippo import IPPO, IPPOConfig
from marl_tools.training.policy import TeamPolicy
from marl_tools.training.shielded_policy import ShieldedPolicy, calibrate, explain
from marl_tools.vector import SerialVectorEnv
from marl_tools.vector.serial import env_groups
from tests.keyed_envs import Costless, Dice, Moody, Rink

CROSSING = EnvFactory(make_env=crossing.parallel_env, kwargs={"max_cycles": 15})


def go(observations):
    return dict.fromkeys(observations, 1)


@pytest.fixture(scope="module")
def shielded():
    """Uniform play on the crossing, learned for 150 episodes."""
    return attach_shield(CROSSING, Dice(2), learn_episodes=150, max_risk=0.2)


# --- playing ------------------------------------------------------------------------------------------------------


def test_each_decision_equals_that_of_the_teams_shield_frozen_alike(shielded):
    team = shielded.team
    twin = team.shield.frozen(1)
    tables = [shield.tables.value.copy() for shield in team.shield.shields]
    draws = team.world.state()["row_draws"]
    decisions = []

    class Watched(ShieldedPolicy):
        def _note(self, decision):
            super()._note(decision)
            decisions.append((self._env.builder.length, self._env.state_key(), decision))

    evaluation = evaluate(CROSSING, Watched(shielded.policy, team), episodes=30, seed=7)
    logs = defaultdict(lambda: np.zeros(3, int))
    number = -1
    for step, key, decision in decisions:
        key_id = team.world.key_ids([key])
        if step == 0:
            number += 1
            twin.begin(np.array([True]), key_id)
        else:
            twin.observe(key_id, np.array([False]))
        again = twin.decide(decision.proposed, decision.active)
        for name in ("key_ids", "k_left", "executed", "overridden", "fallback", "unverified"):
            assert np.array_equal(getattr(again, name), getattr(decision, name)), name
        for i, agent in enumerate(team.agents):
            logs[number, agent] += [
                flags[0, i] for flags in (again.overridden, again.fallback, again.unverified)
            ]
    for number, log in enumerate(evaluation.episodes):
        for agent in team.agents:
            counted = [getattr(log, name).get(agent, 0) for name in ("overrides", "fallbacks", "unverified")]
            assert counted == logs[number, agent].tolist()
    assert sum(sum(log.overrides.values()) for log in evaluation.episodes) > 0
    assert not any(log.unverified for log in evaluation.episodes)
    for shield, value in zip(team.shield.shields, tables, strict=True):
        assert np.array_equal(shield.tables.value, value)
    assert np.array_equal(team.world.state()["row_draws"], draws)


def test_an_episode_with_the_same_seed_is_the_same_again(shielded):
    first, second = (evaluate(CROSSING, shielded, episodes=4, seed=3) for _ in range(2))
    assert [log.returns for log in first.episodes] == [log.returns for log in second.episodes]


def test_a_policy_must_begin_before_it_plays_and_needs_a_key(shielded):
    fresh = shielded.fork()
    with pytest.raises(ConfigError, match="begin"):
        fresh({"car_0": 0})
    from tests.envs_for_tests import Team

    with pytest.raises(ConfigError, match="state_key"):
        fresh.begin(EnvFactory(make_env=Team)())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda obs: {"car_0": 0}, "'car_1' no action"),
        (lambda obs: dict.fromkeys(obs, 2), r"action 2.*Discrete"),
    ],
)
def test_a_function_that_answers_amiss_is_told_so(answer, message):
    with pytest.raises(ConfigError, match=message):
        attach_shield(CROSSING, answer, learn_episodes=1)


class Masked(Rink):
    """A rink on which action 0 is never allowed; the mask comes with the observation or in the infos."""

    in_observation = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        if self.in_observation:
            plain = Box(-np.inf, np.inf, (2,), np.float32)
            space = Dict({"observation": plain, "action_mask": Box(0, 1, (3,), np.int8)})
            self._spaces = dict.fromkeys(self.possible_agents, space)

    def step(self, actions):
        assert 0 not in actions.values()
        return super().step(actions)

    def _observe(self, agents):
        rows = super()._observe(agents)
        mask = np.array([0, 1, 1], np.int8)
        return (
            {a: {"observation": o, "action_mask": mask} for a, o in rows.items()}
            if self.in_observation
            else rows
        )

    def _info(self, agents):
        return (
            {} if self.in_observation else {agent: {"action_mask": np.array([0, 1, 1])} for agent in agents}
        )


class MaskedInside(Masked):
    in_observation = True


@pytest.mark.parametrize("make_env", [Masked, MaskedInside])
@pytest.mark.parametrize("action", ["override", "mask"])
def test_a_trained_team_plays_only_what_env_and_shield_both_allow(make_env, action):
    factory = EnvFactory(make_env=make_env)
    envs = SerialVectorEnv(factory, 2)
    env = factory()
    team = build_team(
        env,
        envs.groups,
        lambda steps: ShieldConfig(horizon=steps, max_risk=0.3, action=action, patience=20),
        num_envs=2,
    )
    trainer = IPPO(
        envs,
        IPPOConfig(rollouts=40, learning_epochs=1, mini_batches=1, network=NetworkConfig(hidden=(8,))),
        seed=0,
        total_frames=1000,
        shield=team,
    )
    for _ in range(3):
        trainer.update(trainer.collect())
    networks = {name: learner.network for name, learner in trainer.learners.items()}
    policy = ShieldedPolicy(TeamPolicy(envs.groups, networks), team)
    evaluation = evaluate(factory, policy, episodes=10, seed=0)
    assert len(evaluation.episodes) == 10
    assert any(log.overrides for log in evaluation.episodes) == (action == "override")


# --- calibration --------------------------------------------------------------------------------------------------


def test_calibration_counts_each_proposal_once_however_often_it_is_run(shielded):
    env, team = CROSSING(), attach_shield(CROSSING, Dice(2), learn_episodes=30, max_risk=0.2).team
    calibrate(env, Dice(2), team, episodes=60, seed=50)
    first = [floors.counts.copy() for floors in team.opponents._agents]
    assert any(floor.any() for floor in team.floors)
    calibrate(env, Dice(2), team, episodes=60, seed=50)
    for before, floors in zip(first, team.opponents._agents, strict=True):
        assert np.array_equal(before, floors.counts)
    highest = max(floor.max() for floor in team.floors)
    assert 0 < highest < 0.5
    most = max(counts.sum(1).max() for counts in first)
    assert highest <= ppr_lower(most, most, 1.0)


def test_under_a_mask_there_is_nothing_to_calibrate():
    masked = attach_shield(CROSSING, Dice(2), learn_episodes=2, action="mask")
    with pytest.raises(ConfigError, match="override"):
        calibrate(CROSSING(), Dice(2), masked.team, episodes=1, seed=0)


# --- explanations -------------------------------------------------------------------------------------------------


def test_an_explanation_agrees_with_the_episode_the_tables_and_the_counts():
    hasty = attach_shield(CROSSING, go, learn_episodes=30, max_risk=0.05)
    team, env = hasty.team, CROSSING()
    rules = set()
    for seed, step in product((11, 12, 13), range(1, 6)):
        rows = explain(env, hasty, seed=seed, step=step)
        decision = hasty.last
        for row in rows:
            index = team.agents.index(row["agent"])
            shield = team.shield.shields[index]
            k, at = 15 - step + 1, decision.key_ids[0] + 1
            assert row["steps left"] == k
            assert (row["proposed"], row["executed"]) == (1, decision.executed[0, index])
            assert row["V"] == shield.tables.value[k, at]
            assert row["price"] == shield.tables.price[k, at, 1] * team.config.level
            assert row["Q proposed"] == pytest.approx(min(1, row["V"] + row["price"]))
            tried = shield.visits[at, 1] if at < len(shield.visits) else 0
            assert row["tried unknown"] == tried <= 64
            played = np.where(decision.active[0], decision.executed[0], 2)
            assert row["draws executed"] == team.world.draws(at - 1, played @ [3, 1])
            played[index] = 1
            assert row["draws proposed"] == team.world.draws(at - 1, played @ [3, 1])
            assert ("price is above" in row["rule"]) == (row["executed"] != 1)
            rules.add(row["rule"])
    assert len(rules) == 2
    with pytest.raises(ConfigError, match="counted from 1"):
        explain(env, hasty, seed=11, step=0)
    with pytest.raises(ConfigError, match="ends after"):
        explain(env, hasty, seed=11, step=99)


def test_the_step_rule_is_explained_over_its_own_look_ahead():
    hasty = attach_shield(CROSSING, go, learn_episodes=5, rule="step", step_horizon=3)
    rows = explain(CROSSING(), hasty, seed=1, step=2)
    assert all(row["steps left"] == 3 and row["rule"].startswith(("step", "no action")) for row in rows)


# --- a shield for anyone ------------------------------------------------------------------------------------------


def test_a_plain_function_gets_a_shield_whose_bound_holds_exactly():
    hasty = marl_tools.attach_shield(CROSSING, go, learn_episodes=120, max_risk=0.1)
    team = hasty.team
    model = solve(crossing.parallel_env(max_cycles=15))
    always = [np.eye(2)[np.ones(len(model.keys), int)]] * 2
    frozen = team.shield.frozen(1)
    exact = violation_probability(
        model, always, 15, shields=frozen.shields, key_ids=team.world.key_ids(model.keys)
    )
    bare = violation_probability(model, always, 15)
    certificate = marl_tools.certify_policy(CROSSING, hasty, episodes=80, horizons=(5, 15))
    assert certificate["contradictions"] == []
    for i, agent in enumerate(team.agents):
        row = certificate["horizons"][-1]["subjects"][agent]
        assert exact.agents[-1, i] <= row["bound"] + 1e-12 <= 0.1 + 2e-12
        assert exact.agents[-1, i] < bare.agents[-1, i]
        assert row["interval"][0] <= exact.agents[-1, i] + 1e-12


def test_a_torch_policy_and_a_function_of_infos_are_attached_alike():
    torch.manual_seed(0)
    net = torch.nn.Linear(Rink().observation_space("agent_0").shape[0], 3)

    def act(observations, infos):
        assert infos is not None
        return {agent: int(net(torch.as_tensor(obs)).argmax()) for agent, obs in observations.items()}

    policy = attach_shield(Rink, act, learn_episodes=20, max_risk=0.3, patience=3)
    assert policy.team.world.num_rows > 0
    assert certify_policy(Rink, policy, episodes=10, horizons=(6,))["bound_horizon"] in (6, None)


class Leaning:
    """Goes for one action, and says which it would rather play."""

    def __init__(self, law):
        self.law, self.asked = law, []

    def __call__(self, observations, infos=None):
        return {agent: self._first(agent, infos) for agent in observations}

    def _first(self, agent, infos):
        mask = (infos or {}).get(agent, {}).get("action_mask")
        return 0 if mask is None else int(np.flatnonzero(mask)[0])

    def probabilities(self, observations, infos):
        self.asked.append(list(observations))
        return {agent: np.array(self.law) for agent in observations}


@pytest.mark.parametrize("action", ["override", "mask"])
def test_of_equally_good_fallbacks_the_one_that_the_frozen_policy_likes_best_is_played(action):
    policy = Leaning([0.4, 0.6])
    settings = {"learn_episodes": 0, "support": "none", "action": action}
    likes, says_nothing = (attach_shield(CROSSING, one, **settings) for one in (policy, lambda obs: go(obs)))
    env = CROSSING()
    observations, infos = env.reset(seed=0)
    likes.begin(env)
    assert set(likes(observations, infos).values()) == {1}
    assert likes.last is not None
    assert likes.last.fallback.all()
    if action == "override":
        assert policy.asked == [["car_0", "car_1"]]
        # Of one that cannot tell, what it proposes is all that is known.
        says_nothing.begin(env)
        assert set(says_nothing(observations, infos).values()) == {1}
    env.close()


def test_a_frozen_team_is_asked_without_a_draw(monkeypatch):
    envs = SerialVectorEnv(CROSSING, 1)
    trainer = IPPO(envs, IPPOConfig(share="none"), seed=3, total_frames=100)
    networks = {name: learner.network for name, learner in trainer.learners.items()}
    team, ask = TeamPolicy(envs.groups, networks), TeamPolicy.probabilities
    shielded = attach_shield(CROSSING, team, learn_episodes=0, support="none")
    asked = []

    def spy(self, observations, infos=None):
        before = self._generator.get_state()
        laws = ask(self, observations, infos)
        assert torch.equal(self._generator.get_state(), before)
        asked.append({agent: int(law.argmax()) for agent, law in laws.items()})
        return laws

    monkeypatch.setattr(TeamPolicy, "probabilities", spy)
    env = CROSSING()
    observations, infos = env.reset(seed=1)
    shielded.begin(env)
    assert shielded(observations, infos) == asked[0]
    env.close()
    envs.close()


def test_an_exact_model_needs_no_episodes_to_learn():
    policy = attach_shield(corridor.parallel_env, Dice(5), learn_episodes=0, model="exact", support="none")
    certificate = certify_policy(corridor.parallel_env, policy, episodes=20, horizons=(50,))
    assert certificate["horizons"][0]["subjects"]["walker_0"]["bound"] == pytest.approx(0.05)


def test_a_horizon_short_of_the_cap_is_bounded_from_the_start_alone():
    policy = attach_shield(CROSSING, go, learn_episodes=5, horizon=4, max_risk=0.1)
    certificate = certify_policy(CROSSING, policy, episodes=5, horizons=(4, 15))
    first, last = (row["subjects"]["car_0"] for row in certificate["horizons"])
    assert first["bound"] == pytest.approx(0.1)
    assert "bound" not in last


@pytest.mark.parametrize(
    ("make_env", "settings", "message"),
    [
        (CROSSING, {"max_risk": 0.0}, r"max_risk=0\.0.*above 0 and below 1"),
        (CROSSING, {"max_risk": 1.0}, r"max_risk=1\.0"),
        (CROSSING, {"horizon": 16}, r"horizon=16.*crossing.*15 steps.*horizon=15"),
        (CROSSING, {"horizon": 0}, "horizon=0"),
        (CROSSING, {"rule": "ledgers"}, "rule='ledgers'.*'ledger'"),
        (CROSSING, {"opponent_mode": "floor"}, "opponent_mode='floor'.*'monotone_floor'"),
        (CROSSING, {"learn_episodes": -1}, "learn_episodes=-1"),
        (Rink, {"model": "exact"}, "rink_v0.*'learned'"),
        (Costless, {}, "rink_v0 gives agent 'agent_1' no cost.*AddCost"),
    ],
)
def test_what_cannot_be_shielded_is_refused_with_the_remedy(make_env, settings, message):
    with pytest.raises(ConfigError, match=message):
        attach_shield(make_env, Dice(2), **{"learn_episodes": 1, **settings})


def test_an_env_without_key_or_cap_is_refused():
    from tests.envs_for_tests import Team

    with pytest.raises(ConfigError, match=r"team_v0 has no state_key\(\).*Add the method"):
        attach_shield(Team, Dice(3))

    class Endless(Rink):
        def __init__(self):
            super().__init__()
            self.max_cycles = self._cap = None

    with pytest.raises(ConfigError, match=r"rink_v0 has no episode cap.*--cap"):
        attach_shield(Endless, Dice(3))


def test_a_wrapper_that_changes_the_cost_makes_the_envs_own_law_worthless():
    factory = EnvFactory(make_env=crossing.parallel_env, cost="tests.keyed_envs:added_cost")
    env = factory()
    with pytest.raises(ConfigError, match="no wrapper that changes it"):
        build_team(env, env_groups(env), lambda steps: ShieldConfig(horizon=steps), model="exact")
    team = build_team(env, env_groups(env), lambda steps: ShieldConfig(horizon=steps))
    assert not team.world.closed


# --- what speaks against a bound ----------------------------------------------------------------------------------


def note(make_env, policy, episodes=100):
    certificate = certify_policy(make_env, policy, episodes=episodes, horizons=(4,))
    shown = any("bound" in row for row in certificate["horizons"][0]["subjects"].values())
    return certificate["bound_note"], certificate["contradictions"], shown


def test_nothing_speaks_against_a_bound_whose_needs_are_met(shielded):
    text, found, shown = note(CROSSING, shielded, 150)
    assert text.startswith("the bound holds")
    assert not found
    assert shown
    steady = attach_shield(Rink, Dice(3), learn_episodes=100, max_risk=0.3)
    steps = Audit(steady.team)
    assert steps.contradictions() == []
    assert note(Rink, steady)[1] == []


def test_a_policy_that_changes_after_its_floors_were_counted_voids_the_bound(shielded):
    assert any(floor.any() for floor in shielded.team.floors)
    changed = ShieldedPolicy(Dice(2, often=1.0), shielded.team)
    text, found, shown = note(CROSSING, changed)
    assert text.startswith("the bound does not apply: agent 'car_")
    assert not shown
    assert "its policy has changed" in found[0]


def test_a_policy_may_change_where_no_bound_counts_on_it():
    careful = attach_shield(CROSSING, Dice(2), learn_episodes=100, max_risk=0.2, opponent_mode="worst_case")
    text, found, shown = note(CROSSING, ShieldedPolicy(Dice(2, often=1.0), careful.team))
    assert text.startswith("the bound holds")
    assert not found
    assert shown


def test_a_policy_that_changes_in_the_midst_of_the_evaluation_voids_the_bound(shielded):
    class Turncoat(Dice):
        episodes = 0

        def seed(self, seed):
            super().seed(seed)
            self.episodes += 1
            self.often = 1.0 if self.episodes > 200 else 0.5

    text, _, shown = note(CROSSING, ShieldedPolicy(Turncoat(2), shielded.team), 400)
    assert text.startswith("the bound does not apply")
    assert not shown


def test_a_key_that_is_not_markov_voids_the_bound_although_all_frequencies_are_as_learned():
    moody = attach_shield(
        Moody, Dice(2), learn_episodes=100, max_risk=0.9, over_budget="ledger", patience=1000
    )
    text, found, shown = note(Moody, moody)
    assert text.startswith("the bound does not apply: transitions contradict")
    assert not shown
    assert "not Markov" in found[0]


@pytest.mark.parametrize("model", ["learned", "exact"])
def test_an_env_that_is_not_the_one_that_was_learned_voids_the_bound(model):
    kwargs = {"max_cycles": 15, "slip": 0.02}
    calm = attach_shield(
        EnvFactory(make_env=crossing.parallel_env, kwargs=kwargs), Dice(2), learn_episodes=200, model=model
    )
    rough = EnvFactory(make_env=crossing.parallel_env, kwargs={**kwargs, "slip": 0.7})
    text, _, shown = note(rough, calm, 150)
    assert text.startswith("the bound does not apply: transitions contradict")
    assert not shown


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "step", "step_horizon": 3}, "step rule"),
        ({"opponent_mode": "empirical"}, "'empirical' is a guess"),
    ],
)
def test_what_bounds_nothing_is_said_to_bound_nothing(settings, message):
    policy = attach_shield(CROSSING, Dice(2), learn_episodes=5, **settings)
    text, found, shown = note(CROSSING, policy, 5)
    assert message in text
    assert not found
    assert not shown


# --- coverage -----------------------------------------------------------------------------------------------------


def test_coverage_equals_a_count_by_hand(shielded):
    team, report = shielded.team, coverage(shielded.team)
    state = team.world.state()
    rows = list(zip(state["row_key"], state["row_draws"], state["row_known"], strict=True))
    needed = team.config.visits_needed(len(team.world.keys))
    assert report["declared"]
    assert report["rows"] == len(rows)
    assert (
        report["keys"]
        == len({key for key, _, _ in rows})
        == sum(not over for over in solve(crossing.parallel_env(max_cycles=15)).ended.all(1))
    )
    assert report["keys_visited"] == len({key for key, n, _ in rows if n}) / report["keys"]
    assert report["rows_visited"] == sum(n > 0 for _, n, _ in rows) / len(rows)
    lacks = [0 if known == 1 else max(0, needed - n) for _, n, known in rows]
    assert report["visits_missing"] == sum(lacks) > 0
    assert report["rows_known_well"] == sum(lack == 0 for lack in lacks) / len(rows)
    assert report["keys_within_risk"] == {"car_0": 1.0, "car_1": 1.0}


def test_coverage_of_an_undeclared_env_grows_with_what_was_met():
    little, much = (coverage(attach_shield(Rink, Dice(3), learn_episodes=n).team) for n in (1, 60))
    assert not little["declared"]
    assert little["rows"] < much["rows"]
    assert little["rows_visited"] == much["rows_visited"] == 1.0
    assert little["keys_within_risk"]["agent_0"] == 0.0
