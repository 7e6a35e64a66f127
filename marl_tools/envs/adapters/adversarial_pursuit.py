"""MAgent2's adversarial_pursuit, whose prey act as they want from the first step on."""

from __future__ import annotations

from typing import Any

from marl_tools.core.wrappers.base import ParallelWrapper
from marl_tools.envs.adapters.packages import imported

INSTALL = 'pip install "marl-tools[magent2]"'


class OwnFirstActions(ParallelWrapper):
    """Everyone's first action is their own.

    The env counts its teams before it has placed them, so that in the first step after a reset it hands the prey the actions
    of the agents before them in the list.
    """

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = self.env.reset(seed=seed, options=options)
        raw: Any = self.env
        raw.team_sizes = [raw.env.get_num(handle) for handle in raw.handles]
        return result


def parallel_env(render_mode: str | None = None, **kwargs: Any) -> OwnFirstActions:
    """The env of that name; ``kwargs`` are its own.

    Raises:
        MissingExtraError: MAgent2 is not installed.
    """
    module = imported("magent2.environments.adversarial_pursuit_v4", INSTALL)
    return OwnFirstActions(module.parallel_env(render_mode=render_mode, **kwargs))
