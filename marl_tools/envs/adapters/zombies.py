"""PettingZoo's knights_archers_zombies, whose episodes follow from their seed alone."""

from __future__ import annotations

from typing import Any

import pettingzoo

from marl_tools.core.wrappers.base import ParallelWrapper


class FreshZombies(ParallelWrapper):
    """Zombies come on time: the env's own reset keeps the countdown to the next one from the episode before."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raw: Any = self.unwrapped
        raw.zombie_spawn_interval.reset()
        return self.env.reset(seed=seed, options=options)


def parallel_env(render_mode: str | None = None, **kwargs: Any) -> FreshZombies:
    """The env of that name; ``kwargs`` are its own."""
    env = pettingzoo.make(
        "parallel", "butterfly/knights_archers_zombies-v11", render_mode=render_mode, **kwargs
    )
    return FreshZombies(env)
