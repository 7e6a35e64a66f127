"""Safety settings of a run: what they make, and every one that cannot work is refused by value, env and remedy."""

import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.safety import make_constraint, make_shield, warn_if_patience_is_short
from marl_tools.vector.serial import env_groups


def config(env="crossing", **settings):
    return RunConfig.from_flat({"env": env, "shield": "ledger", **settings})


def shield_of(run, num_envs=2):
    env = run.factory()()
    try:
        return make_shield(run.safety, env, env_groups(env), num_envs=num_envs, gamma=0.9)
    finally:
        env.close()


def test_all_settings_reach_the_shield():
    run = config(
        shield="step",
        max_risk=0.11,
        shield_horizon=20,
        shield_step_horizon=7,
        shield_patience=5,
        shield_action="mask",
        shield_over_budget="ledger",
        shield_reward_mode="bayesian_potential",
        shield_penalty=2.0,
        shield_risk_weight=3.0,
        shield_opponent_mode="worst_case",
        shield_credible_delta=0.02,
        shield_credible_schedule="ppr",
    )
    team = shield_of(run, num_envs=3)
    got = team.config
    assert (got.rule, got.max_risk, got.horizon, got.step_horizon) == ("step", 0.11, 20, 7)
    assert (got.patience, got.action, got.over_budget, got.reward_mode) == (
        5,
        "mask",
        "ledger",
        "bayesian_potential",
    )
    assert (got.penalty, got.risk_weight, got.opponent_mode) == (2.0, 3.0, "worst_case")
    assert (got.credible_delta, got.credible_schedule) == (0.02, "ppr")
    assert (team.shield.num_envs, team.gamma, team.env_name) == (3, 0.9, "crossing")


def test_the_horizon_is_the_cap_and_none_means_no_shield_and_no_constraint():
    assert shield_of(config()).config.horizon == 40
    assert shield_of(config(cap=9)).config.horizon == 9
    assert shield_of(config(shield="none")) is None
    assert make_constraint(config().safety, ("a",)) is None


@pytest.mark.parametrize(("support", "closed"), [("declared", True), ("none", False)])
def test_support_is_declared_where_the_env_can_be_enumerated_unless_told_otherwise(support, closed):
    assert shield_of(config(shield_support=support)).world.closed is closed
    assert not shield_of(config("tests.keyed_envs:Rink")).world.closed


def test_an_exact_model_knows_the_law_from_the_start():
    team = shield_of(config(shield_model="exact", shield_support="none"))
    assert (team.table.lo == team.table.hi).all()


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("crossing", {"max_risk": 0.0}, r"crossing: max_risk=0\.0: must be a number above 0 and below 1"),
        ("crossing", {"max_risk": 1.0}, r"crossing: max_risk=1\.0"),
        ("crossing", {"max_risk": -0.1, "shield": "none"}, r"crossing: max_risk=-0\.1"),
        (
            "crossing",
            {"shield_horizon": 41},
            r"horizon=41.*crossing, which end after 40 steps: set horizon=40",
        ),
        (
            "crossing",
            {"shield_horizon": 0},
            "crossing: shield_horizon=0: must be a whole number of at least 1",
        ),
        ("crossing", {"shield": "step", "shield_step_horizon": 0}, "crossing: .*step_horizon=0"),
        ("crossing", {"shield": "step", "shield_step_horizon": 50}, "step_horizon=50 is beyond horizon=40"),
        ("crossing", {"shield": "ledgers"}, "shield='ledgers'.*ledger"),
        ("crossing", {"shield_opponent_mode": "floor"}, "shield_opponent_mode='floor'.*monotone_floor"),
        ("crossing", {"shield_opponent_mode": "oracle"}, "crossing: .*'oracle'.*'monotone_floor'"),
        ("crossing", {"shield_patience": -1}, "crossing: patience=-1"),
        ("crossing", {"shield_calibrate": -1}, "crossing: shield_calibrate=-1"),
        ("crossing", {"shield_calibrate": 5, "shield_action": "mask"}, "shield_calibrate=5.*override"),
        (
            "crossing",
            {"shield_action": "mask", "shield_reward_mode": "penalty"},
            "crossing: .*penalty.*override",
        ),
        ("crossing", {"shield_credible_delta": 0.0}, r"crossing: credible_delta=0\.0"),
        ("crossing", {"wm_version": "v1"}, "wm_version='v1'"),
        ("simple_spread", {}, r"simple_spread has no state_key\(\).*Add the method"),
        ("tests.keyed_envs:Rink", {"shield_model": "exact"}, "rink_v0.*'learned'"),
        ("tests.keyed_envs:Endless", {}, "rink_v0 has no episode cap.*--cap N"),
    ],
)
def test_what_cannot_work_is_refused_by_value_env_and_remedy(env, settings, message):
    with pytest.raises(ConfigError, match=message):
        shield_of(config(env, **settings))


def test_patience_that_certifies_nothing_is_warned_of_once_with_the_visits_it_takes(monkeypatch):
    lines = []
    monkeypatch.setattr("marl_tools.experiment.safety.log", lambda text, **_: lines.append(text))
    run = config(shield_support="none")
    team = shield_of(run)
    warn_if_patience_is_short(run.safety, team)
    needed = team.config.visits_needed(max(1, len(team.world.keys)))
    assert len(lines) == 1
    assert str(needed) in lines[0]
    assert "patience 64" in lines[0]
    assert "Raise --shield-patience, train longer, or declare" in lines[0]
    warn_if_patience_is_short(config(shield_patience=needed).safety, team)
    warn_if_patience_is_short(config(shield_model="exact").safety, team)
    assert len(lines) == 1


@pytest.mark.parametrize("env", ["crossing", "corridor"])
def test_patience_is_no_matter_where_the_declared_outcomes_alone_hold_the_risk(env, monkeypatch):
    lines = []
    monkeypatch.setattr("marl_tools.experiment.safety.log", lambda text, **_: lines.append(text))
    run = config(env)
    team = shield_of(run)
    assert run.safety.shield_patience < team.config.visits_needed(len(team.world.keys))
    warn_if_patience_is_short(run.safety, team)
    assert not lines


def test_a_team_beyond_25_joint_actions_of_the_others_is_shielded_by_its_factors():
    team = shield_of(config("drones", env_kwargs={"size": 3, "max_cycles": 6}))
    assert len(team.models.parts) == 6
    assert team.config.horizon == 6
    assert all(part.world.closed for part in team.models.parts)
