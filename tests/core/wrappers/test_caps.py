"""Where envs hide their caps, what firing one means, and the wrapper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import supersuit
from hypothesis import given, settings, strategies as st
from pettingzoo.utils.wrappers import MultiEpisodeParallelEnv

from marl_tools.core.errors import ConfigError
from marl_tools.core.wrappers import EpisodeCap, EpisodeRecorder, apply_hidden_episode_cap, infer_episode_cap
from tests.envs_for_tests import Team, play, real_env

REPORTS_TRUNCATION = [
    "simple_spread",
    "pistonball",
    "knights_archers_zombies",
    "pursuit",
    "cooperative_pong",
    "rps",
]


class Layer:
    """An object with the given attributes: the shape of somebody else's env."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    @property
    def unwrapped(self) -> Any:
        return vars(self).get("base", self)


def time_limit(steps: int | None, env: Any) -> Any:
    return Layer(env=env, _max_episode_steps=steps)


@pytest.mark.parametrize("name", REPORTS_TRUNCATION)
def test_the_cap_of_a_real_env_is_the_step_at_which_it_truncates_and_never_ours_to_fire(name):
    env = EpisodeCap(real_env(name, max_cycles=4))
    assert env.cap == infer_episode_cap(env) == 4
    trace = play(env, seed=0, actions=0)
    assert infer_episode_cap(env) == 4
    _, _, terminations, truncations, infos = trace[-1]
    assert len(trace) == 1 + 4
    assert all(truncations.values())
    assert not any(terminations.values())
    assert not any("capped" in info for info in infos.values())
    env.close()


def test_default_caps_of_real_envs_are_found():
    defaults = {"simple_spread": 25, "pistonball": 125, "knights_archers_zombies": 900, "pursuit": 500}
    defaults |= {"cooperative_pong": 900, "multiwalker": 500, "rps": 15}
    assert {name: infer_episode_cap(real_env(name)) for name in defaults} == defaults


def test_a_cap_reported_as_termination_stays_one_unless_asked_for():
    def last_step(**kwargs):
        trace = play(EpisodeCap(real_env("multiwalker", max_cycles=3), **kwargs), seed=0, actions=0)
        assert len(trace) == 1 + 3
        return trace[-1][2:]

    terminations, truncations, infos = last_step()
    assert all(terminations.values())
    assert not any(truncations.values())
    terminations, truncations, infos = last_step(terminations_at_cap="truncate")
    assert all(truncations.values())
    assert not any(terminations.values())
    assert not any("capped" in info for info in infos.values())


def test_only_terminations_in_the_step_of_the_envs_own_cap_are_rewritten():
    def ends(*, steps=None, **team):
        env = Layered(Team(faults=("terminate",), **team), max_cycles=team["max_cycles"])
        recorder = EpisodeRecorder(EpisodeCap(env, steps, terminations_at_cap="truncate"))
        play(recorder)
        return dict(recorder.last_episode.ends), recorder.last_episode.length

    assert ends(max_cycles=5, deaths={"agent_0": 4}) == (
        {"agent_0": "terminated", "agent_1": "truncated", "agent_2": "truncated"},
        5,
    )
    # The ambiguity that comes with asking: a death in that very step is rewritten as well.
    assert ends(n=1, max_cycles=5, deaths={"agent_0": 5}) == ({"agent_0": "truncated"}, 5)
    assert ends(n=2, max_cycles=5, steps=3, deaths={"agent_0": 3}) == (
        {"agent_0": "terminated", "agent_1": "capped"},
        3,
    )


class Layered(Team):
    """A team in somebody's wrapper that shows its cap as an attribute."""

    def __init__(self, team: Team, **attributes: Any) -> None:
        vars(self).update(vars(team))
        vars(self).update(attributes)


FAKES = {
    "atari: on the base parallel env": (Layer(max_cycles=100_000), 100_000),
    "generated_agents: on the env": (Layer(max_cycles=100), 100),
    "magent2: on the top env": (Layer(env=Layer(handles=[1]), max_cycles=300), 300),
    "mamujoco: the time limit of the single agent env": (
        Layer(single_agent_env=time_limit(1000, Layer(env=Layer(frame_skip=5)))),
        1000,
    ),
    "momaland: num_timesteps": (Layer(num_timesteps=50), 50),
    "rware: max_steps of a base env that only unwrapped reaches": (Layer(base=Layer(max_steps=500)), 500),
    "lbforaging: on the base env": (Layer(_env=Layer(_max_episode_steps=50)), 50),
    "pogema: in the grid config": (
        Layer(pogema=Layer(grid_config=SimpleNamespace(max_episode_steps=64))),
        64,
    ),
    "nested time limits: the least": (
        time_limit(30, time_limit(20, time_limit(40, Layer(max_cycles=70)))),
        20,
    ),
    "the innermost of two": (Layer(max_cycles=1000, env=Layer(max_cycles=25)), 25),
    "a numpy integer": (Layer(max_cycles=np.int64(12)), 12),
    "kept for pickling only": (Layer(env=Layer(_ezpickle_kwargs={"max_cycles": 9, "seed": 1})), 9),
    "the live value before the one kept for pickling": (Layer(max_cycles=7, _kwargs={"max_cycles": 9}), 7),
    "none": (Layer(env=Layer(max_cycles=None)), None),
    "infinity": (Layer(max_cycles=float("inf")), None),
    "a boolean": (Layer(max_cycles=True, _max_episode_steps=True), None),
    "zero": (Layer(max_cycles=0, max_steps=-1), None),
    "no limit in a time limit": (time_limit(None, Layer(max_cycles=11)), 11),
    "nothing": (Layer(env=Layer()), None),
}


@pytest.mark.parametrize("name", FAKES)
def test_a_cap_is_found_wherever_this_family_hides_it(name):
    env, cap = FAKES[name]
    assert infer_episode_cap(env) == cap


def test_a_cycle_of_references_and_a_raising_unwrapped_end_the_walk():
    class Broken(Layer):
        @property
        def unwrapped(self):
            raise AssertionError

    inner = Broken()
    outer = Layer(env=inner)
    inner.par_env = outer
    assert infer_episode_cap(outer) is None
    inner.max_cycles = 3
    assert infer_episode_cap(outer) == 3


def test_a_cap_is_counted_in_steps_of_the_env_handed_in():
    def spread():
        return real_env("simple_spread", max_cycles=9)

    skipped, repeated = supersuit.frame_skip_v0(spread(), 2), MultiEpisodeParallelEnv(spread(), 3)
    assert infer_episode_cap(skipped) == 5
    assert infer_episode_cap(repeated) == 27
    assert infer_episode_cap(supersuit.frame_skip_v0(MultiEpisodeParallelEnv(spread(), 3), 2)) == 14
    # The inferred number is the step at which the env itself stops.
    assert len(play(skipped, seed=0, actions=0)) == 1 + 5
    assert len(play(repeated, seed=0, actions=0)) == 1 + 27
    assert infer_episode_cap(supersuit.frame_skip_v0(spread(), (2, 4))) == 5


def test_a_cap_of_ours_counts_like_a_time_limit():
    team = Layered(Team(), max_cycles=30)
    assert infer_episode_cap(EpisodeCap(team, 10)) == 10
    assert infer_episode_cap(EpisodeCap(team, 50)) == 30
    double = EpisodeCap(EpisodeCap(team, 4), 6)
    trace = play(double)
    assert len(trace) == 1 + 4
    assert [info.get("capped") for info in trace[-1][4].values()] == [True] * 3


def test_a_cap_set_on_the_outermost_object_by_a_test_suite_changes_nothing():
    env = EpisodeCap(Layered(Team(), max_cycles=5))
    env.max_cycles = 1000
    assert len(play(env)) == 1 + 5


def test_an_env_that_hides_its_cap_is_truncated_and_marked_capped():
    env = EpisodeCap(Layered(Team(deaths={"agent_1": 2}), max_cycles=4))
    env.reset()
    for _ in range(3):
        env.step(dict.fromkeys(env.agents, 0))
    assert env.agents == ["agent_0", "agent_2"]
    observations, _, terminations, truncations, infos = env.step(dict.fromkeys(env.agents, 0))
    assert env.agents == []
    assert truncations == {"agent_0": True, "agent_2": True}
    assert not any(terminations.values())
    assert infos == {"agent_0": {"capped": True}, "agent_2": {"capped": True}}
    assert {agent: obs.shape for agent, obs in observations.items()} == {"agent_0": (2,), "agent_2": (2,)}


def test_an_agent_that_dies_in_the_capped_step_is_terminated_not_capped():
    env = EpisodeRecorder(EpisodeCap(Team(deaths={"agent_0": 4}), 4))
    play(env)
    assert env.last_episode.ends == {"agent_0": "terminated", "agent_1": "capped", "agent_2": "capped"}


def test_an_agent_born_in_the_capped_step_is_capped_with_the_others():
    env = EpisodeCap(Team(births={"agent_2": 3}), 3)
    *_, truncations, infos = play(env)[-1]
    assert truncations == dict.fromkeys(["agent_0", "agent_1", "agent_2"], True)
    assert all(info["capped"] for info in infos.values())


def test_an_env_that_keeps_ended_agents_in_its_list_still_ends():
    env = EpisodeCap(Team(max_cycles=3, faults=("keep_agents",)), 10)
    trace = play(env)
    assert len(trace) == 1 + 3
    assert env.agents == []
    assert not any("capped" in info for info in trace[-1][4].values())


def test_the_list_of_agents_is_our_own_when_the_env_empties_its_list_in_place():
    env = EpisodeCap(
        Team(faults=("one_list",), deaths=dict.fromkeys(["agent_0", "agent_1", "agent_2"], 2)), 9
    )
    env.reset()
    held = env.agents
    env.step(dict.fromkeys(held, 0))
    between = env.agents
    env.step(dict.fromkeys(between, 0))
    assert (len(held), len(between), env.agents) == (3, 3, [])


def test_marking_an_agent_leaves_the_envs_own_infos_alone():
    env = EpisodeCap(Team(faults=("reuse",)), 2)
    play(env)
    _, infos = env.reset()
    assert all("capped" not in info for info in infos.values())


@pytest.mark.parametrize("name", ["simple_spread", "knights_archers_zombies"])
def test_stepping_past_the_end_returns_nothing_and_the_next_reset_starts_anew(name):
    env = EpisodeCap(real_env(name), steps=3)
    assert len(play(env, seed=0, actions=0)) == 1 + 3
    assert env.step({}) == ({}, {}, {}, {}, {})
    assert env.agents == []
    assert len(play(env, seed=0, actions=0)) == 1 + 3


def test_stepping_past_the_envs_own_end_is_left_to_the_env():
    env = EpisodeCap(Team(max_cycles=2), 2)
    play(env)
    env.step({})
    assert env.unwrapped.t == 3


def test_the_cap_is_read_again_when_a_reset_rebuilds_what_is_inside():
    class Rebuilt(Team):
        def reset(self, seed=None, options=None):
            self.env = Layer(max_cycles=(options or {}).get("steps", 6))
            return super().reset(seed, options)

    inner = Rebuilt()
    inner.env = Layer(max_cycles=6)
    env = EpisodeCap(inner)
    env.reset(options={"steps": 2})
    assert env.cap == 2
    fixed = EpisodeCap(Rebuilt(), 4)
    fixed.reset(options={"steps": 2})
    assert fixed.cap == 4


@pytest.mark.parametrize("steps", [0, -1, True, 2.0, "10", float("inf")])
def test_a_cap_that_is_no_number_of_steps_is_refused(steps):
    with pytest.raises(ConfigError, match=r"steps=.*: must be a whole number of at least 1"):
        EpisodeCap(Team(), steps)


def test_no_cap_found_is_an_error_that_says_where_it_looked():
    with pytest.raises(
        ConfigError, match=r"team_v0: looked for max_cycles.* on Team\..*EpisodeCap\(env, steps="
    ) as caught:
        EpisodeCap(Team())
    assert "_max_episode_steps" in str(caught.value)
    with pytest.raises(ConfigError, match="no episode cap found"):
        EpisodeCap(Team(), 5, terminations_at_cap="truncate")
    with pytest.raises(ConfigError, match="'rewrite': must be one of 'keep', 'truncate'"):
        EpisodeCap(Team(), 5, terminations_at_cap="rewrite")


flags = st.dictionaries(st.sampled_from("abcd"), st.booleans())


@settings(deadline=None, max_examples=100)
@given(
    active=st.lists(st.sampled_from("abcd"), unique=True),
    terminations=flags,
    truncations=flags,
    steps=st.integers(0, 6),
    cap=st.none() | st.integers(1, 6),
)
def test_a_cap_fires_iff_some_active_agent_is_unended_and_truncates_exactly_those(
    active, terminations, truncations, steps, cap
):
    before = dict(terminations), dict(truncations), list(active)
    new, fired = apply_hidden_episode_cap(
        active_agents=active,
        terminations=terminations,
        truncations=truncations,
        episode_steps=steps,
        episode_cap=cap,
    )
    unended = {a for a in active if not terminations.get(a) and not truncations.get(a)}
    due = cap is not None and steps >= cap
    assert fired == (due and bool(unended))
    assert {a for a in new if new[a]} == {a for a in truncations if truncations[a]} | (
        unended if due else set()
    )
    assert {a: flag for a, flag in new.items() if a not in unended} == {
        a: flag for a, flag in truncations.items() if a not in unended
    }
    assert (terminations, truncations, active) == before
    assert new is not truncations
