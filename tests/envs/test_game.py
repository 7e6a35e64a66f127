"""The joint law of every game: exact sums, the frequencies of real play, and states that lead nowhere unknown."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import chisquare

from marl_tools.core.errors import ConfigError
from marl_tools.envs import gridmaps
from marl_tools.envs.game import Dice, order_die
from tests.envs.games import MAKERS, SMALL, distinct, enumerated

# A joint action for each step, chosen so that cars meet, robots contend and hunters come near.
SCRIPTS = {
    "crossing": [(1, 1)] * 5,
    "crossing of three": [(1, 1, 1)] * 4,
    "corridor": [(1, 2), (2, 2), (2, 2), (3, 2)],
    "robots": [(2, 0), (2, 1), (2, 4)],
    "slipping robots": [(2, 1), (2, 4), (2, 4)],
    "stag hunt": [(3, 1), (2, 4), (3, 1), (2, 0)],
}


@given(st.lists(st.integers(1, 5), max_size=3), st.integers(0, 2**32))
def test_a_throw_of_the_dice_is_one_of_their_outcomes_and_these_sum_to_one(sizes, seed):
    rng = np.random.default_rng(seed)
    dice = Dice([weights / weights.sum() for weights in map(rng.random, sizes)])
    rolls, probability = dice.outcomes
    assert probability.sum() == pytest.approx(1.0, abs=1e-12)
    thrown = dice.roll(rng.random((50, len(sizes))))
    assert {tuple(roll) for roll in thrown.tolist()} <= {tuple(roll) for roll in rolls.tolist()}


def test_sides_that_never_lie_on_top_are_no_outcomes():
    rolls, probability = Dice([(1.0, 0.0), (0.25, 0.0, 0.75)]).outcomes
    assert (rolls.tolist(), probability.tolist()) == ([[0, 0], [0, 2]], [0.25, 0.75])


def test_the_order_die_gives_every_order_the_same_chance():
    sides, priorities = order_die(3)
    assert len({tuple(order) for order in priorities.tolist()}) == len(sides) == 6
    assert all(sorted(order) == [0, 1, 2] for order in priorities.tolist())


@pytest.mark.parametrize("name", SMALL)
def test_every_law_sums_to_one_and_leads_to_reachable_states_only(name):
    game, reachable, states, _, laws = enumerated(name)
    assert np.bincount(laws.row, laws.probability) == pytest.approx(np.ones(len(states)), abs=1e-12)
    assert (laws.probability > 0).all()
    assert np.isin(game.ids(laws.state), game.ids(reachable)).all()


@pytest.mark.parametrize("name", SMALL)
def test_who_has_ended_stays_ended_and_violates_no_more(name):
    game, _, states, _, laws = enumerated(name)
    before = game.ended(states)[laws.row]
    assert laws.ended[before].all()
    assert not laws.violated[before].any()
    assert laws.violated.any(), "nothing ever goes wrong in this game"


@pytest.mark.parametrize("name", SMALL)
def test_the_outcomes_of_a_row_are_different_ones(name):
    game, _, _, _, laws = enumerated(name)
    outcomes = distinct(laws.row, game.ids(laws.state), laws.violated)
    assert len(np.unique(outcomes)) == len(outcomes)


@pytest.mark.parametrize("name", SMALL)
def test_laws_in_one_go_are_the_laws_one_by_one(name):
    game, _, states, choices, laws = enumerated(name)
    env = MAKERS[name]()
    for row in np.random.default_rng(0).integers(len(states), size=20):
        of_row = laws.row == row
        (key,) = game.keys(states[row : row + 1])
        law = env.joint_law(key, choices[row].tolist())
        assert [o.probability for o in law] == laws.probability[of_row].tolist()
        assert [o.key for o in law] == game.keys(laws.state[of_row])
        assert [o.violated for o in law] == list(map(tuple, laws.violated[of_row].tolist()))
        assert [o.ended for o in law] == list(map(tuple, laws.ended[of_row].tolist()))
        assert env.ended_agents(key) == tuple(choices[row] == game.actions)


def test_a_large_law_is_enumerated_in_pieces_without_a_difference(monkeypatch):
    game, _, states, choices, laws = enumerated("slipping robots")
    monkeypatch.setattr("marl_tools.envs.game._CHUNK", 100)
    for whole, pieced in zip(laws, game.laws(states, choices), strict=True):
        assert (whole == pieced).all()


@pytest.mark.parametrize("name", SMALL)
def test_real_play_has_the_frequencies_of_the_law(name):
    env = MAKERS[name]()
    tally = defaultdict(Counter)
    for seed in range(600):
        env.reset(seed=seed)
        for choice in SCRIPTS[name]:
            if not env.agents:
                break
            live = [agent in env.agents for agent in env.possible_agents]
            key = env.state_key()
            infos = env.step(dict(zip(env.possible_agents, choice, strict=True)))[4]
            joint = [
                c if alive else env.game.actions[i]
                for i, (c, alive) in enumerate(zip(choice, live, strict=True))
            ]
            violated = tuple(infos.get(agent, {}).get("cost", 0.0) > 0 for agent in env.possible_agents)
            tally[key, tuple(joint)][env.state_key(), violated] += 1
    tested = 0
    for (key, joint), seen in tally.items():
        law = {(o.key, o.violated): o.probability for o in env.joint_law(key, joint)}
        assert seen.keys() <= law.keys(), "something happened that the law excludes"
        # The chi-square test wants at least 5 expected a cell: rarer outcomes join the last that has them.
        cells, n = [], seen.total()
        for outcome in sorted(law, key=law.__getitem__, reverse=True):
            if law[outcome] * n >= 5:
                cells.append([seen[outcome], law[outcome] * n])
            elif cells:
                cells[-1] = [cells[-1][0] + seen[outcome], cells[-1][1] + law[outcome] * n]
        if len(cells) > 1:
            assert chisquare(*zip(*cells, strict=True)).pvalue > 1e-4
            tested += 1
    assert tested >= (1 if name == "robots" else 3), "the script leads to too little chance"


@pytest.mark.parametrize("name", SMALL)
def test_real_starts_have_the_frequencies_of_the_initial_law(name):
    env = MAKERS[name]()
    law = {key: probability for probability, key in env.initial_law()}
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    seen = Counter()
    for seed in range(300):
        env.reset(seed=seed)
        seen[env.state_key()] += 1
    assert seen.keys() <= law.keys()
    if len(law) > 1:
        assert chisquare([seen[key] for key in law], [300 * p for p in law.values()]).pvalue > 1e-4


@pytest.mark.parametrize("name", SMALL)
def test_a_key_holds_the_state_and_its_number_does(name):
    game, states, *_ = enumerated(name)
    keys = game.keys(states)
    assert len(set(keys)) == len(set(game.ids(states))) == len(states)
    assert (game.states(keys) == states).all()
    assert (game.state_of_ids(game.ids(states)) == states).all()
    assert {type(key) for key in keys} == {bytes}


@pytest.mark.parametrize("name", SMALL)
def test_every_agent_can_tell_all_keys_apart_from_what_it_sees(name):
    game, states, *_ = enumerated(name)
    seen = game.observe(states)
    assert set(np.unique(seen)) <= {0.0, 1.0}
    for agent in range(len(game.agents)):
        assert len(np.unique(seen[:, agent], axis=0)) == len(states)


@pytest.mark.parametrize("name", SMALL)
def test_agents_with_one_policy_can_tell_who_they_are(name):
    game = MAKERS[name]().game
    start = game.observe(game.start_law()[1][:1])[0]
    assert len(np.unique(start[:, -len(game.agents) :], axis=0)) == len(game.agents)


@pytest.mark.parametrize(("key", "words"), [(b"\0" * 3, "have 4 bytes"), (b"\xff" * 4, "too large")])
def test_a_key_of_another_game_is_refused(key, words):
    with pytest.raises(ConfigError, match=words) as error:
        MAKERS["crossing"]().ended_agents(key)
    assert repr(key) in str(error.value)


@pytest.mark.parametrize("slip", [-0.1, 1.0, float("nan")])
@pytest.mark.parametrize("name", ["crossing", "corridor", "slipping robots"])
def test_a_slip_that_is_no_probability_below_one_is_refused(name, slip):
    make = gridmaps.parallel_env if name == "slipping robots" else MAKERS[name]
    with pytest.raises(ConfigError, match="slip="):
        make(slip=slip)
