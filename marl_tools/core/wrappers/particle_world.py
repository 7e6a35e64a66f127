"""mpe2's particle world without its overhead: the same operations in the same order, on plain floats.

Float64 arithmetic and square roots are rounded alike in Python and in NumPy; the soft contact of two bodies, whose logarithm
need not be, stays NumPy's. Whatever is out of the ordinary is left to mpe2's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

_FLOAT = np.dtype(np.float64)
_MOVES = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
_SENSITIVITY = 5.0
# Beyond so many contact margins the contact is log(1 + exp(-800)), which is 0.0 in any library.
_OUT_OF_REACH = -800.0

Vector = tuple[float, float]


class _Unusual(Exception):
    """A world that only mpe2's own code should step."""


def set_actions(world: Any, actions: Sequence[Any], *, continuous: bool) -> None:
    """Hand each agent of a two-dimensional world its action, which must be valid, as ``SimpleEnv._set_action`` does."""
    for agent, action in zip(world.agents, actions, strict=True):
        x = y = 0.0
        said = action
        if agent.movable:
            if continuous:
                # Differences of float32, as the actions are.
                x, y = x + float(action[2] - action[1]), y + float(action[4] - action[3])
                said = action[len(_MOVES) :]
            else:
                said, move = divmod(int(action), len(_MOVES))
                x, y = _MOVES[move]
            sensitivity = _SENSITIVITY if agent.accel is None else agent.accel
            x, y = x * sensitivity, y * sensitivity
        agent.action.u = np.array((x, y))
        if continuous and not agent.silent:
            agent.action.c = said
        else:
            agent.action.c = np.zeros(world.dim_c)
            if not agent.silent:
                agent.action.c[said] = 1.0


def step_world(world: Any) -> None:
    """``World.step``; with noise, scripted agents, moving landmarks or odd arrays it is mpe2's own."""
    try:
        motions = _motions(world)
    except (_Unusual, ZeroDivisionError):
        # Two bodies in one place divide by zero, for which NumPy has a warning and a value.
        world.step()
        return
    for state, (x, y), velocity in motions:
        # In place, as mpe2 does: a scenario may hold on to the array.
        position = state.p_pos
        position[0], position[1] = x, y
        state.p_vel = np.array(velocity)
    for agent in world.agents:
        agent.state.c = np.zeros(world.dim_c) if agent.silent else agent.action.c + 0.0


def _motions(world: Any) -> list[tuple[Any, Vector, Vector]]:
    """The state of each moving agent with its next position and velocity; nothing is changed yet."""
    movers: list[tuple[Any, Vector, list[float]]] = []
    colliders: list[tuple[Any, Vector, list[float] | None]] = []
    for agent in world.agents:
        if agent.action_callback is not None or agent.u_noise or agent.c_noise:
            raise _Unusual
        place = _pair(agent.state.p_pos)
        force = None
        if agent.movable:
            x, y = _pair(agent.action.u)
            # The noise that is not there turns -0.0 into 0.0.
            force = [x + 0.0, y + 0.0]
            movers.append((agent, place, force))
        if agent.collide:
            colliders.append((agent, place, force))
    for landmark in world.landmarks:
        if landmark.movable:
            raise _Unusual
        if landmark.collide:
            colliders.append((landmark, _pair(landmark.state.p_pos), None))
    _add_contacts(world, colliders)
    return [(agent.state, *_integrate(world, agent, place, force)) for agent, place, force in movers]


def _pair(array: Any) -> Vector:
    if array.dtype is not _FLOAT or array.shape != (2,):
        raise _Unusual
    return array.tolist()


def _add_contacts(world: Any, colliders: Sequence[tuple[Any, Vector, list[float] | None]]) -> None:
    """Add to the forces, in place, what bodies in contact do to each other (``World.get_collision_force``)."""
    strength, margin = world.contact_force, world.contact_margin
    for index, (body, (x, y), force) in enumerate(colliders):
        for other, (other_x, other_y), other_force in colliders[index + 1 :]:
            dx, dy = x - other_x, y - other_y
            distance = sqrt(dx * dx + dy * dy)
            overlap = -(distance - (body.size + other.size)) / margin
            depth = 0.0 if overlap < _OUT_OF_REACH else float(np.logaddexp(0, overlap)) * margin
            push_x, push_y = strength * dx / distance * depth, strength * dy / distance * depth
            if force is not None:
                force[0], force[1] = push_x + force[0], push_y + force[1]
            if other_force is not None:
                other_force[0], other_force[1] = -push_x + other_force[0], -push_y + other_force[1]


def _integrate(world: Any, agent: Any, place: Vector, force: Sequence[float]) -> tuple[Vector, Vector]:
    """Position and velocity of an agent one time step on (``World.integrate_state``)."""
    dt, kept, mass = world.dt, 1 - world.damping, agent.mass
    vx, vy = _pair(agent.state.p_vel)
    moved = (place[0] + vx * dt, place[1] + vy * dt)
    vx, vy = vx * kept + force[0] / mass * dt, vy * kept + force[1] / mass * dt
    if agent.max_speed is not None:
        speed = sqrt(vx * vx + vy * vy)
        if speed > agent.max_speed:
            vx, vy = vx / speed * agent.max_speed, vy / speed * agent.max_speed
    return moved, (vx, vy)
