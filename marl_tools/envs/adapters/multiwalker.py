"""PettingZoo's multiwalker, whose cap is a truncation."""

from __future__ import annotations

from typing import Any

import pettingzoo

from marl_tools.core.types import AgentID
from marl_tools.core.wrappers.base import ParallelWrapper


class TruncatedWalkers(ParallelWrapper):
    """At the env's own cap whoever has not fallen is truncated; the env itself says that everyone terminated."""

    def step(self, actions: dict[AgentID, Any]) -> Any:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        raw: Any = self.unwrapped
        if raw.env.frames >= raw.env.max_cycles:
            done = raw.env.get_last_dones()
            terminations = {agent: bool(done[raw.agent_name_mapping[agent]]) for agent in terminations}
            truncations = {agent: not ended for agent, ended in terminations.items()}
        return observations, rewards, terminations, truncations, infos


def parallel_env(render_mode: str | None = None, **kwargs: Any) -> TruncatedWalkers:
    """The env of that name; ``kwargs`` are its own."""
    return TruncatedWalkers(
        pettingzoo.make("parallel", "sisl/multiwalker-v9", render_mode=render_mode, **kwargs)
    )
