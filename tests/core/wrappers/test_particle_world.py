"""The particle world on plain floats against mpe2's own, bit by bit, in worlds that no mpe2 env has."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from mpe2._mpe_utils.core import Agent, Landmark, World
from mpe2.simple_reference import simple_reference

from marl_tools.core.wrappers.particle_world import set_actions, step_world

# Few values, so that bodies share a place, touch at the very rim, stand still or have a signed zero.
coordinates = st.one_of(
    st.sampled_from([0.0, -0.0, 0.1, 0.3, -0.3, 1.0, 1e-160, 5e-324, 1e6]), st.floats(-2, 2)
)
vectors = st.tuples(coordinates, coordinates)


def entity(cls: type, place: Any, velocity: Any, size: float, collide: bool, movable: bool) -> Any:
    thing = cls()
    thing.state.p_pos, thing.state.p_vel = np.array(place), np.array(velocity)
    thing.size, thing.collide, thing.movable = size, collide, movable
    return thing


@st.composite
def agents(draw: st.DrawFn) -> Agent:
    agent = entity(
        Agent,
        draw(vectors),
        draw(vectors),
        draw(st.sampled_from([0.0, 0.05, 0.15])),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    agent.action.u, agent.action.c = np.array(draw(vectors)), np.array([draw(coordinates)])
    agent.silent = draw(st.booleans())
    agent.initial_mass = draw(st.sampled_from([1.0, 2.25]))
    agent.max_speed = draw(st.sampled_from([None, 1.3, 0.0]))
    return agent


@st.composite
def landmarks(draw: st.DrawFn) -> Landmark:
    return entity(Landmark, draw(vectors), draw(vectors), 0.2, draw(st.booleans()), draw(st.booleans()))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World()
    world.dim_c = 1
    world.agents = draw(st.lists(agents(), min_size=1, max_size=4))
    world.landmarks = draw(st.lists(landmarks(), max_size=2))
    return world


def bits(world: World) -> list[Any]:
    state = [array for entity in world.entities for array in vars(entity.state).values() if array is not None]
    return [(array.dtype.str, array.shape, array.tobytes()) for array in state]


def both(world: World) -> tuple[list[Any], list[Any]]:
    twin = copy.deepcopy(world)
    with np.errstate(all="ignore"):
        for _ in range(3):
            world.step()
            step_world(twin)
    return bits(world), bits(twin)


@given(worlds())
@settings(max_examples=150)
def test_every_world_moves_the_same_to_the_bit(world: World):
    expected, got = both(world)
    assert expected == got


def touching(gap: float) -> World:
    world = World()
    world.agents = [
        entity(Agent, place, (0.0, -0.0), 0.15, True, True) for place in ((0.0, 0.0), (0.3 + gap, 0.0))
    ]
    for agent in world.agents:
        agent.action.u = np.zeros(2)
        agent.silent = True
    return world


@given(st.floats(-0.3, 2.0))
@example(0.8)
@example(0.745)
@example(-0.3)
def test_a_contact_is_the_same_at_every_distance(gap: float):
    expected, got = both(touching(gap))
    assert expected == got


def ordinary(world: World) -> None:
    del world


def noisy(world: World) -> None:
    world.agents[0].u_noise = 0.5


def scripted(world: World) -> None:
    def flee(agent: Agent, world: World) -> Any:
        agent.action.u = np.array([0.5, 0.5])
        return agent.action

    world.agents[1].action_callback = flee


def whole_numbers(world: World) -> None:
    world.landmarks[0].state.p_pos = np.array([0, 1])


def float32(world: World) -> None:
    world.agents[0].state.p_vel = np.zeros(2, np.float32)


def in_one_place(world: World) -> None:
    world.agents[0].state.p_pos = world.agents[1].state.p_pos.copy()


@pytest.mark.parametrize("change", [ordinary, noisy, scripted, whole_numbers, float32, in_one_place])
def test_only_unusual_worlds_are_left_to_mpe2(change: Any, monkeypatch: pytest.MonkeyPatch):
    world = touching(0.1)
    world.landmarks = [entity(Landmark, (0.5, 0.5), (0.0, 0.0), 0.1, True, False)]
    change(world)
    twin = copy.deepcopy(world)
    stepped = []
    monkeypatch.setattr(World, "step", lambda self, step=World.step: (stepped.append(self), step(self)))
    with np.errstate(all="ignore"):
        np.random.seed(3)  # noqa: NPY002 (mpe2 draws its noise there)
        step_world(world)
        assert stepped == ([] if change is ordinary else [world])
        np.random.seed(3)  # noqa: NPY002
        twin.step()
    assert bits(world) == bits(twin)


@given(st.lists(st.floats(0, 1, width=32), min_size=15, max_size=15), st.sampled_from([None, 3.0, -2]))
@example([0.5] * 15, -2)
def test_continuous_actions_push_and_speak_as_in_mpe2(numbers: list[float], accel: float | None):
    env = simple_reference.raw_env(continuous_actions=True)
    action = np.array(numbers, np.float32)
    check_actions(env, [action, action[::-1].copy()], accel)


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8])
@pytest.mark.parametrize("accel", [None, 3.0, -2])
def test_discrete_actions_push_and_speak_as_in_mpe2(kind: type, accel: float | None):
    env = simple_reference.raw_env()
    for action in range(50):
        check_actions(env, [kind(action), kind(49 - action)], accel)


def check_actions(env: Any, actions: list[Any], accel: float | None) -> None:
    env.reset(seed=0)
    for agent in env.world.agents:
        agent.accel = accel
    twin = copy.deepcopy(env.world)
    env.current_actions = list(actions)
    env._execute_world_step()
    set_actions(twin, actions, continuous=env.continuous_actions)
    for agent, same in zip(env.world.agents, twin.agents, strict=True):
        for name in ("u", "c"):
            expected, got = getattr(agent.action, name), getattr(same.action, name)
            assert (expected.dtype, expected.tobytes()) == (got.dtype, got.tobytes())
