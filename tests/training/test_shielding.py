"""A shielded team in training: what it counts, decides, notes, adds to rewards, keeps and refuses."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.envs import crossing
from marl_tools.envs.native import GameVectorEnv
from marl_tools.safety.config import ShieldConfig
from marl_tools.safety.exact import solve
from marl_tools.training.batches import from_lanes, to_lanes
from marl_tools.training.build import build_team
from marl_tools.training.ippo import IPPO, IPPOConfig
from marl_tools.training.rollout import Collector
from marl_tools.training.shielding import ShieldedTeam
from marl_tools.vector import SerialVectorEnv, WorkerVectorEnv
from tests.keyed_envs import Costless, Rink, Spy, learned_draws, spied_crossing, spied_rink

CROSSING = EnvFactory(make_env=crossing.parallel_env, kwargs={"max_cycles": 12})


MANY = {"steps": 100, "num_envs": 12, "native": True}


class Proposer:
    """An actor that proposes uniformly what it may."""

    def __init__(self, actions: int, seed: int = 0) -> None:
        self.actions, self.rng = actions, np.random.default_rng(seed)
        self.proposed: list[np.ndarray] = []
        self.masks: list[np.ndarray | None] = []

    def noise(self, steps, envs):
        return None

    def act(self, obs, mask, noise):
        score = self.rng.random((*obs.shape[:2], self.actions))
        if mask is not None:
            score = np.where(mask, score, -1.0)
        self.proposed.append(score.argmax(2))
        self.masks.append(mask)
        return self.proposed[-1], np.full(obs.shape[:2], -len(self.proposed), np.float32)

    def probabilities(self, obs, agents, mask):
        allowed = np.ones((len(obs), self.actions)) if mask is None else mask.astype(float)
        return allowed / allowed.sum(1, keepdims=True)


def shielded(factory, envs, *, support="none", model="learned", horizon=None, **settings):
    env = factory()
    team = build_team(
        env,
        envs.groups,
        lambda steps: ShieldConfig(horizon=steps, **{"reward_mode": "none", **settings}),
        horizon=horizon,
        support=support,
        model=model,
        num_envs=envs.num_envs,
    )
    env.close()
    return team


def collect(factory, *, rollouts=3, steps=40, num_envs=3, native=False, refresh=True, seed=5, **settings):
    envs = SerialVectorEnv(factory, num_envs)
    if native:
        envs = GameVectorEnv(factory().unwrapped.game, num_envs, env_name=factory().env_name)
    team = shielded(factory, envs, **settings)
    actors = {group.name: Proposer(group.spaces.action_dim) for group in envs.groups}
    collector = Collector(envs, steps, seed=seed, guard=team)
    episodes, parts = [], []
    for _ in range(rollouts):
        rollout = collector.collect(actors, episodes.append)
        parts.append({name: replace_arrays(group) for name, group in rollout.groups.items()})
        if refresh:
            team.policies_changed()
    return team, episodes, parts, actors


def replace_arrays(group):
    names = ("actions", "log_probs", "rewards", "costs", "valid", "terminated")
    return {name: getattr(group, name).copy() for name in names} | {
        "mask": None if group.action_mask is None else group.action_mask.copy()
    }


# --- the draws ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"violators_end": True},
        {"n": 3, "deaths": {"agent_0": 2}, "births": {"agent_1": 3}},
        {"n": 3, "cuts": {"agent_2": 2}, "violators_end": True},
        {"max_cycles": 1},
    ],
    ids=["violators go on", "violators end", "deaths and births", "cut off alone", "one step"],
)
def test_every_step_of_every_agent_is_counted_as_an_onlooker_counts_it(kwargs):
    Spy.draws.clear()
    team, _, _, _ = collect(EnvFactory(make_env=spied_rink, kwargs=kwargs), patience=10_000, max_risk=0.3)
    assert Spy.draws.total() == 3 * 3 * 40
    assert learned_draws(team.world) == Spy.draws


@pytest.mark.parametrize("support", ["none", "declared"])
def test_a_native_env_is_counted_as_single_envs_are_and_both_as_an_onlooker_counts(support):
    Spy.draws.clear()
    spied = EnvFactory(make_env=spied_crossing, kwargs={"max_cycles": 12})
    serial, logs, _, _ = collect(spied, support="none", patience=1000, max_risk=0.5)
    onlooker = Counter(Spy.draws)
    assert learned_draws(serial.world) == onlooker
    native, native_logs, _, _ = collect(CROSSING, native=True, support=support, patience=1000, max_risk=0.5)
    if support == "none":
        assert learned_draws(native.world) == onlooker
        for ours, theirs in zip(native_logs, logs, strict=True):
            assert replace(ours, wall_time=0.0) == replace(theirs, wall_time=0.0)
    assert learned_draws(native.world).total() == 3 * 3 * 40


def test_only_what_policies_propose_in_override_mode_is_counted_for_the_floors():
    team, _, parts, _ = collect(CROSSING, max_risk=0.2, patience=0, support="declared")
    team.refresh()
    for agent in range(2):
        counted = team.opponents._agents[agent].total.sum(0)
        proposed = [part["car"]["actions"][:, :, agent][part["car"]["valid"][:, :, agent]] for part in parts]
        assert (
            counted.tolist()
            == np.bincount(np.concatenate([p.ravel() for p in proposed]), minlength=2).tolist()
        )
    masked, _, _, _ = collect(CROSSING, max_risk=0.2, patience=0, support="declared", action="mask")
    assert all(not floors.total.any() for floors in masked.opponents._agents)


# --- what is stored, played, noted and rewarded -------------------------------------------------------------------


def test_the_rollout_keeps_the_proposal_and_its_log_prob_where_another_action_was_played():
    _, episodes, parts, actors = collect(CROSSING, max_risk=0.05, patience=0, support="declared")
    (name,) = actors
    proposed = np.stack(actors[name].proposed)
    stored = np.concatenate([part[name]["actions"] for part in parts])
    assert np.array_equal(stored, proposed)
    assert np.array_equal(
        np.concatenate([part[name]["log_probs"] for part in parts])[:, 0, 0], -1 - np.arange(120)
    )
    assert sum(sum(log.overrides.values()) for log in episodes) > 0
    assert actors[name].masks == [None] * 120


def test_a_masked_policy_samples_what_is_admitted_and_the_rollout_keeps_that_mask():
    _, episodes, parts, actors = collect(
        CROSSING, max_risk=0.05, patience=0, support="declared", action="mask"
    )
    (name,) = actors
    for part in parts:
        mask, played, valid = part[name]["mask"], part[name]["actions"], part[name]["valid"]
        assert np.take_along_axis(mask, played[..., None], -1)[..., 0][valid].all()
        assert not mask.all()
    assert not any(log.overrides for log in episodes)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("patience", [0, 3])
def test_the_notes_of_each_episode_equal_a_replay_by_hand(native, patience, monkeypatch):
    seen, dones = [], []
    execute, observe = ShieldedTeam.execute, ShieldedTeam.observe

    def spy_execute(self, step, proposals, probabilities):
        result = execute(self, step, proposals, probabilities)
        seen.append((self._decision, self.shield.slack.copy(), self.shield.bounds.copy()))
        return result

    def spy_observe(self, step):
        dones.append([key is not None for key in step.final_keys])
        return observe(self, step)

    monkeypatch.setattr(ShieldedTeam, "execute", spy_execute)
    monkeypatch.setattr(ShieldedTeam, "observe", spy_observe)
    team, episodes, _, _ = collect(
        CROSSING, native=native, max_risk=0.2, patience=patience, support="declared"
    )
    expected, running = [], defaultdict(lambda: defaultdict(Counter))
    state = {}
    for t, (decision, slack, bounds) in enumerate(seen):
        for env in range(3):
            for i, agent in enumerate(team.agents):
                if decision.active[env, i]:
                    for name, flags in (
                        ("overrides", decision.overridden),
                        ("fallbacks", decision.fallback),
                        ("unverified", decision.unverified),
                    ):
                        running[env][name][agent] += int(flags[env, i])
                    bound = bounds[env, i]
                    state[env, agent] = (
                        None if np.isnan(bound) else bound,
                        slack[env, i] * team.config.level,
                    )
            if dones[t][env]:
                expected.append((env, {k: +v for k, v in running.pop(env, {}).items()}, dict(state)))
    assert len(expected) == len(episodes) > 5
    for (env, counts, last), log in zip(expected, episodes, strict=True):
        assert log.env_index == env
        for name, counter in counts.items():
            assert getattr(log, name) == dict(counter), name
        for agent in team.agents:
            assert (log.bound[agent], log.slack[agent]) == last[env, agent]
    assert any(log.unverified for log in episodes) == bool(patience)


@pytest.mark.parametrize("mode", ["penalty", "bayesian", "bayesian_potential"])
def test_what_a_reward_mode_adds_goes_to_the_learner_and_never_to_the_log(mode):
    factory = EnvFactory(make_env=Rink) if mode == "bayesian_potential" else CROSSING
    settings = {"max_risk": 0.05, "patience": 0}
    _, plain, bare, _ = collect(factory, **settings)
    _, shaped, parts, _ = collect(factory, reward_mode=mode, **settings)
    assert [log.returns for log in shaped] == [log.returns for log in plain]
    (name,) = parts[0]
    added = [part[name]["rewards"] - base[name]["rewards"] for part, base in zip(parts, bare, strict=True)]
    valid = [part[name]["valid"] for part in parts]
    assert any(array.any() for array in added)
    assert not any(array[~rows].any() for array, rows in zip(added, valid, strict=True))
    if mode == "penalty":
        overrides = sum(sum(log.overrides.values()) for log in shaped)
        assert -sum(array.sum() for array in added) >= overrides > 0


# --- floors and tables --------------------------------------------------------------------------------------------


def test_new_policies_lose_their_floors_before_the_tables_are_made_anew():
    team, _, _, _ = collect(CROSSING, max_risk=0.2, patience=0, support="declared", refresh=False, **MANY)
    team.settle_floors()
    assert any(floor.any() for floor in team.floors)
    before = [shield.tables.value.copy() for shield in team.shield.shields]
    team.policies_changed()
    assert not any(floor.any() for floor in team.floors)
    after = [shield.tables.value for shield in team.shield.shields]
    assert all((now >= then - 1e-12).all() for now, then in zip(after, before, strict=True))


def test_calibration_after_many_updates_has_floors_as_high_as_after_none():
    settings = {"max_risk": 0.2, "patience": 0, "support": "declared", **MANY}
    fresh, _, _, _ = collect(CROSSING, rollouts=1, refresh=False, **settings)
    learned, _, _, _ = collect(CROSSING, rollouts=4, **settings)
    for team in (fresh, learned):
        team.forget_floors()
        for _ in range(20):
            team.models.add_proposals(np.zeros(50, int), np.ones((50, 2), bool), np.ones((50, 2), int))
        team.refresh()
    for agent in range(2):
        assert fresh.floors[agent][0, 1] == learned.floors[agent][0, 1] > 0.9


def test_an_oracle_of_the_others_is_refused_where_a_team_plays_with_the_remedy():
    with pytest.raises(ConfigError, match=r"opponent_mode='oracle'.*'monotone_floor'.*set_policy"):
        collect(CROSSING, opponent_mode="oracle")


@pytest.mark.parametrize("over_budget", ["fallback", "ledger"])
@pytest.mark.parametrize("rule", ["ledger", "step"])
def test_settled_floors_stand_only_under_actions_that_the_tables_made_with_them_always_admit(
    over_budget, rule
):
    team, _, _, _ = collect(
        CROSSING,
        max_risk=0.05,
        patience=0,
        support="declared",
        model="exact",
        refresh=False,
        **MANY,
        over_budget=over_budget,
        rule=rule,
    )
    team.refresh()
    counted = [floors.floor.copy() for floors in team.opponents._agents]
    team.settle_floors()
    relied = 0
    for agent, (floor, admitted) in enumerate(zip(team.floors, team.shield.always_admitted(), strict=True)):
        assert not (floor > 0)[~admitted[: len(floor)]].any()
        assert (floor <= counted[agent][: len(floor)] + 1e-15).all()
        relied += np.count_nonzero(floor)
    assert relied > 0
    again = [shield.tables.value.copy() for shield in team.shield.shields]
    team.settle_floors()
    assert all(
        np.array_equal(shield.tables.value, value)
        for shield, value in zip(team.shield.shields, again, strict=True)
    )


def test_an_action_that_new_tables_no_longer_admit_loses_its_floor_in_them(monkeypatch):
    team, _, _, _ = collect(CROSSING, max_risk=0.2, patience=0, support="declared", refresh=False, **MANY)
    shrinking = iter([0, 1, 2, 2])
    real = team.shield.always_admitted

    def fewer():
        masks, out = real(), next(shrinking)
        for mask in masks:
            mask[: 30 * out] = False
        return masks

    monkeypatch.setattr(team.shield, "always_admitted", fewer)
    team.settle_floors()
    assert not any(floor[:60].any() for floor in team.floors)


def test_without_declared_support_keys_that_were_just_met_do_not_upset_the_tables():
    team, episodes, _, _ = collect(EnvFactory(make_env=Rink), patience=5, max_risk=0.3, steps=7, rollouts=9)
    assert len(team.world.keys) >= team.table.num_keys
    assert len(episodes) > 10


def test_the_false_block_rate_is_the_share_of_overrides_that_the_posterior_mean_calls_harmless(monkeypatch):
    blocks = []
    original = ShieldedTeam.execute

    def spy(self, step, proposals, probabilities):
        result = original(self, step, proposals, probabilities)
        decision = self._decision
        for env, i in np.argwhere(decision.overridden):
            mean = self.shield.shields[i].tables.mean
            key, k = decision.key_ids[env], decision.k_left[env]
            blocks.append(mean[k, key + 1, decision.proposed[env, i]] <= self.config.max_risk)
        return result

    monkeypatch.setattr(ShieldedTeam, "execute", spy)
    team, _, _, _ = collect(CROSSING, max_risk=0.3, patience=0, support="declared", **MANY)
    assert team.figures()["false_block_rate"] == pytest.approx(np.mean(blocks))
    assert 0 < np.mean(blocks) < 1
    assert team.figures()["false_block_rate"] is None


# --- keeping and refusing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("support", ["none", "declared"])
def test_what_was_saved_goes_on_with_the_same_tables(support):
    team, _, _, _ = collect(
        CROSSING, max_risk=0.2, patience=4, support=support, reward_mode="bayesian_potential"
    )
    envs = SerialVectorEnv(CROSSING, 3)
    other = shielded(
        CROSSING, envs, max_risk=0.2, patience=4, support=support, reward_mode="bayesian_potential"
    )
    saved = team.state()
    other.load(saved)
    # Draws since the last update belong to the models, but not yet to the tables.
    team.refresh()
    for ours, theirs in zip(team.shield.shields, other.shield.shields, strict=True):
        known = slice(0, ours.tables.num_keys + 1)
        assert ours.tables.num_keys == theirs.tables.num_keys
        for name in ("value", "price", "lower", "mean"):
            assert np.array_equal(
                getattr(ours.tables, name)[:, known], getattr(theirs.tables, name)[:, known]
            )
        assert np.array_equal(ours.visits, theirs.visits)
    assert learned_draws(other.world) == learned_draws(team.world)
    again = team.state()
    np.testing.assert_equal(other.state(), again)
    actors = {group.name: Proposer(group.spaces.action_dim, seed=8) for group in envs.groups}
    runs = []
    for one in (team, other):
        collector = Collector(SerialVectorEnv(CROSSING, 3), 20, seed=3, guard=one)
        actors = {group.name: Proposer(group.spaces.action_dim, seed=8) for group in envs.groups}
        logs = []
        collector.collect(actors, logs.append)
        runs.append([replace(log, wall_time=0.0) for log in logs])
    assert runs[0] == runs[1] != []


@pytest.mark.parametrize(
    ("kwargs", "make_env"),
    [
        ({"max_cycles": 12, "slip": 0.0}, crossing.parallel_env),
        ({"max_cycles": 12, "n_agents": 3}, crossing.parallel_env),
        ({}, Rink),
    ],
    ids=["another support", "another team", "another env"],
)
def test_models_of_another_env_are_refused_by_name(kwargs, make_env):
    team, _, _, _ = collect(CROSSING, max_risk=0.2, patience=0, support="declared", steps=3)
    factory = EnvFactory(make_env=make_env, kwargs=kwargs)
    other = shielded(factory, SerialVectorEnv(factory, 2), support="declared")
    with pytest.raises(ConfigError, match=r"crossing|rink"):
        other.load(team.state())


def test_an_undeclared_model_is_refused_where_the_env_declares_its_rows():
    team, _, _, _ = collect(CROSSING, max_risk=0.2, patience=2, support="none", steps=3)
    other = shielded(CROSSING, SerialVectorEnv(CROSSING, 3), support="declared")
    with pytest.raises(ConfigError, match="shield_support"):
        other.load(team.state())


def test_an_agent_without_a_cost_is_an_error_that_names_it_and_not_a_cost_of_0():
    with pytest.raises(ConfigError, match=r"rink_v0 gives agent 'agent_1' no cost.*--cost"):
        collect(EnvFactory(make_env=Costless), patience=100)


def test_a_declared_support_that_the_env_breaks_is_an_error_that_names_the_step():
    def stormy():
        env = crossing.parallel_env(max_cycles=12, slip=0.0)
        calm = crossing.parallel_env(max_cycles=12, slip=0.3)
        calm.joint_law, calm.law_table, calm.initial_law = env.joint_law, env.law_table, env.initial_law
        return calm

    with pytest.raises(ConfigError, match="declared support excludes"):
        collect(EnvFactory(make_env=stormy), support="declared", max_risk=0.9, patience=0)


def test_continuous_actions_are_refused():
    from mpe2 import simple_spread_v3

    factory = EnvFactory(make_env=simple_spread_v3.parallel_env, kwargs={"continuous_actions": True})
    envs = SerialVectorEnv(factory, 1)
    with pytest.raises(ConfigError, match=r"Box.*needs Discrete"):
        ShieldedTeam(
            envs.groups, envs.envs[0].possible_agents, ShieldConfig(horizon=5), num_envs=1, env_name="spread"
        )
    envs.close()


# --- with the trainer ---------------------------------------------------------------------------------------------


def test_a_trainer_resumed_from_its_checkpoint_has_the_same_shield(tmp_path):
    from marl_tools.training.checkpoint import load_checkpoint, save_checkpoint

    config = IPPOConfig(rollouts=16, learning_epochs=1, mini_batches=1)

    def trainer(seed):
        envs = SerialVectorEnv(CROSSING, 3)
        return IPPO(
            envs,
            config,
            seed=seed,
            total_frames=1000,
            shield=shielded(CROSSING, envs, support="declared", max_risk=0.1, patience=3),
        )

    first, second = trainer(0), trainer(1)
    for _ in range(2):
        first.update(first.collect())
    save_checkpoint(tmp_path / "a.safetensors", *first.state())
    second.load(*load_checkpoint(tmp_path / "a.safetensors"))
    np.testing.assert_equal(second.shield.state(), first.shield.state())
    for ours, theirs in zip(first.shield.shield.shields, second.shield.shield.shields, strict=True):
        assert np.array_equal(ours.tables.value, theirs.tables.value)


def test_enumeration_in_arrays_equals_enumeration_one_by_one():
    class Slow:
        def __init__(self, env):
            self.possible_agents, self.action_space = env.possible_agents, env.action_space
            self.initial_law, self.joint_law, self.ended_agents = (
                env.initial_law,
                env.joint_law,
                env.ended_agents,
            )

    for env in (crossing.parallel_env(n_agents=3), crossing.parallel_env(slip=0.0)):
        fast, slow = solve(env), solve(Slow(env))
        assert set(fast.keys) == set(slow.keys)
        assert flat(fast) == pytest.approx(flat(slow))
        ids = [slow.keys.index(key) for key in fast.keys]
        assert np.array_equal(fast.ended, slow.ended[ids])
        np.testing.assert_allclose(fast.initial, slow.initial[ids])


def flat(model):
    """{(key, joint, next key, violated, ended): probability}"""
    table, law = model.table, {}
    for row, slot in np.argwhere(table.succ >= 0):
        flags = (*table.violated[row, slot].tolist(), *table.ended[row, slot].tolist())
        name = (
            model.keys[table.row_key[row]],
            int(table.row_joint[row]),
            model.keys[table.succ[row, slot]],
            flags,
        )
        law[name] = law.get(name, 0.0) + table.lo[row, slot]
    return law


# --- ties among fallback actions ----------------------------------------------------------------------------------


def learning(factory, kind, monkeypatch, *, share="group", **settings):
    """One rollout of a trainer to whose shield every key is unknown: what each step showed and played, and the logs."""
    game = factory().unwrapped.game
    envs = {
        "serial": lambda: SerialVectorEnv(factory, 3),
        "workers": lambda: WorkerVectorEnv(factory, 3, 2),
        "native": lambda: GameVectorEnv(game, 3, env_name=factory().env_name),
    }[kind]()
    team = shielded(factory, envs, patience=0, **settings)
    trainer = IPPO(envs, IPPOConfig(rollouts=15, share=share), seed=0, total_frames=1000, shield=team)
    (name,), seen, original = trainer.learners, [], ShieldedTeam.execute

    def spy(self, step, proposals, probabilities):
        result = original(self, step, proposals, probabilities)
        now = step.groups[name]
        seen.append((now.obs.copy(), now.active.copy(), result[0][name].copy(), self._decision.fallback))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ShieldedTeam, "execute", spy)
        rollout = trainer.collect()
    logs = [replace(log, wall_time=0.0) for log in rollout.episodes]
    envs.close()
    return trainer.learners[name], seen, logs, trainer.generator.get_state()


@pytest.mark.parametrize("action", ["override", "mask"])
@pytest.mark.parametrize("share", ["group", "none"])
def test_of_equally_good_fallbacks_the_one_that_the_learning_policy_likes_best_is_played(
    share, action, monkeypatch
):
    learner, seen, logs, _ = learning(CROSSING, "serial", monkeypatch, share=share, action=action)
    played = Counter()
    for obs, active, executed, fallback in seen:
        with torch.inference_mode():
            logits = learner.network.policy(to_lanes(obs, learner.lanes))
        likeliest = from_lanes(logits.argmax(-1), 2)
        assert fallback[active].all()
        assert np.array_equal(executed[active], likeliest[active])
        played.update(executed[active].tolist())
    assert len(played) == 2
    assert sum(sum(log.fallbacks.values()) for log in logs) > 0


def test_ties_are_broken_alike_in_serial_native_and_worker_envs(monkeypatch):
    (_, first, logs, state), *others = (
        learning(CROSSING, kind, monkeypatch) for kind in ("serial", "native", "workers")
    )
    for _, seen, other_logs, other_state in others:
        assert other_logs == logs
        assert torch.equal(other_state, state)
        for ours, theirs in zip(first, seen, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(ours[1:], theirs[1:], strict=True))
