"""What the wrappers add to a step: ``python benchmarks/wrappers.py [--repeats 300]``.

Whole episodes of 25 steps, resets included, of three agents with one fixed action and one seed. Bare and wrapped
envs take turns, one episode each; a row is the median over the turns of the difference in the thread's CPU time
(wall time on a shared machine says more about the neighbours), divided by the agent-steps.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from mpe2 import simple_spread_v3
from pettingzoo import ParallelEnv

from marl_tools.core.wrappers import AddCost, AgentTruncation, EpisodeCap, EpisodeRecorder

STEPS = 25
AGENTS = 3
TARGET = 15.0
RESULTS = Path(__file__).parent / "results" / "wrappers.md"


class Bare(ParallelEnv):
    """Three agents and nothing to compute: what is left is the cost of the wrappers."""

    metadata = {"name": "bare_v0"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(AGENTS)]
        self._observation_space = Box(-1, 1, (18,), np.float32)
        self._action_space = Discrete(5)
        self._observation = np.zeros(18, np.float32)
        self.t = 0

    def observation_space(self, agent: str) -> Box:
        return self._observation_space

    def action_space(self, agent: str) -> Discrete:
        return self._action_space

    def reset(self, seed: int | None = None, options: dict | None = None) -> Any:
        self.t = 0
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, self._observation), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self.t += 1
        agents, truncated = self.agents, self.t >= STEPS
        if truncated:
            self.agents = []
        return (
            dict.fromkeys(agents, self._observation),
            dict.fromkeys(agents, 0.0),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, truncated),
            {agent: {} for agent in agents},
        )


def no_cost(step: Any) -> dict[str, float]:
    return dict.fromkeys(step.terminations, 0.0)


def cost(env: Any) -> Any:
    return AddCost(env, no_cost)


def cap(env: Any) -> Any:
    return EpisodeCap(env, STEPS)


def retire(env: Any) -> Any:
    """One of the three agents is retired for the last fifth of the episode."""
    return AgentTruncation(env, steps={"agent_0": STEPS * 4 // 5}, stand_in=0)


def stack(env: Any) -> Any:
    return EpisodeRecorder(retire(cap(cost(env))))


ENVS: dict[str, Callable[[], Any]] = {
    "fake, three agents": Bare,
    "mpe2 simple_spread": lambda: simple_spread_v3.parallel_env(max_cycles=STEPS),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda env: env,
    "AddCost": cost,
    "EpisodeCap": cap,
    "AgentTruncation": retire,
    "EpisodeRecorder": EpisodeRecorder,
    "all four": stack,
}


def microseconds(env: Any) -> float:
    """CPU time per agent-step over one whole episode."""
    actions = dict.fromkeys(env.possible_agents, 0)
    start = time.thread_time()
    env.reset(seed=0)
    for _ in range(STEPS):
        env.step(actions)
    return (time.thread_time() - start) / (STEPS * AGENTS) * 1e6


def measure(make: Callable[[], Any], repeats: int) -> dict[str, tuple[float, float]]:
    """Per wrapper: median microseconds of the whole, and median of what it adds to the bare env in the same turn."""
    envs = {name: wrap(make()) for name, wrap in WRAPPERS.items()}
    for env in envs.values():
        microseconds(env)
    turns = [{name: microseconds(env) for name, env in envs.items()} for _ in range(repeats)]
    return {
        name: (
            statistics.median(times[name] for times in turns),
            statistics.median(times[name] - times["bare"] for times in turns),
        )
        for name in envs
    }


def table(repeats: int) -> str:
    lines = [
        "# What the wrappers add to a step",
        "",
        f"`python benchmarks/wrappers.py --repeats {repeats}`: microseconds of CPU time per agent-step, medians over",
        f"{repeats} alternating episodes of {STEPS} steps, resets included. In the row of all four the order is cost,",
        f"cap, agent truncation, recorder; one of the three agents is retired for the last {STEPS // 5} steps. Target: at",
        f"most {TARGET:g} added by all four.",
        "",
        "| env | wrapper | whole | added |",
        "|---|---|---|---|",
    ]
    for env_name, make in ENVS.items():
        for name, (whole, added) in measure(make, repeats).items():
            lines.append(
                f"| {env_name} | {name} | {whole:.2f} | {'' if name == 'bare' else f'{added:.2f}'} |"
            )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    packages = ", ".join(f"{name} {version(name)}" for name in ("pettingzoo", "mpe2", "numpy"))
    lines += [
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, load {load} at the end; "
        f"Python {platform.python_version()}, {packages}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS, help="Markdown file to write")
    options = parser.parse_args()
    text = table(options.repeats)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)
    print(text)
