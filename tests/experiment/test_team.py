"""Trained teams out of their folders: shield, certificate, calibration; and whole shielded and constrained runs."""

import shutil

import numpy as np
import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.io import load_from_file, read_jsonl, save_to_file
from marl_tools.envs import crossing
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.film import film_grid
from marl_tools.experiment.folder import load_config
from marl_tools.experiment.run import resume, train
from marl_tools.experiment.team import certify_run, evaluate_run, load_team
from marl_tools.safety.exact import solve, violation_probability
from marl_tools.training.policy import TeamPolicy
from marl_tools.training.shielded_policy import ShieldedPolicy

TINY = {
    "env": "crossing",
    "native": True,
    "timesteps": 512,
    "num_envs": 8,
    "rollouts": 32,
    "hidden": [8],
    "learning_epochs": 1,
    "final_policy_eval_episodes": 20,
    "video_episodes": 0,
}
SHIELD = {"shield": "ledger", "shield_patience": 0, "max_risk": 0.05}


def run(folder, **settings):
    return train(RunConfig.from_flat({**TINY, "out": str(folder), **settings}))[0]


def rows(result, name):
    return list(read_jsonl(result.folder / f"{name}.jsonl"))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A finished shielded run whose floors were counted."""
    folder = tmp_path_factory.mktemp("team") / "run"
    return run(folder, **SHIELD, shield_calibrate=100)


# --- loading ------------------------------------------------------------------------------------------------------


def test_a_loaded_team_has_the_tables_that_the_run_was_certified_with(calibrated):
    config = load_config(calibrated.folder)
    policy = load_team(calibrated.folder, config)
    assert isinstance(policy, ShieldedPolicy)
    assert any(floor.any() for floor in policy.team.floors)
    again = evaluate_run(config, policy, episodes=20)
    assert [log.returns for log in again.episodes] == [log.returns for log in calibrated.after.episodes]
    assert certify_run(config, again, policy) == calibrated.certificate
    assert load_from_file(calibrated.folder, "certificate.json") == calibrated.certificate


def test_deterministic_play_counts_on_no_floor_that_was_counted_from_samples(calibrated):
    policy = load_team(calibrated.folder, load_config(calibrated.folder), deterministic=True)
    assert not any(floor.any() for floor in policy.team.floors)
    certificate = certify_run(
        load_config(calibrated.folder),
        evaluate_run(load_config(calibrated.folder), policy, episodes=20),
        policy,
    )
    assert certificate["bound_note"].startswith("the bound holds")


def test_models_of_another_env_in_the_folder_are_refused(calibrated, tmp_path):
    folder = shutil.copytree(calibrated.folder, tmp_path / "run")
    flat = load_from_file(folder, "config.json")
    save_to_file({**flat, "env_kwargs": {"slip": 0.0}}, folder, "config.json")
    with pytest.raises(ConfigError, match=r"crossing.*env_kwargs"):
        load_team(folder, load_config(folder))


def test_the_law_is_enumerated_once_in_a_run_and_once_when_its_team_is_loaded_alone(tmp_path, monkeypatch):
    enumerated = []

    def counted(env):
        enumerated.append(env)
        return solve(env)

    monkeypatch.setattr("marl_tools.training.build.solve", counted)
    looks = {"eval_every": 1, "eval_episodes": 2, "video_every": 1, "video_episodes": 1}
    result = run(tmp_path / "run", **{**SHIELD, **looks}, shield_calibrate=2, final_policy_eval_episodes=5)
    assert len(list((result.folder / "videos").glob("*.mp4"))) == 3
    assert result.certificate
    assert len(enumerated) == 1
    load_team(result.folder, load_config(result.folder))
    assert len(enumerated) == 2


def test_a_team_loaded_with_the_law_of_another_is_the_one_loaded_alone_and_the_other_stays(calibrated):
    config = load_config(calibrated.folder)
    alone, other = (
        load_team(calibrated.folder, config),
        load_team(calibrated.folder, config, deterministic=True),
    )
    bare = other.team.state()["opponents"]
    other.team.models.add_proposals(np.array([0]), np.ones((1, 2), bool), np.zeros((1, 2), int))
    table, floors = other.team.table, other.team.floors
    handed = load_team(calibrated.folder, config, shield=other.team)
    np.testing.assert_equal(handed.team.state(), alone.team.state())
    for ours, theirs in zip(handed.team.floors, alone.team.floors, strict=True):
        assert np.array_equal(ours, theirs)
    assert evaluate_run(config, handed, episodes=5).episodes[0].bound == calibrated.after.episodes[0].bound
    assert other.team.table is table
    assert other.team.floors is floors
    counted = other.team.state()["opponents"]
    assert any(not np.array_equal(counted[name], bare[name]) for name in bare)


def test_a_run_without_a_shield_is_a_plain_team_and_its_certificate_has_no_bound(tmp_path):
    result = run(tmp_path / "run", final_policy_eval_episodes=5)
    assert isinstance(load_team(result.folder, load_config(result.folder)), TeamPolicy)
    assert result.certificate["bound_note"].startswith("no shield")
    assert "bound" not in result.certificate["horizons"][0]["subjects"]["team"]


def test_an_env_without_costs_has_no_certificate(tmp_path):
    result = run(tmp_path / "run", env="tests.probe_envs:Probe", native=False, final_policy_eval_episodes=2)
    assert result.certificate is None
    assert not (result.folder / "certificate.json").exists()


def test_side_by_side_each_env_of_a_film_has_a_shield_of_its_own(calibrated, tmp_path):
    config = load_config(calibrated.folder)
    policy = load_team(calibrated.folder, config)
    path = film_grid(config.factory(), policy, tmp_path / "two.mp4", rows=1, cols=2, seed=3)
    logs = load_from_file(path.parent, f"{path.stem}.json")["episodes"]
    assert len(logs) == 2
    assert all(set(log["bound"]) == {"car_0", "car_1"} for log in logs)


# --- what a run writes --------------------------------------------------------------------------------------------


def test_each_episode_and_each_update_tells_what_shield_and_constraint_did(tmp_path):
    result = run(
        tmp_path / "run",
        **{**SHIELD, "shield_patience": 2},
        constraint="lagrange",
        cost_limit=0.0,
        multiplier_lr=0.5,
    )
    episodes, updates = (rows(result, name) for name in ("episodes", "updates"))
    assert episodes
    for row in episodes:
        assert set(row["bound"]) == set(row["slack"]) == {"car_0", "car_1"}
        for agent in ("car_0", "car_1"):
            bound, slack = row["bound"][agent], row["slack"][agent]
            assert (bound is None) == (row["unverified"].get(agent, 0) > 0)
            assert bound is None or 0.05 <= bound <= 1
            assert 0 <= slack <= 0.05 + 1e-12
    assert sum(sum(row["overrides"].values()) for row in episodes) > 0
    assert len(updates) == 2
    for row in updates:
        assert row["shield"]["keys"] == 63
        assert row["shield"]["rows"] == 220
        rate = row["shield"]["false_block_rate"]
        assert rate is None or 0 <= rate <= 1
        assert set(row["constraint"]["multipliers"]) == {"car_0", "car_1"}
        assert all(np.isfinite(value) for group in row["groups"].values() for value in group.values())


def test_a_shielded_run_that_was_stopped_goes_on_with_its_models(calibrated, tmp_path):
    folder = shutil.copytree(calibrated.folder, tmp_path / "run")
    before = load_team(folder, load_config(folder)).team.world.state()["row_draws"].sum()
    result = resume(folder, timesteps=1024)
    after = load_team(folder, load_config(folder)).team.world.state()["row_draws"].sum()
    assert (before, after) == (512, 1024)
    assert result.certificate["bound_note"].startswith("the bound holds")


@pytest.mark.parametrize("action", ["override", "mask"])
def test_a_team_trained_with_either_shield_action_is_certified_with_its_bound(action, tmp_path):
    result = run(tmp_path / "run", **SHIELD, shield_action=action)
    for row in result.certificate["horizons"]:
        assert row["subjects"]["car_0"]["bound"] == pytest.approx(0.05)
        assert row["subjects"]["team"]["bound"] == pytest.approx(0.1)
    assert all(bool(log.overrides) <= (action == "override") for log in result.after.episodes)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("corridor", {}),
        ("gridmap_streets", {"shield_horizon": 10, "num_envs": 2, "rollouts": 16, "timesteps": 64}),
        pytest.param(
            "stag_hunt",
            {"shield_horizon": 5, "num_envs": 2, "rollouts": 16, "timesteps": 32},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_solvable_env_trains_with_a_shield(env, settings, tmp_path):
    result = run(
        tmp_path / "run", env=env, **{**SHIELD, "final_policy_eval_episodes": 1, "timesteps": 256, **settings}
    )
    assert rows(result, "updates")
    assert result.certificate["contradictions"] == []


# --- the whole ----------------------------------------------------------------------------------------------------


def exact_risk(result, max_risk):
    """Exact violation probabilities (A,) of a finished crossing team, and the bound that each log holds."""
    config = load_config(result.folder)
    shielded = load_team(result.folder, config)
    model, team = solve(crossing.parallel_env()), shielded.team
    frozen = team.shield.frozen(1)
    policies = [probabilities(shielded.policy, model, index) for index in range(2)]
    ids = team.world.key_ids(model.keys)
    shielded_risk = violation_probability(model, policies, 40, shields=frozen.shields, key_ids=ids)
    bounds = [model.initial @ shield.start(ids)[1] for shield in frozen.shields]
    assert max(bounds) <= max_risk + 1e-12
    for log in result.after.episodes:
        assert all(
            log.bound[agent] == pytest.approx(bound) for agent, bound in zip(team.agents, bounds, strict=True)
        )
    return shielded_risk.agents[-1], np.array(bounds), violation_probability(model, policies, 40).agents[-1]


def probabilities(policy, model, index):
    """(K, n) what a trained team's agent proposes at each key of the crossing, by its own network."""
    import torch

    (group,) = policy.groups
    network, game = policy.networks[group.name], crossing.parallel_env().game
    obs = torch.from_numpy(game.observe(game.states(model.keys))).unsqueeze(0 if network.lanes == 1 else -1)
    with torch.inference_mode():
        params = network.policy(obs.reshape(1, -1, obs.shape[-1]))
        logits = torch.stack(
            [network.distribution.log_prob(params, torch.full(params.shape[:2], a)) for a in range(2)], -1
        )
    return logits.exp().reshape(len(model.keys), 2, 2)[:, index].double().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("calibrate", [0, 150])
def test_the_exact_risk_of_a_trained_shielded_team_is_below_the_bound_in_its_logs(calibrate, tmp_path):
    result = run(
        tmp_path / "run",
        **SHIELD,
        timesteps=8_000,
        rollouts=64,
        learning_epochs=4,
        final_policy_eval_episodes=60,
        shield_calibrate=calibrate,
    )
    risk, bounds, bare = exact_risk(result, 0.05)
    assert (risk <= bounds + 1e-12).all()
    assert bare.max() > 0
    episodes = rows(result, "episodes")
    for agent in ("car_0", "car_1"):
        violations = sum(row["first_violation"][agent] is not None for row in episodes)
        logged = sum(row["bound"][agent] for row in episodes)
        # While policies learn the bound is no claim, but it was kept: far from chance above the sum of the bounds.
        assert violations <= logged + 4 * np.sqrt(logged)
    assert result.certificate["contradictions"] == []


@pytest.mark.slow
@pytest.mark.parametrize("constraint", ["lagrange", "pid"])
@pytest.mark.parametrize("shield", ["none", "ledger"])
def test_multipliers_move_with_the_costs_with_and_without_a_shield(constraint, shield, tmp_path):
    result = run(
        tmp_path / "run",
        constraint=constraint,
        cost_limit=0.0,
        shield=shield,
        max_risk=0.3,
        timesteps=6000,
        final_policy_eval_episodes=5,
    )
    figures = [row["constraint"]["multipliers"] for row in rows(result, "updates")]
    first, last = (np.array(list(figures[at].values())) for at in (0, -1))
    assert (last >= 0).all()
    assert not np.array_equal(first, last)
    if shield == "none":
        assert (last > first).all()
