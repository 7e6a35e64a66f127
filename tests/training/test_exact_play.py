"""Exact violation probabilities of teams: closed forms, play, masks and shields."""

import numpy as np
import pytest

from marl_tools.core.bounds import clopper_pearson
from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.wrappers import AddCost, EpisodeRecorder
from marl_tools.envs import corridor, crossing
from marl_tools.envs.grid import EAST
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train
from marl_tools.experiment.team import load_team
from marl_tools.safety.exact import solve
from marl_tools.training.attach import attach_shield
from marl_tools.training.certificate import TEAM
from marl_tools.training.evaluate import evaluate
from marl_tools.training.exact_play import exact_curve, exact_violations
from marl_tools.training.policy import RandomPolicy
from marl_tools.vector.serial import env_groups

SMALL = "S0 S1 .\nL0E . .\nG  X  X"


class Fixed:
    """Everybody plays each action with the same probabilities everywhere."""

    def __init__(self, *law):
        self.law = np.array(law)

    def seed(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, observations, infos=None):
        return {agent: int(self.rng.choice(len(self.law), p=self.law)) for agent in observations}

    def probabilities(self, observations, infos=None):
        return dict.fromkeys(observations, self.law)


def misses(env, policy, factory, *, horizon, episodes=200):
    """The subjects whose exact probability is outside the interval, at confidence 0.999, of played episodes."""
    exact = exact_violations(env, policy, horizon=horizon)
    logs = evaluate(factory, policy, episodes=episodes, seed=0).episodes
    counts = {
        agent: sum((log.first_violation[agent] or horizon + 1) <= horizon for log in logs)
        for agent in env.possible_agents
    }
    counts[TEAM] = sum(
        any(step is not None and step <= horizon for step in log.first_violation.values()) for log in logs
    )
    outside = []
    for name, count in counts.items():
        low, high = clopper_pearson(count, episodes, 0.001)
        if not low <= exact[name] <= high:
            outside.append((name, exact[name], count))
    return outside


def test_walking_straight_along_the_ledge_is_the_closed_form():
    env = corridor.parallel_env(slip=0.05, length=8)
    always = Fixed(*(float(action == EAST) for action in range(env.game.actions[0])))
    closed = corridor.violation_probability(slip=0.05, length=8, steps=50)
    exact = exact_violations(env, always, horizon=50)
    assert exact[env.possible_agents[0]] == pytest.approx(closed, abs=1e-12)
    assert exact[TEAM] == pytest.approx(1 - (1 - closed) ** 2, abs=1e-12)


@pytest.mark.parametrize("horizon", [8, 40])
def test_random_play_of_the_crossing_agrees_with_play(horizon):
    factory = EnvFactory(make_env=crossing.parallel_env)
    env = factory()
    assert misses(env, RandomPolicy(env_groups(env)), factory, horizon=horizon) == []


@pytest.mark.parametrize(
    "settings",
    [{"share": "group"}, {"share": "none", "shield": "ledger", "max_risk": 0.05}],
    ids=["bare", "shielded"],
)
def test_a_trained_team_on_a_map_of_lle_agrees_with_play_masks_heeded(settings, tmp_path):
    pytest.importorskip("lle")
    config = RunConfig.from_flat(
        {
            "env": "marl_tools.envs.adapters.lle:parallel_env",
            "env_kwargs": {"map_text": SMALL, "max_cycles": 6},
            "timesteps": 256,
            "num_envs": 4,
            "rollouts": 32,
            "out": tmp_path / "run",
            "final_policy_eval_episodes": 0,
            **settings,
        }
    )
    train(config)
    env, policy = config.factory()(), load_team(tmp_path / "run", config)
    assert misses(env, policy, config.factory(judged=True), horizon=6, episodes=150) == []
    if "shield" in settings:
        assert max(exact_violations(env, policy, horizon=6)[agent] for agent in env.possible_agents) <= 0.05


def test_a_shielded_team_keeps_its_bound_exactly_and_loses_without_it():
    hasty = Fixed(0.2, 0.8)
    factory = EnvFactory(make_env=crossing.parallel_env)
    env = factory()
    shielded = attach_shield(
        crossing.parallel_env, hasty, max_risk=0.1, learn_episodes=0, model="exact", horizon=12
    )
    model = solve(env)
    curve = exact_curve(env, shielded, horizon=12, model=model)
    assert curve.agents[-1].max() <= 0.1 + 1e-9
    assert exact_violations(env, hasty, horizon=12, model=model)[TEAM] > curve.team[-1] + 0.05
    short = exact_violations(env, shielded, horizon=10, model=model)
    assert short[TEAM] == curve.team[10]
    with pytest.raises(ConfigError, match="beyond the shield's 12 steps"):
        exact_violations(env, shielded, horizon=13, model=model)


def test_what_cannot_be_followed_exactly_is_refused():
    env = crossing.parallel_env()
    with pytest.raises(ConfigError, match="probabilities"):
        exact_violations(env, lambda observations: {}, horizon=5)
    changed = EpisodeRecorder(AddCost(env, lambda *_: 0.0))
    with pytest.raises(ConfigError, match="observe_keys"):
        exact_violations(changed, Fixed(0.5, 0.5), horizon=5)
