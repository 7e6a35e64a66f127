"""Teams too large to be looked at as a whole: models, shield, audit and certificate of their factors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pettingzoo.utils import BaseParallelWrapper

import marl_tools as mt
from marl_tools.core.errors import ConfigError
from marl_tools.core.transitions import Factors
from marl_tools.core.wrappers import EpisodeRecorder
from marl_tools.envs import drones
from marl_tools.training.coverage import coverage
from marl_tools.training.shielded_policy import calibrate, explain


def fleet(**more):
    return drones.parallel_env(**{"size": 3, "max_cycles": 8, **more})


class Dice:
    def __init__(self):
        self.seed(0)

    def seed(self, seed):
        self._rng = np.random.default_rng(seed)

    def __call__(self, observations, infos=None):
        return {agent: int(self._rng.integers(5)) for agent in observations}


@pytest.fixture(scope="module")
def learned():
    """Four drones, 125 joint actions of the others, behind a shield that has learned a little."""
    return mt.attach_shield(fleet, Dice(), max_risk=0.1, learn_episodes=12, patience=4)


def test_a_team_of_factors_is_certified_below_its_bounds(learned):
    certificate = mt.certify_policy(fleet, learned, episodes=15, horizons=(8,))
    subjects = certificate["horizons"][0]["subjects"]
    assert certificate["contradictions"] == []
    # Staying is harmless, so that the bound is all of max_risk for each agent, and their sum for the team.
    assert all(abs(subjects[agent]["bound"] - 0.1) < 1e-9 for agent in learned.team.agents)
    assert abs(subjects["team"]["bound"] - 0.4) < 1e-9
    assert all(one["violations"] <= 3 for one in subjects.values())


def test_every_pair_counts_every_step_in_which_one_of_it_is_in_the_air(learned):
    team = learned.team
    for part, group in zip(team.models.parts, team.models.groups.members, strict=True):
        state, size = part.world.state(), part.world.actions
        assert part.world.closed
        assert state["row_draws"].sum() == state["edge_count"].sum() > 12
        assert size == (5, 5)
        assert len(group) == 2


def test_what_was_saved_goes_on_with_the_same_tables_and_decisions(learned):
    team = learned.team
    state = team.state()
    other = mt.attach_shield(fleet, Dice(), max_risk=0.1, learn_episodes=1, patience=4).team
    assert other.state()["world_0"]["row_draws"].sum() != state["world_0"]["row_draws"].sum()
    other.load(state)
    np.testing.assert_equal(other.state(), state)
    for ours, theirs in zip(team.tables, other.tables, strict=True):
        assert np.array_equal(ours.lo, theirs.lo)
    for ours, theirs in zip(team.shield.rule.store.parts, other.shield.rule.store.parts, strict=True):
        assert np.array_equal(ours.q[:, :, : ours.num_keys + 1], theirs.q[:, :, : theirs.num_keys + 1])
    keys = np.arange(5)
    looks = [one.shield.shields[1].look(keys, np.full(5, 6), np.zeros(5, np.int32)) for one in (team, other)]
    assert np.array_equal(looks[0].price, looks[1].price)


def test_a_team_restored_from_another_shares_nothing_that_changes(learned):
    before = learned.team.state()
    fresh = mt.attach_shield(fleet, Dice(), max_risk=0.1, learn_episodes=1, patience=4).team.state()
    other = learned.team.restored(fresh)
    np.testing.assert_equal(other.state(), fresh)
    np.testing.assert_equal(learned.team.state(), before)


def test_a_team_of_other_factors_is_refused(learned):
    three = mt.attach_shield(lambda: fleet(n_agents=3), Dice(), max_risk=0.1, learn_episodes=0).team
    with pytest.raises(ConfigError, match="not those of the 6 factors of drones_v0"):
        learned.team.load(three.state())


def test_an_explanation_adds_up_the_factors(learned):
    env = EpisodeRecorder(fleet())
    rows = explain(env, learned, seed=3, step=2)
    assert {row["agent"] for row in rows} == set(learned.team.agents)
    for row in rows:
        assert row["V"] == 0.0
        assert row["Q executed"] <= 0.1 + 1e-9
        assert row["rule"].startswith("ledger")


def test_what_needs_a_model_of_the_whole_or_floors_says_so(learned):
    with pytest.raises(ConfigError, match="looked at in factors"):
        coverage(learned.team)
    with pytest.raises(ConfigError, match="no floors to count"):
        calibrate(EpisodeRecorder(fleet()), Dice(), learned.team, episodes=2, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"opponent_mode": "empirical"}, "opponent_mode='empirical'.*factors"),
        ({"reward_mode": "bayesian_potential"}, "bayesian_potential.*factors"),
    ],
)
def test_settings_that_factors_cannot_serve_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        mt.attach_shield(fleet, Dice(), max_risk=0.1, learn_episodes=0, **settings)


class Undeclared(drones.DronesEnv):
    def factors(self):
        return None


def four(kind, **more):
    env = fleet(**more)
    return kind(env.game, env._pairs, None)


def test_more_than_25_joint_actions_without_factors_are_refused_with_the_remedy():
    with pytest.raises(
        ConfigError, match=r"125 joint actions, more than 25: let the env declare .* factors\(\)"
    ):
        mt.attach_shield(lambda: four(Undeclared), Dice(), max_risk=0.1, learn_episodes=0)


class Opaque(BaseParallelWrapper):
    """Somebody's wrapper, of which nobody knows what it does to the law."""

    def state_key(self):
        return self.env.state_key()


class Declaring(Opaque):
    """Somebody's env that cannot be enumerated as a whole, but knows the laws of its factors."""

    def factors(self):
        return self.env.factors()


def test_laws_of_factors_are_used_where_the_env_itself_declares_them_and_nowhere_else():
    def declared(kind, **more):
        team = mt.attach_shield(lambda: kind(fleet()), Dice(), max_risk=0.1, learn_episodes=0, **more).team
        return [part.world.closed for part in team.models.parts]

    assert all(declared(Declaring, horizon=8, model="exact"))
    assert not any(declared(Opaque, horizon=8))
    assert not any(declared(Declaring, horizon=8, support="none"))
    with pytest.raises(ConfigError, match="needs a law of each factor"):
        declared(Opaque, horizon=8, model="exact")


class Blind(drones.DronesEnv):
    """Declares that nobody ever comes too close."""

    def factors(self):
        declared = super().factors()
        parts = [replace(part, violated=lambda *_: (False, False), law=None) for part in declared.parts]
        return replace(declared, parts=tuple(parts))


class Bad(drones.DronesEnv):
    wrong: Factors

    def factors(self):
        return self.wrong


def test_factors_that_do_not_tell_of_a_violation_are_refused_at_the_first():
    # A fallback that plays on makes somebody come too close soon.
    with pytest.raises(ConfigError, match=r"no violation of agent 'drone_.' where its cost says one"):
        mt.attach_shield(lambda: four(Blind), Dice(), max_risk=0.1, learn_episodes=40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: replace(f, backup={}), "None as the backup action of 'drone_0'"),
        (lambda f: replace(f, backup=dict.fromkeys(f.backup, 5)), "5 as the backup action"),
        (lambda f: replace(f, parts=()), "declares no factor"),
        (lambda f: replace(f, parts=(replace(f.parts[0], agents=("x", "drone_1")),)), "has the agents"),
        (lambda f: replace(f, parts=(replace(f.parts[0], agents=("drone_1",) * 2),)), "each once"),
    ],
)
def test_a_declaration_that_does_not_fit_the_team_is_refused(change, message):
    def make():
        env = four(Bad)
        env.wrong = change(drones.DronesEnv.factors(env))
        return env

    with pytest.raises(ConfigError, match=message):
        mt.attach_shield(make, Dice(), max_risk=0.1, learn_episodes=0)


def east(observations):
    return dict.fromkeys(observations, 2)


def test_a_key_that_is_not_markov_in_its_factor_voids_the_bound():
    class Windy(drones.DronesEnv):
        """From the 3rd episode on a gust holds everybody, which no key tells."""

        episodes = 0

        def reset(self, seed=None, options=None):
            self.episodes += 1
            result = super().reset(seed, options)
            if self.episodes > 2:
                self._uniforms[...] = 0.999
            return result

    # With two cells in between nobody can come too close in the first step.
    shielded = mt.attach_shield(lambda: fleet(size=4), east, max_risk=0.1, learn_episodes=0, model="exact")
    certificate = mt.certify_policy(lambda: four(Windy, size=4), shielded, episodes=10, horizons=(8,))
    assert "in the factor of drone_" in certificate["contradictions"][0]
    assert "bound" not in certificate["horizons"][0]["subjects"]["team"]
