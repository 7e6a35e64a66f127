"""Tasks played by chance: an env with its cost, and what an episode of it shows."""

from functools import cache

import pytest

from marl_tools.core.factory import EnvFactory
from marl_tools.envs import find_task
from tests.envs_for_tests import play

# Episodes that are long or slow are cut short by the env's own cap.
SHORT = {
    "adversarial_pursuit": {"max_cycles": 12},
    "cooperative_pong": {"max_cycles": 8},
    **{f"gridmap_{name}": {"max_cycles": 40} for name in ("bridges", "rooms", "streets", "warehouse")},
    "half_cheetah_2x3": {"max_episode_steps": 40},
    "half_cheetah_6x1": {"max_episode_steps": 40},
    "knights_archers_zombies": {"max_cycles": 70},
    "multiwalker": {"max_cycles": 30},
    "pistonball": {"max_cycles": 3},
    "pursuit": {"max_cycles": 5},
    "swimmer_2x1": {"max_episode_steps": 40},
}


def made(name, render_mode=None, **kwargs):
    """A copy of a task's env with its cost, skipped where its packages are missing."""
    task = find_task(name)
    if missing := task.missing():
        pytest.skip(f"{' and '.join(missing)} not installed")
    return EnvFactory(
        make_env=task.make_env, kwargs={**task.kwargs_for(), **kwargs}, cost=task.cost, env_name=name
    )(render_mode=render_mode)


@cache
def episode(name):
    """An env that has played one episode of seed 1, and what its reset and each step returned."""
    env = made(name, **SHORT.get(name, {}))
    return env, play(env, seed=1, actions=1)
