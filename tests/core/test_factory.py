"""Factories: pickling, order of the wrappers, and errors that say what to do."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import pytest
from pettingzoo.utils.conversions import parallel_to_aec

from marl_tools.core.errors import ConfigError
from marl_tools.core.factory import EnvFactory, resolve
from marl_tools.core.history import Clock
from marl_tools.core.wrappers import AddCost, EpisodeCap, infer_episode_cap
from marl_tools.core.wrappers.direct import steps_directly
from tests.envs_for_tests import Team, play, same

SPREAD = "mpe2.simple_spread_v3:parallel_env"


def flat_cost(step: Any) -> dict[str, float]:
    return dict.fromkeys(step.terminations, 0.25)


def at_two(agent: str, observation: Any, info: Any) -> bool:
    return agent == "agent_1" and observation[0] >= 2


def aec_team(**kwargs: Any) -> Any:
    return parallel_to_aec(Team(**kwargs))


def turn_based(**kwargs: Any) -> Any:
    env = aec_team(**kwargs)
    env.metadata["is_parallelizable"] = False
    return env


def test_the_wrappers_come_in_the_fixed_order():
    factory = EnvFactory(
        make_env=SPREAD,
        kwargs={"max_cycles": 9},
        preprocess=("frame_stack=2",),
        cost=flat_cost,
        cap="infer",
        agent_steps=3,
        stand_in=0,
    )
    env = factory()
    names = "EpisodeRecorder(AgentTruncation(EpisodeCap(AddCost(OwnObservations(simple_spread_v3)))))"
    assert repr(env) == names
    assert env.cap == 9
    play(env, seed=0)
    assert env.last_episode.lengths == dict.fromkeys(env.possible_agents, 3)
    assert env.last_episode.costs == dict.fromkeys(env.possible_agents, 0.75)
    assert repr(EnvFactory(make_env=Team)()) == "EpisodeRecorder(team_v0)"


def test_references_stand_for_functions_everywhere():
    env = EnvFactory(
        make_env="tests.envs_for_tests:Team",
        cost="tests.core.test_factory:flat_cost",
        agent_when="tests.core.test_factory:at_two",
        stand_in={"agent_1": 1},
        cap=4,
    )()
    play(env)
    assert env.last_episode.lengths == {"agent_0": 4, "agent_1": 2, "agent_2": 4}
    assert env.last_episode.ends == {"agent_0": "capped", "agent_1": "truncated", "agent_2": "capped"}


def test_mpe2_is_stepped_directly_unless_told_not_to():
    assert steps_directly(EnvFactory(make_env=SPREAD, cost=flat_cost, cap="infer")())
    assert steps_directly(EnvFactory(make_env="mpe2.simple_spread_v3:env")())
    assert not steps_directly(EnvFactory(make_env=SPREAD, direct=False)())
    assert not steps_directly(EnvFactory(make_env=Team)())


def test_a_factory_goes_through_pickle_and_builds_the_same_env():
    factory = EnvFactory(make_env=Team, kwargs={"n": 2, "max_cycles": 5}, cost=flat_cost, cap=4)
    twin = pickle.loads(pickle.dumps(factory))
    assert twin == factory
    assert same(play(factory(), seed=0), play(twin(), seed=0))


def test_what_the_call_is_given_reaches_env_and_recorder():
    logs = []
    clock = Clock(frames=10)
    factory = EnvFactory(make_env=Team, kwargs={"max_cycles": 2}, env_name="mine")
    env = factory(render_mode="rgb_array", env_index=3, split="eval", clock=clock, on_episode=logs.append)
    play(env)
    assert env.render_mode == "rgb_array"
    assert (logs[0].env_name, logs[0].env_index, logs[0].split, logs[0].t_end) == ("mine", 3, "eval", 12)
    assert factory().render_mode is None


def test_an_env_that_takes_no_render_mode_is_built_as_long_as_none_is_asked_for():
    def plain():
        return Team(max_cycles=1)

    EnvFactory(make_env=plain)()
    with pytest.raises(ConfigError, match="does not take the keyword argument 'render_mode'"):
        EnvFactory(make_env=plain)(render_mode="rgb_array")


def test_a_cap_reported_as_termination_is_rewritten_when_the_factory_says_so():
    kwargs = {"max_cycles": 2, "n_walkers": 2}
    env = EnvFactory(
        make_env="pettingzoo:make",
        kwargs={"env_type": "parallel", "id": "sisl/multiwalker-v9", **kwargs},
        cap="infer",
        terminations_at_cap="truncate",
    )()
    play(env, seed=0, actions=0)
    assert set(env.last_episode.ends.values()) == {"truncated"}


def test_an_aec_env_is_converted_or_refused_with_the_remedy():
    env = EnvFactory(make_env=aec_team, kwargs={"max_cycles": 3})()
    assert len(play(env)) == 1 + 3
    with pytest.raises(ConfigError, match=r"turn-based AEC env.*turn_based_aec_to_parallel"):
        EnvFactory(make_env=turn_based)()


def test_something_that_is_no_pettingzoo_env_is_refused():
    with pytest.raises(ConfigError, match=r"make_env returned .*CartPole.*must return a ParallelEnv"):
        EnvFactory(make_env=gymnasium.make, kwargs={"id": "CartPole-v1"})()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_package:env", "no module named 'no_such_package'; is it installed"),
        ("mpe2.simple_sprad_v3:parallel_env", "no module named 'mpe2.simple_sprad_v3'"),
        ("mpe2.simple_spread_v3:paralel_env", "has no 'paralel_env'. Did you mean 'parallel_env'"),
        ("mpe2.simple_spread_v3:__name__", "cannot be called"),
    ],
)
def test_a_reference_that_leads_nowhere_says_where_it_ended(reference, message):
    factory = EnvFactory(make_env=reference)
    with pytest.raises(ConfigError, match=message):
        factory()


def test_a_module_that_lacks_what_it_imports_says_so(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'not_installed_anywhere', which needs_more imports"):
        resolve("needs_more:env")


def test_a_nested_name_resolves():
    assert resolve("tests.envs_for_tests:Team.reset") is Team.reset
    assert resolve(Team) is Team


@pytest.mark.parametrize(
    ("make_env", "kwargs", "message"),
    [
        (
            Team,
            {"max_cycle": 5},
            "Team does not take the keyword argument 'max_cycle'. Did you mean 'max_cycles'",
        ),
        (
            SPREAD,
            {"max_cycle": 5},
            SPREAD + " does not take the keyword argument 'max_cycle'. Did you mean 'max_cycles'",
        ),
        (
            aec_team,
            {"deathz": {}},
            "aec_team does not take the keyword argument 'deathz'. Did you mean 'deaths'",
        ),
    ],
)
def test_an_unknown_keyword_argument_gets_a_suggestion_also_through_kwargs(make_env, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        EnvFactory(make_env=make_env, kwargs=kwargs)()


def test_a_missing_keyword_argument_is_named():
    with pytest.raises(
        ConfigError, match="pettingzoo:make needs the keyword argument 'id'; add it to kwargs"
    ):
        EnvFactory(make_env="pettingzoo:make", kwargs={"env_type": "parallel"})()


def test_a_type_error_inside_the_env_is_not_taken_for_a_wrong_argument():
    def broken(size):
        return len(size)

    with pytest.raises(TypeError, match="has no len"):
        EnvFactory(make_env=broken, kwargs={"size": 3})()

    def inner_fault(**kwargs):
        return dict(1, **kwargs)

    with pytest.raises(TypeError):
        EnvFactory(make_env=inner_fault)()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"make_env": "just_a_name"},
            "make_env must be written 'package.module:function', got 'just_a_name'",
        ),
        ({"make_env": None}, "make_env must be a callable or 'package.module:function', got None"),
        ({"cost": "nowhere"}, "cost must be written"),
        ({"cost": 3}, "cost must be a callable"),
        ({"cap": 0}, "cap=0: must be a whole number of at least 1"),
        ({"cap": "infr"}, "cap='infr': must be one of 'infer'"),
        ({"preprocess": ("rezise=8x8",)}, "Did you mean 'resize'"),
        ({"preprocess": "flatten"}, "takes a sequence of steps"),
        ({"agent_steps": 3}, "agent_steps or agent_when goes together with stand_in"),
        ({"stand_in": 0}, "agent_steps or agent_when goes together with stand_in"),
        ({"terminations_at_cap": "truncate"}, "terminations_at_cap needs a cap"),
    ],
)
def test_a_setting_that_can_never_work_is_refused_at_construction(settings, message):
    with pytest.raises(ConfigError, match=message):
        EnvFactory(**{"make_env": Team, **settings})


def test_construction_builds_and_imports_nothing():
    def explode():
        raise AssertionError

    EnvFactory(make_env=explode)
    EnvFactory(make_env="no_such_package:env", cost="neither:this")


def test_preprocessing_lies_inside_so_cost_and_cap_see_its_steps():
    seen = []

    def cost(step):
        seen.append({obs.dtype.name for obs in step.observations.values()})
        return dict.fromkeys(step.terminations, 0.0)

    env = EnvFactory(
        make_env=SPREAD, kwargs={"max_cycles": 2}, preprocess=("dtype=float64",), cost=cost, cap="infer"
    )()
    play(env, seed=0)
    assert seen == [{"float64"}] * 2
    assert infer_episode_cap(env) == 2
    assert isinstance(env.env, EpisodeCap)
    assert isinstance(env.env.env, AddCost)
