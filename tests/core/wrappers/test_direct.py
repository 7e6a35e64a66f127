"""Envs stepped directly, compared with PettingZoo's own conversion down to the bits of every float."""

from __future__ import annotations

import copy
import importlib
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pettingzoo
import pytest
from mpe2 import simple_adversary_v3, simple_reference_v3, simple_spread_v3, simple_tag_v3, simple_v3
from mpe2.simple_spread import simple_spread
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec
from pettingzoo.utils.wrappers import BaseParallelWrapper, OrderEnforcingWrapper

from marl_tools.core.wrappers import (
    AddCost,
    EpisodeRecorder,
    direct as direct_module,
    infer_episode_cap,
    step_directly,
)
from marl_tools.core.wrappers.direct import DirectParallel, steps_directly

ENVS = (
    "collect_treasure_v1",
    "simple_adversary_v3",
    "simple_crypto_v3",
    "simple_formation_v1",
    "simple_line_v1",
    "simple_push_v3",
    "simple_reference_v3",
    "simple_speaker_listener_v4",
    "simple_spread_v3",
    "simple_tag_v3",
    "simple_v3",
    "simple_world_comm_v3",
)
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "five agents": (simple_spread_v3, {"N": 5, "local_ratio": 0.3}),
    "shared reward alone": (simple_spread_v3, {"local_ratio": 0}),
    "near ones only": (simple_spread_v3, {"num_agent_neighbors": 1, "num_landmark_neighbors": 2}),
    "benchmark": (simple_spread_v3, {"benchmark_data": True}),
    "curriculum": (simple_tag_v3, {"curriculum": True, "max_cycles": 9}),
    "ends on success": (simple_tag_v3, {"terminate_on_success": True, "num_adversaries": 6}),
    "adversary benchmark": (simple_adversary_v3, {"benchmark_data": True, "N": 4}),
    "messages": (simple_reference_v3, {"local_ratio": 0.9, "continuous_actions": True}),
}


def pair(make: Callable[..., Any], **kwargs: Any) -> tuple[Any, DirectParallel]:
    """The env as it is, and stepped directly."""
    direct = step_directly(make(**kwargs))
    assert isinstance(direct, DirectParallel)
    return make(**kwargs), direct


def bits(value: Any) -> Any:
    """``value`` with every number as its type and bytes: 0.0 is not -0.0, and order counts."""
    if isinstance(value, dict):
        return type(value).__name__, [(key, bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [bits(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return type(value).__name__, value.dtype.str, value.shape, value.tobytes()
    return (type(value).__name__, struct.pack("d", value)) if isinstance(value, float) else value


def inside(env: Any) -> Any:
    """All that an env's AEC form and its world hold, and its random state."""
    raw = env.unwrapped
    names = ("agents", "agent_selection", "rewards", "_cumulative_rewards", "terminations", "truncations")
    world = [
        (vars(entity.state), vars(getattr(entity, "action", entity.state)), entity.color)
        for entity in raw.world.entities
    ]
    return bits(
        [
            *(getattr(raw, name) for name in names),
            raw.infos,
            raw.steps,
            raw.current_actions,
            vars(raw._agent_selector),
            world,
            env.aec_env._has_updated,
            raw.np_random.bit_generator.state,
        ]
    )


def draw(env: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Valid actions for whoever is there, among them the extreme ones."""
    actions = {}
    for agent in env.agents:
        space = env.action_space(agent)
        if hasattr(space, "n"):
            actions[agent] = rng.integers(space.n)
        else:
            actions[agent] = np.clip(rng.uniform(-0.5, 1.5, space.shape), 0, 1).astype(np.float32)
    return actions


def compare(public: Any, direct: Any, *, seeds: range) -> int:
    """Play episodes side by side; how many ended by a termination."""
    terminated = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        assert bits(public.reset(seed=seed)) == bits(direct.reset(seed=seed))
        while public.agents:
            actions = draw(public, rng)
            expected, got = public.step(actions), direct.step(actions)
            assert bits(expected) == bits(got)
            assert inside(public) == inside(direct)
            assert bits(public.state()) == bits(direct.state())
        assert direct.agents == []
        terminated += any(expected[2].values())
    return terminated


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The actions of every step that PettingZoo's own conversion played."""
    played: list[Any] = []
    public_step = direct_module.aec_to_parallel_wrapper.step

    def step(self: Any, actions: Any) -> Any:
        played.append(actions)
        return public_step(self, actions)

    monkeypatch.setattr(direct_module.aec_to_parallel_wrapper, "step", step)
    step.__module__ = public_step.__module__
    return played


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize("name", ENVS)
def test_every_env_of_mpe2_plays_the_same_to_the_bit(name: str, continuous: bool):
    make = importlib.import_module(f"mpe2.{name}").parallel_env
    compare(*pair(make, continuous_actions=continuous), seeds=range(2))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_plays_the_same_to_the_bit(option: str):
    module, kwargs = OPTIONS[option]
    terminated = compare(*pair(module.parallel_env, **kwargs), seeds=range(3))
    assert (terminated > 0) == (option == "ends on success")


def test_an_everyday_episode_is_never_played_in_turns(turns: list[Any]):
    for continuous in (False, True):
        _, env = pair(simple_spread_v3.parallel_env, continuous_actions=continuous)
        env.reset(seed=1)
        while env.agents:
            env.step(draw(env, np.random.default_rng(1)))
    assert turns == []


def test_spaces_names_and_pictures_are_those_of_the_env():
    public, direct = pair(simple_spread_v3.parallel_env, render_mode="rgb_array", dynamic_rescaling=False)
    assert direct.possible_agents == public.possible_agents
    assert direct.metadata is direct.unwrapped.metadata
    assert (str(direct), repr(direct)) == ("simple_spread_v3", "DirectParallel(simple_spread_v3)")
    assert direct.state_space == public.state_space
    for agent in public.possible_agents:
        assert direct.observation_space(agent) == public.observation_space(agent)
        assert direct.action_space(agent) == public.action_space(agent)
    for env in (public, direct):
        env.reset(seed=4)
        for _ in range(7):
            env.step(dict.fromkeys(env.agents, 2))
    assert np.array_equal(public.render(), direct.render())
    direct.close()
    assert direct.unwrapped.screen is None


def test_the_cap_is_found_and_wrappers_see_the_raw_env():
    env = step_directly(simple_spread_v3.parallel_env(max_cycles=17))
    assert infer_episode_cap(env) == 17
    seen = []

    def crowding(step: Any) -> dict[str, float]:
        seen.append(step.env.unwrapped.world.agents[0].state.p_pos)
        return dict.fromkeys(step.terminations, 0.5)

    recorded = EpisodeRecorder(AddCost(env, crowding))
    recorded.reset(seed=0)
    while recorded.agents:
        recorded.step(draw(recorded, np.random.default_rng(0)))
    assert steps_directly(recorded)
    assert not steps_directly(EpisodeRecorder(simple_spread_v3.parallel_env()))
    assert recorded.last_episode is not None
    assert recorded.last_episode.length == len(seen) == 17
    assert recorded.last_episode.costs["agent_0"] == 8.5


BAD: dict[str, tuple[bool, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "missing": (False, lambda actions: {k: v for k, v in actions.items() if k != "agent_1"}),
    "too large": (False, lambda actions: {**actions, "agent_2": 5}),
    "negative": (False, lambda actions: {**actions, "agent_0": -1}),
    "none": (False, lambda actions: {**actions, "agent_1": None}),
    "no number": (False, lambda actions: {**actions, "agent_1": "left"}),
    "wrong shape": (True, lambda actions: {**actions, "agent_1": np.zeros(4, np.float32)}),
    "nan": (True, lambda actions: {**actions, "agent_2": np.full(5, np.nan, np.float32)}),
}


@pytest.mark.parametrize("fault", BAD)
def test_an_action_that_is_refused_is_refused_alike_and_leaves_the_same_env(fault: str):
    continuous, spoil = BAD[fault]
    public, direct = pair(simple_spread_v3.parallel_env, continuous_actions=continuous)
    rng = np.random.default_rng(0)
    errors = []
    for env in (public, direct):
        env.reset(seed=3)
    actions = draw(public, rng)
    for env in (public, direct):
        env.step(actions)
        with pytest.raises(Exception) as caught:
            env.step(spoil(actions))
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]
    assert inside(public) == inside(direct)
    compare(public, direct, seeds=range(1))


UNUSUAL: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "a bool": (False, lambda action: bool(action % 2)),
    "an array of one": (False, np.array),
    "float64": (True, lambda action: action.astype(np.float64)),
    "out of bounds": (True, lambda action: action * 3 - 1),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_an_unusual_action_is_played_as_ever(kind: str, turns: list[Any]):
    continuous, change = UNUSUAL[kind]
    public, direct = pair(simple_spread_v3.parallel_env, continuous_actions=continuous)
    rng = np.random.default_rng(2)
    for env in (public, direct):
        env.reset(seed=3)
    for _ in range(5):
        actions = {agent: change(action) for agent, action in draw(public, rng).items()}
        # mpe2 divides an array of one in place: each env needs its own.
        assert bits(public.step(copy.deepcopy(actions))) == bits(direct.step(actions))
        assert inside(public) == inside(direct)
    assert len(turns) == 10


def test_turns_that_someone_plays_in_between_and_steps_mix():
    public, direct = pair(simple_tag_v3.parallel_env)
    for env in (public, direct):
        env.reset(seed=5)
        env.step(dict.fromkeys(env.agents, 1))
        for agent in env.agents:
            env.aec_env.step(2 if agent.startswith("adversary") else 3)
        env.step(dict.fromkeys(env.agents, 4))
        assert env.aec_env.last()[0].shape == env.observation_space(env.agents[0]).shape
    assert inside(public) == inside(direct)
    for env in (public, direct):
        env.aec_env.step(1)
        with pytest.raises(AssertionError, match="expected agent adversary_0 got agent adversary_1"):
            env.step(dict.fromkeys(env.agents, 1))


def test_before_the_first_reset_and_after_the_end_it_behaves_as_ever():
    public, direct = pair(simple_v3.parallel_env, max_cycles=1)
    for env in (public, direct):
        assert not hasattr(env, "agents")
        with pytest.raises(AttributeError, match="agents cannot be accessed before reset"):
            env.step({"agent_0": 0})
        env.reset(seed=0)
        env.step({"agent_0": 0})
        assert env.step({}) == ({}, {}, {}, {}, {})


def test_agents_is_the_env_own_list_after_a_step_as_ever():
    public, direct = pair(simple_spread_v3.parallel_env, max_cycles=2)
    for env in (public, direct):
        env.reset(seed=0)
        assert env.agents is not env.unwrapped.agents
        env.step(dict.fromkeys(env.agents, 0))
        kept = env.agents
        assert kept is env.unwrapped.agents
        env.step(dict.fromkeys(env.agents, 0))
        assert kept == []


@pytest.mark.parametrize("duplicate", [lambda env: pickle.loads(pickle.dumps(env)), copy.deepcopy])
def test_a_copy_is_a_working_env_of_its_own(duplicate: Callable[[Any], Any]):
    public, direct = pair(simple_spread_v3.parallel_env, N=4, max_cycles=6)
    direct.reset(seed=0)
    again = duplicate(direct)
    assert isinstance(again, DirectParallel)
    assert again.unwrapped is not direct.unwrapped
    compare(public, again, seeds=range(2))


def test_what_is_changed_in_the_raw_env_counts_at_once():
    public, direct = pair(simple_spread_v3.parallel_env)
    for env in (public, direct):
        env.reset(seed=0)
        env.step(dict.fromkeys(env.agents, 1))
        first, second = env.unwrapped.world.agents[:2]
        first.state.p_pos = np.array([0.25, 0.5])
        first.max_speed, first.accel, second.collide = 0.3, 7.0, False
        env.unwrapped.local_ratio = 0.75
    for _ in range(5):
        actions = dict.fromkeys(public.agents, 2)
        assert bits(public.step(actions)) == bits(direct.step(actions))
    direct.unwrapped.scenario.reward = lambda agent, world: 7.0
    direct.unwrapped.local_ratio = None
    assert set(direct.step(actions)[1].values()) == {7.0}
    direct.unwrapped.scenario = simple_spread.Scenario(num_landmark_neighbors=1)
    assert direct.step(actions)[0]["agent_0"].shape == (14,)


class Renamed(simple_spread.raw_env):
    def observe(self, agent: str) -> np.ndarray:
        return super().observe(agent) + 1


class OtherScenario(simple_spread.Scenario):
    def reward(self, agent: Any, world: Any) -> float:
        return 1.0


def with_scenario() -> Any:
    env = simple_spread_v3.parallel_env()
    env.unwrapped.scenario = OtherScenario()
    return env


def with_replaced_method() -> Any:
    env = simple_spread_v3.parallel_env()
    env.unwrapped.observe = lambda agent: np.zeros(18, np.float32)
    return env


STRANGERS: dict[str, Callable[[], Any]] = {
    "a wrapper around it": lambda: BaseParallelWrapper(simple_spread_v3.parallel_env()),
    "another layer": lambda: aec_to_parallel(OrderEnforcingWrapper(simple_spread_v3.env())),
    "no bounds check": lambda: aec_to_parallel(OrderEnforcingWrapper(simple_spread_v3.raw_env())),
    "the bare env": lambda: aec_to_parallel(simple_spread_v3.raw_env()),
    "a subclass": lambda: aec_to_parallel(simple_spread.make_env(Renamed)()),
    "another scenario": with_scenario,
    "a replaced method": with_replaced_method,
    "a window": lambda: simple_spread_v3.parallel_env(render_mode="human"),
    "no particles": lambda: pettingzoo.make("parallel", "classic/rps-v2"),
    "turns of its own": lambda: parallel_to_aec(simple_spread_v3.parallel_env()),
    "no env": object,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_whatever_is_not_known_exactly_is_left_as_it_is(kind: str):
    env = STRANGERS[kind]()
    assert step_directly(env) is env


def test_a_method_replaced_in_the_library_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simple_spread.Scenario, "reward", lambda self, agent, world: 0.0)
    env = simple_spread_v3.parallel_env()
    assert step_directly(env) is env


@pytest.mark.parametrize("package", direct_module.VERIFIED)
def test_a_release_that_was_not_compared_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, package: str):
    monkeypatch.setitem(direct_module.VERIFIED, package, ("0.0.1",))
    env = simple_spread_v3.parallel_env()
    assert step_directly(env) is env


def test_a_registered_env_is_stepped_directly_too(monkeypatch: pytest.MonkeyPatch):
    registry: dict[str, Any] = {}
    monkeypatch.setattr("pettingzoo.env_registry.registration.parallel_registry", registry)
    pettingzoo.env_registry.registration._get_registry.cache_clear()
    pettingzoo.register("parallel", "mpe2/simple_spread-v3", entry_point="mpe2.simple_spread_v3:parallel_env")
    try:
        env = pettingzoo.make("parallel", "mpe2/simple_spread-v3", max_cycles=8)
    finally:
        pettingzoo.env_registry.registration._get_registry.cache_clear()
    assert isinstance(step_directly(env), DirectParallel)
