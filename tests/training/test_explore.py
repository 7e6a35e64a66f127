"""Schedules that reach their ends, and noise that fits each action space, repeats by seed and is off in evaluation."""

import itertools
import json
import math

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import given, settings, strategies as st
from scipy import stats

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory
from marl_tools.core.spaces import AgentGroup, AgentSpaces
from marl_tools.training.evaluate import evaluate, play_episode
from marl_tools.training.explore import Explorer, ExploringPolicy, Schedule
from tests.probe_envs import Kinds, vector

OBS = gs.Box(0, 1, (2,), np.float32)
N = 20_000


def explorer(space, seed=0):
    return Explorer(AgentSpaces(OBS, space), seed=seed)


# --- schedules ----------------------------------------------------------------------------------------------------

numbers = st.floats(-1e6, 1e6)


@given(
    kind=st.sampled_from(["linear", "cosine", "exponential"]),
    start=numbers,
    end=numbers,
    steps=st.integers(1, 10**9),
    delay=st.integers(0, 10**6),
    at=st.lists(st.integers(-(10**7), 10**10), min_size=2, max_size=5),
)
def test_a_schedule_goes_one_way_from_its_start_to_its_end_and_stays_there(
    kind, start, end, steps, delay, at
):
    schedule = Schedule(kind, start, end, steps=steps, delay=delay)
    assert schedule(0) == schedule(delay) == schedule(-5) == start
    assert schedule(delay + steps) == schedule(10**12) == end
    slack = 1e-9 * max(abs(start), abs(end))
    values = [schedule(step) for step in sorted(at)]
    assert all(min(start, end) - slack <= value <= max(start, end) + slack for value in values)
    direction = 1 if end >= start else -1
    assert all(direction * (later - earlier) >= -slack for earlier, later in itertools.pairwise(values))


def test_a_constant_schedule_never_changes_and_schedules_are_values():
    assert {Schedule("constant", 0.3)(step) for step in (-1, 0, 10**9)} == {0.3}
    assert Schedule("linear", 1.0, 0.0, steps=5) == Schedule("linear", 1.0, 0.0, steps=5)
    assert len({Schedule("constant", 0.3), Schedule("constant", 0.3)}) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "exponentail", "end": 0.0}, "'exponentail'.* mean 'exponential'"),
        ({"kind": "linear"}, "end=None: .*'linear'"),
        ({"kind": "constant", "end": 0.0}, "end=0.0: a constant schedule has none"),
        ({"kind": "linear", "end": math.nan}, "end=nan: give finite"),
        ({"kind": "linear", "end": 0.0, "start": math.inf}, "start=inf"),
        ({"kind": "cosine", "end": 0.0, "steps": 0}, "steps=0"),
        ({"kind": "cosine", "end": 0.0, "delay": -1}, "delay=-1"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_with_the_value(settings, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(**{"start": 1.0, **settings})


# --- noise --------------------------------------------------------------------------------------------------------


def test_a_choice_is_replaced_by_a_uniform_one_as_often_as_epsilon_says():
    actions = np.full(N, 2)
    noisy = explorer(gs.Discrete(5, start=3))(actions, 0.4)
    expected = N * np.array([0.08, 0.08, 0.68, 0.08, 0.08])
    assert stats.chisquare(np.bincount(noisy, minlength=5), expected).pvalue > 1e-3
    assert noisy.dtype == actions.dtype
    assert (actions == 2).all()


def test_several_choices_and_bits_are_replaced_each_by_itself():
    noisy = explorer(gs.MultiDiscrete([2, 3]))(np.tile([1, 2], (N, 1)), 0.3)
    left = np.array([0.15, 0.85])
    right = np.array([0.1, 0.1, 0.8])
    counts = np.bincount(noisy[:, 0] * 3 + noisy[:, 1], minlength=6)
    assert stats.chisquare(counts, N * np.outer(left, right).reshape(-1)).pvalue > 1e-3
    bits = explorer(gs.MultiBinary(2))(np.tile([0, 1], (N, 1)), 0.5)
    counts = np.bincount(bits[:, 0] * 2 + bits[:, 1], minlength=4)
    ones, zeros = np.array([0.75, 0.25]), np.array([0.25, 0.75])
    assert stats.chisquare(counts, N * np.outer(ones, zeros).reshape(-1)).pvalue > 1e-3


@pytest.mark.parametrize("space", [gs.Discrete(4), gs.MultiDiscrete([2, 3])])
@settings(max_examples=20)
@given(data=st.data())
def test_only_allowed_choices_are_explored_and_all_of_them_are(space, data):
    sizes = [int(space.n)] if isinstance(space, gs.Discrete) else space.nvec.tolist()
    parts = [data.draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any)) for size in sizes]
    mask = np.concatenate(parts)
    chosen = [part.index(True) for part in parts]
    shape = (300,) if isinstance(space, gs.Discrete) else (300, len(sizes))
    actions = np.broadcast_to(chosen if len(shape) == 2 else chosen[0], shape)
    noisy = explorer(space)(actions, 1.0, np.broadcast_to(mask, (300, len(mask)))).reshape(300, -1)
    for column, part in zip(noisy.T, parts, strict=True):
        assert set(column.tolist()) == {index for index, allowed in enumerate(part) if allowed}


def test_numbers_get_gaussian_noise_in_units_of_the_bounds_and_keep_within_them():
    low = np.array([-10.0, -np.inf, 0.0], np.float32)
    space = gs.Box(low, np.array([30.0, np.inf, np.inf], np.float32))
    actions = np.tile(np.array([0.5, 7.0, 0.0], np.float32), (N, 1))
    noisy = explorer(space)(actions, 0.2)
    assert noisy.dtype == np.float32
    assert noisy[:, 0].max() == 1.0, "clipped at the bound on the policy's side"
    inside = noisy[noisy[:, 0] < 1.0, 0]
    law = stats.truncnorm(-np.inf, 2.5, 0.5, 0.2)
    assert stats.kstest(inside, law.cdf).pvalue > 1e-3
    assert stats.kstest(noisy[:, 1], stats.norm(7.0, 0.2).cdf).pvalue > 1e-3
    assert noisy[:, 2].min() == 0.0, "the one bound that there is"
    assert (noisy[:, 2] == 0.0).mean() == pytest.approx(0.5, abs=0.02)
    spaces = AgentSpaces(OBS, space)
    assert all(space.contains(action) for action in spaces.to_env(noisy[:100]))


def test_the_parts_of_a_composite_action_are_explored_each_in_its_own_way():
    space = gs.Dict(a=gs.Discrete(4), b=gs.Tuple([gs.Box(0, 2, (1,)), gs.MultiBinary(1)]))
    actions = np.tile([3.0, 0.0, 1.0], (N, 1))
    noisy = explorer(space)(actions, 0.3)
    assert (noisy[:, 0] != 3).mean() == pytest.approx(0.3 * 3 / 4, abs=0.02)
    assert noisy[:, 1].std() == pytest.approx(0.3, abs=0.02)
    assert (noisy[:, 2] == 0).mean() == pytest.approx(0.15, abs=0.02)


@pytest.mark.parametrize("space", [gs.Discrete(4), gs.Box(-1, 1, (2,)), gs.MultiBinary(3)])
def test_no_amount_leaves_actions_alone_and_a_wrong_one_is_refused(space):
    noise = explorer(space)
    spaces = noise.spaces
    actions = np.stack([spaces.to_policy(space.sample()) for _ in range(50)])
    np.testing.assert_array_equal(noise(actions, 0.0), actions)
    for wrong in (-0.1, math.nan, *([1.5] if spaces.is_discrete else [])):
        with pytest.raises(ConfigError, match="amount="):
            noise(actions, wrong)


# --- a team that explores -----------------------------------------------------------------------------------------


class Still:
    """A policy that always takes each agent's first action."""

    def seed(self, seed):
        self.seeded = seed

    def __call__(self, observations, infos=None):
        return dict.fromkeys(observations, 2)


GROUPS = (AgentGroup("agent", ("agent_0", "agent_1"), AgentSpaces(OBS, gs.Discrete(4, start=2))),)
SEEN = {"agent_0": np.zeros(2, np.float32), "agent_1": np.zeros(2, np.float32)}


def exploring(seed=0, schedule=Schedule("constant", 0.5)):  # noqa: B008 (a frozen value)
    return ExploringPolicy(Still(), GROUPS, schedule, seed=seed)


def trace(policy, steps=30):
    return [policy(SEEN) for _ in range(steps)]


def test_one_seed_is_one_exploration_and_agents_do_not_share_their_noise():
    first, again, other = (trace(exploring(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert [step["agent_0"] for step in first] != [step["agent_1"] for step in first]
    assert {action for step in first for action in step.values()} == {2, 3, 4, 5}


def test_exploration_goes_on_exactly_from_its_state():
    whole = exploring(schedule=Schedule("linear", 1.0, 0.0, steps=40))
    head = trace(whole, 17)
    state = json.loads(json.dumps(whole.state()))
    tail = trace(whole, 30)
    assert whole.explore_var == 0.0
    resumed = exploring(seed=9, schedule=Schedule("linear", 1.0, 0.0, steps=40))
    resumed.load(state)
    assert resumed.explore_var == pytest.approx(1 - 17 / 40)
    assert trace(resumed, 30) == tail
    assert head != tail[:17]
    with pytest.raises(ConfigError, match="this exploration is of agent_0, agent_1, not of somebody"):
        ExploringPolicy(
            Still(), (AgentGroup("x", ("somebody",), GROUPS[0].spaces),), Schedule("constant", 0.1), seed=0
        ).load(state)


def test_the_schedule_follows_the_steps_explored():
    policy = exploring(schedule=Schedule("linear", 1.0, 0.0, steps=2))
    seen = []
    for _ in range(4):
        seen.append(policy.explore_var)
        policy(SEEN)
    assert seen == [1.0, 0.5, 0.0, 0.0]


def test_evaluation_plays_the_policy_alone_and_leaves_the_exploration_where_it_was():
    factory = EnvFactory(make_env=Kinds)
    policy = ExploringPolicy(Still(), vector(Kinds).groups, Schedule("constant", 1.0), seed=0)
    played = []

    class Watched:
        def seed(self, seed):
            policy.seed(seed)

        def begin(self, env):
            policy.begin(env)

        def __call__(self, observations, infos=None):
            actions = policy(observations, infos)
            played.extend(actions.values())
            return actions

    env = factory()
    play_episode(env, Watched(), seed=0)
    env.close()
    assert set(played) > {2}
    before = policy.state()
    played.clear()
    evaluate(factory, Watched(), episodes=2, seed=5)
    assert set(played) == {2}
    assert policy.explore_var == 0.0
    assert policy.state() == before


@pytest.mark.parametrize("mask", ["observation", "info"])
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_a_team_explores_only_what_its_env_allows(kind, mask):
    env = EnvFactory(make_env=Kinds, kwargs={"kind": kind, "mask": mask, "max_cycles": 60})()
    groups = vector(Kinds, kind=kind, mask=mask).groups

    class First:
        """The first allowed option of each choice."""

        def seed(self, seed):
            pass

        def __call__(self, observations, infos=None):
            masks = {
                agent: obs["action_mask"] if mask == "observation" else infos[agent]["action_mask"]
                for agent, obs in observations.items()
            }
            sizes = [4] if kind == "discrete" else [2, 3]
            cuts = np.cumsum(sizes)[:-1]
            picks = {
                agent: [int(np.argmax(part)) for part in np.split(np.asarray(m), cuts)]
                for agent, m in masks.items()
            }
            return {
                agent: pick[0] + 2 if kind == "discrete" else np.array(pick) for agent, pick in picks.items()
            }

    # The env refuses what it forbids.
    play_episode(env, ExploringPolicy(First(), groups, Schedule("constant", 1.0), seed=0), seed=0)
    env.close()
