"""`step_directly`: mpe2 envs in one step per joint action, without the turns that PettingZoo's conversion plays.

mpe2 envs are turn-based at heart. Their parallel form plays a turn for each agent, observing and checking each time, which
costs more than the step itself; the world moves only after the last turn.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import cache
from importlib.metadata import version
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, ClipOutOfBoundsWrapper, OrderEnforcingWrapper

from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.base import env_layers
from marl_tools.core.wrappers.particle_world import set_actions, step_world
from marl_tools.core.wrappers.quick_scenario import quick_scenario

VERIFIED = {"pettingzoo": ("1.27.0",), "mpe2": ("1.1.1",)}
"""The releases whose code was read and compared, step by step, with what is done here instead."""

_SHIPPED_IN = ("mpe2", "pettingzoo", "gymnasium", "builtins", "typing", "abc")


def step_directly(env: Any) -> Any:
    """``env`` as a `DirectParallel` where that is known to be the same to the last bit, otherwise ``env`` itself.

    Known are the parallel forms of mpe2's own envs, exactly as mpe2 makes them, in the `VERIFIED` releases: with
    another layer, a subclass, a replaced method or a window to draw in, an env stays as it is.
    """
    return DirectParallel(env) if _is_known(env) else env


def steps_directly(env: Any) -> bool:
    """Whether a `DirectParallel` is at the bottom of the wrappers of ``env``."""
    return any(isinstance(layer, DirectParallel) for layer in env_layers(env))


class DirectParallel(aec_to_parallel_wrapper):
    """PettingZoo's parallel wrapper around mpe2's own AEC env, with a shorter way through `step`.

    All else is inherited. After each step the AEC env below is as the turns would have left it, so it can be used as well,
    and a step that is not an everyday one (an action out of bounds or missing, turns that someone began to play) is
    PettingZoo's. Made by `step_directly`, which says when it can be.
    """

    def __init__(self, env: aec_to_parallel_wrapper) -> None:
        vars(self).update(vars(env))
        self._order: Any = env.aec_env
        self._raw: Any = env.unwrapped
        self._scenario = quick_scenario(self._raw.scenario)
        # A subclass that moves its world in a way of its own goes on doing so.
        self._own_move = "_execute_world_step" in vars(type(self._raw))
        self._sizes = [_size(self.action_space(agent)) for agent in self.possible_agents]

    def step(self, actions: dict[AgentID, Any]) -> Any:
        raw = self._raw
        joint = self._everyday(raw, actions)
        if joint is None:
            return super().step(actions)
        self._order._has_updated = True
        raw.current_actions[:] = joint
        self._move(raw)
        raw.steps += 1
        agents = raw.agents
        ended = raw.steps >= raw.max_cycles
        if ended:
            raw.truncations.update(dict.fromkeys(agents, True))
        elif self._scenario.is_terminal(raw.world):
            ended = True
            raw.terminations.update(dict.fromkeys(agents, True))
        rewards: defaultdict[AgentID, float] = defaultdict(int)
        for agent in agents:
            # The turns before the last one bring 0 each: a reward of -0.0 is 0.0 in the sum.
            rewards[agent] = raw._cumulative_rewards[agent] = 0 + raw.rewards[agent]
        observations = {
            agent: self._scenario.observation(body, raw.world).astype(np.float32)
            for agent, body in zip(agents, raw.world.agents, strict=True)
        }
        result = observations, rewards, dict(raw.terminations), dict(raw.truncations), dict(raw.infos)
        if ended:
            while raw.agents:
                self._order.step(None)
        self.agents = raw.agents
        return result

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __reduce__(self) -> Any:
        # mpe2 pickles its envs as their arguments: what is kept here belongs to an env that will not be there.
        public = object.__new__(aec_to_parallel_wrapper)
        vars(public).update((name, value) for name, value in vars(self).items() if not name.startswith("_"))
        return step_directly, (public,)

    def _everyday(self, raw: Any, actions: dict[AgentID, Any]) -> list[Any] | None:
        """The actions in the agents' order if the short way is open, None if the turns have to be played."""
        agents = raw.agents
        if (
            not agents
            or not self._order._has_reset
            or getattr(raw, "agent_selection", None) != agents[0]
            or raw.render_mode == "human"
            or raw.scenario.__dict__ is not self._scenario.__dict__
        ):
            return None
        joint = []
        for agent, size in zip(agents, self._sizes, strict=True):
            action = actions.get(agent)
            if not _fits(action, size):
                return None
            joint.append(action)
        return joint

    def _move(self, raw: Any) -> None:
        """What ``SimpleEnv._execute_world_step`` does."""
        if self._own_move:
            raw._execute_world_step()
            return
        world, scenario, ratio = raw.world, self._scenario, raw.local_ratio
        set_actions(world, raw.current_actions, continuous=raw.continuous_actions)
        step_world(world)
        shared = 0.0 if ratio is None else float(scenario.global_reward(world))
        for agent in world.agents:
            reward = float(scenario.reward(agent, world))
            raw.rewards[agent.name] = reward if ratio is None else shared * (1 - ratio) + reward * ratio
        raw._populate_benchmark_data()


def _size(space: Any) -> int:
    """How many choices a Discrete space has, or minus how many numbers a Box from 0 to 1."""
    return int(space.n) if isinstance(space, Discrete) else -space.shape[0]


def _fits(action: Any, size: int) -> bool:
    """Whether ``action`` surely belongs to the space of that `_size`; what does not may still do so."""
    if size >= 0:
        return (type(action) is int or isinstance(action, np.integer)) and bool(0 <= action < size)
    if type(action) is not np.ndarray or action.dtype != np.float32 or action.shape != (-size,):
        return False
    return all(0.0 <= value <= 1.0 for value in action.tolist())


def _is_known(env: Any) -> bool:
    mpe2 = sys.modules.get("mpe2._mpe_utils.simple_env")
    if mpe2 is None or type(env) is not aec_to_parallel_wrapper:
        return False
    order = env.aec_env
    bounds = vars(order).get("env")
    raw: Any = getattr(bounds, "env", None)
    return (
        type(order) is OrderEnforcingWrapper
        and type(bounds) in (AssertOutOfBoundsWrapper, ClipOutOfBoundsWrapper)
        and isinstance(raw, mpe2.SimpleEnv)
        and raw.render_mode != "human"
        and raw.world.dim_p == 2
        and all(_is_shipped(part) for part in (env, order, bounds, raw, raw.scenario, raw.world))
        and all(_is_shipped(entity) for entity in raw.world.entities)
        and all(_is_usual(space) for space in raw.action_spaces.values())
        and all(_installed(package) in releases for package, releases in VERIFIED.items())
    )


def _is_shipped(part: Any) -> bool:
    """Whether the class and all that it inherits are the libraries' own, and nobody has put another method in."""
    if any(isinstance(value, FunctionType | MethodType) for value in vars(part).values()):
        return False
    return all(_class_is_shipped(parent) for parent in type(part).__mro__)


def _class_is_shipped(parent: type) -> bool:
    members = [getattr(member, "fget", member) for member in vars(parent).values()]
    return parent.__module__.partition(".")[0] in _SHIPPED_IN and all(
        member.__module__ == parent.__module__ for member in members if isinstance(member, FunctionType)
    )


def _is_usual(space: Any) -> bool:
    if type(space) is Discrete:
        return space.start == 0
    unit = Box(0, 1, space.shape)
    return type(space) is Box and space == unit


@cache
def _installed(package: str) -> str:
    return version(package)
