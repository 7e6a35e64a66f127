"""MASA's stag hunt as a parallel env: the contract, its ends, and its law against MASA's own code."""

import pickle
import sys
from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from marl_tools.core.errors import ConfigError, EnvError, MissingExtraError
from marl_tools.core.wrappers import infer_episode_cap
from marl_tools.envs.adapters.masa import parallel_env
from tests.envs_for_tests import check_api

pytest.importorskip("masa")

LEFT, RIGHT, UP, DOWN, STAY = range(5)
AGENTS = ("player_0", "player_1")


class Fork(Exception):
    """A draw whose result is not scripted yet; ``weights`` are the probabilities of its results."""

    def __init__(self, weights):
        self.weights = weights


class Scripted:
    """Stands in for a generator: its draws have scripted results, and the first one beyond the script raises `Fork`."""

    def __init__(self, script, missing):
        self.script, self.missing = list(script), missing

    def _next(self, weights):
        if not self.script:
            raise Fork(weights)
        return self.script.pop(0)

    def random(self):
        scripted = self

        class Uniform:
            def __lt__(self, limit):
                return scripted._next([1 - limit, limit]) == 1

            def __ge__(self, limit):
                return not self < limit

        return Uniform()

    def shuffle(self, cells):
        """Only those at the end, which are taken, matter."""
        ends = list(permutations(cells, min(self.missing(), len(cells))))
        end = ends[self._next([1 / len(ends)] * len(ends))]
        cells[:] = [cell for cell in cells if cell not in end] + list(end)


def set_to(hunt, game, row):
    places = [tuple(divmod(cell, game.shape[1])) for cell in row]
    hunt.agents = list(hunt.possible_agents)
    hunt.num_moves = 0
    hunt.agent_positions = dict(zip(hunt.agents, places, strict=False))
    for part, things in ((game.plants, hunt.plants), (game.stags, hunt.stags)):
        things.clear()
        things.update(place for place, cell in zip(places[part], row[part], strict=True) if cell < game.cells)


def masas_own_law(env, row, joint):
    """Every outcome of MASA's own step, by running it with each result of each of its draws."""
    hunt, game, outcomes = env._hunt, env.game, {}
    frontier = [((), 1.0)]
    while frontier:
        script, weight = frontier.pop()
        set_to(hunt, game, row)
        hunt._rng = Scripted(
            script,
            lambda: hunt.num_plants_target + hunt.num_stags_target - len(hunt.plants) - len(hunt.stags),
        )
        try:
            _, _, terminations, _, infos = hunt.step(dict(zip(AGENTS, joint, strict=True)))
        except Fork as fork:
            frontier += [((*script, i), weight * p) for i, p in enumerate(fork.weights) if p > 0]
            continue
        env._look()
        led = (
            env.state_key(),
            tuple(infos[agent]["mauled"] for agent in AGENTS),
            tuple(terminations[agent] for agent in AGENTS),
        )
        outcomes[led] = outcomes.get(led, 0.0) + weight
    return outcomes


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"num_plants": 2, "num_stags": 2, "stag_move_prob": 0.6},
        {"rows": 2, "columns": 2, "num_plants": 2},
    ],
)
def test_the_law_is_what_masas_own_code_does_with_every_result_of_its_draws(kwargs):
    env, rng = parallel_env(**kwargs), np.random.default_rng(0)
    probability, states = env.game.start_law()
    # Later states too: after a harvest or a hunt in a full grid things may be missing.
    picks = [*states[rng.choice(len(states), 12, p=probability)].tolist()]
    for row in picks[:6]:
        key = env.game.keys(np.array([row]))[0]
        after = [o.key for o in env.joint_law(key, tuple(rng.integers(5, size=2)))]
        picks.append(env.game.states([after[-1]])[0].tolist())
    checked = 0
    for row in picks:
        key = env.game.keys(np.array([row]))[0]
        if any(env.ended_agents(key)):
            continue
        joint = tuple(rng.integers(5, size=2).tolist())
        law = {(o.key, o.violated, o.ended): o.probability for o in env.joint_law(key, joint)}
        assert law == pytest.approx(masas_own_law(env, row, joint), abs=1e-12)
        checked += 1
    assert checked > 8


def test_the_start_and_a_step_have_the_frequencies_of_the_law():
    env, games = parallel_env(rows=2, columns=2), 1500
    starts: dict[bytes, int] = {}
    after: dict[bytes, int] = {}
    still = (STAY, STAY)
    start = next(key for _, key in env.initial_law() if len(env.joint_law(key, still)) > 1)
    row = env.game.states([start])[0].tolist()
    for seed in range(games):
        env.reset(seed=seed)
        starts[env.state_key()] = starts.get(env.state_key(), 0) + 1
        set_to(env._hunt, env.game, row)
        env._look()
        env.step(dict(zip(AGENTS, still, strict=True)))
        after[env.state_key()] = after.get(env.state_key(), 0) + 1
    for counts, law in (
        (starts, {key: p for p, key in env.initial_law()}),
        (after, {o.key: o.probability for o in env.joint_law(start, still)}),
    ):
        assert set(counts) <= set(law)
        expected = np.array([law[key] * games for key in law])
        assert stats.chisquare([counts.get(key, 0) for key in law], expected).pvalue > 1e-4


def test_rows_of_the_table_are_laws_and_keys_are_told_in_arrays():
    env = parallel_env(rows=2, columns=3)
    table = env.law_table()
    assert table.initial.sum() == pytest.approx(1)
    assert table.table.lo.sum(1) == pytest.approx(np.ones(len(table.table.lo)))
    assert (table.initial > 0).sum() == env.game.num_starts
    assert table.ended.any()
    live = int(np.flatnonzero(~table.ended.any(1))[0])
    assert env.ended_agents(table.keys[live]) == (False, False)


@pytest.mark.parametrize("kwargs", [{}, {"rows": 5, "columns": 5, "num_plants": 2}])
def test_it_keeps_the_contract_of_parallel_envs(kwargs):
    env = parallel_env(**kwargs)
    assert infer_episode_cap(env) == 50
    check_api(env, cycles=150)


def walk_to_the_stag(env):
    """Reset and play one step in which the first hunter alone enters the stag's cell."""
    hunt, game = env._hunt, env.game
    env.reset(seed=0)
    set_to(hunt, game, [0, 8, 5, 1])
    return env.step({"player_0": RIGHT, "player_1": STAY})


@pytest.mark.parametrize("max_cycles", [1, 50])
def test_a_mauling_terminates_everybody_also_in_the_last_step(max_cycles):
    env = parallel_env(max_cycles=max_cycles)
    _, rewards, terminations, truncations, infos = walk_to_the_stag(env)
    assert [infos[agent]["cost"] for agent in AGENTS] == [1.0, 0.0]
    assert rewards["player_0"] == -2.0
    assert (set(terminations.values()), set(truncations.values())) == ({True}, {False})
    assert env.agents == []


def test_a_cap_truncates_and_terminates_nobody():
    env = parallel_env(max_cycles=3)
    env.reset(seed=0)
    for _ in range(3):
        _, _, terminations, truncations, _ = env.step(dict.fromkeys(AGENTS, STAY))
    assert (set(terminations.values()), set(truncations.values())) == ({False}, {True})
    assert env.agents == []


def test_hunters_who_share_a_network_see_who_they_are():
    env = parallel_env()
    observations, _ = env.reset(seed=3)
    assert not np.array_equal(observations["player_0"], observations["player_1"])
    view = env.observe_keys([env.state_key()])
    for agent in AGENTS:
        assert np.array_equal(view.observations[agent][0], observations[agent])


def episode(env, seed, script):
    env.reset(seed=seed)
    keys = [env.state_key()]
    for joint in script:
        if env.agents:
            env.step(dict(zip(AGENTS, joint, strict=True)))
            keys.append(env.state_key())
    return keys


def test_an_episode_follows_from_its_seed_on_a_fresh_and_on_a_used_env():
    script = list(product((STAY, LEFT), (STAY, UP))) * 8
    used = parallel_env()
    other = episode(used, 1, script)
    first = episode(used, 0, script)
    assert first == episode(parallel_env(), 0, script)
    assert first != other


def test_a_pickled_env_goes_on_where_it_was():
    env = parallel_env(render_mode="rgb_array")
    env.reset(seed=0)
    twin = pickle.loads(pickle.dumps(env))
    for _ in range(5):
        env.step(dict.fromkeys(AGENTS, STAY))
        twin.step(dict.fromkeys(AGENTS, STAY))
    assert env.state_key() == twin.state_key()
    assert np.array_equal(env.render(), twin.render())


def test_pictures_have_even_sides_and_ring_the_overridden():
    env = parallel_env(render_mode="rgb_array")
    env.reset(seed=0)
    plain = env.render()
    env.mark_overrides(["player_1"])
    assert plain.shape == (216, 216, 3)
    assert (env.render() != plain).any()


def test_a_missing_action_is_an_error_and_not_a_wait():
    env = parallel_env()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="'player_1'"):
        env.step({"player_0": STAY})


@pytest.mark.parametrize(
    ("kwargs", "remedy"),
    [
        ({"num_plants": 9}, "free space"),
        ({"stag_move_prob": 2}, "stag_move_prob"),
        ({"stag_speed": 2}, "stag_speed"),
        ({"render_mode": "human"}, "rgb_array"),
    ],
)
def test_what_cannot_work_is_refused(kwargs, remedy):
    with pytest.raises(ConfigError, match=remedy):
        parallel_env(**kwargs)


def test_a_grid_too_large_is_refused_before_it_is_enumerated():
    with pytest.raises(ConfigError, match="--shield-support none"):
        parallel_env(rows=5, columns=5, num_plants=2).law_table()


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "masa", None)
    for name in [name for name in sys.modules if name.startswith("masa.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match="pip install --no-deps masa-safe-rl"):
        parallel_env()
