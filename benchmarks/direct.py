"""What stepping mpe2 directly saves: ``python benchmarks/direct.py [--repeats 60]``.

Whole episodes of 25 steps, resets included, with the same random actions. The env as PettingZoo converts it and the one
stepped directly take turns, one episode each; figures are the thread's CPU time (wall time on a shared machine says
more about the neighbours).
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpe2.all_modules import mpe_environments
from results_page import write_page

from marl_tools.core.factory import EnvFactory
from marl_tools.core.wrappers import step_directly
from marl_tools.vector import SerialVectorEnv

STEPS = 25
COPIES = 8
SPREAD = "mpe2.simple_spread_v3:parallel_env"

Episode = Callable[[int], None]
"""Plays ``STEPS`` steps of the env, or of each copy, from a seed."""


def single(name: str, *, direct: bool) -> Episode:
    env = importlib.import_module(f"mpe2.{name}").parallel_env(max_cycles=STEPS)
    env = step_directly(env) if direct else env
    actions = env.possible_agents, [int(env.action_space(agent).n) for agent in env.possible_agents]

    def play(seed: int) -> None:
        agents, sizes = actions
        joint = np.random.default_rng(seed).integers(sizes, size=(STEPS, len(sizes))).tolist()
        env.reset(seed=seed)
        for row in joint:
            env.step(dict(zip(agents, row, strict=True)))

    return play


def vector(*, direct: bool) -> Episode:
    envs = SerialVectorEnv(EnvFactory(make_env=SPREAD, kwargs={"max_cycles": STEPS}, direct=direct), COPIES)
    envs.reset(seed=0)
    (group,) = envs.groups
    shape = (STEPS, COPIES, len(group.agents))

    def play(seed: int) -> None:
        for actions in np.random.default_rng(seed).integers(group.spaces.action_dim, size=shape):
            envs.step({group.name: actions})

    return play


def microseconds(play: Episode, seed: int, copies: int) -> float:
    started = time.thread_time()
    play(seed)
    return (time.thread_time() - started) / (STEPS * copies) * 1e6


def row(title: str, make: Callable[..., Episode], repeats: int, *, copies: int = 1, **kwargs: Any) -> str:
    """Medians over alternating episodes, and the ratio within a pair of episodes with its quartiles."""
    public, direct = make(direct=False, **kwargs), make(direct=True, **kwargs)
    public(0), direct(0)
    turns: list[tuple[float, float]] = [
        (microseconds(public, seed, copies), microseconds(direct, seed, copies)) for seed in range(repeats)
    ]
    ratios = [slow / quick for slow, quick in turns]
    low, _, high = statistics.quantiles(ratios, n=4)
    slow, quick = (statistics.median(times) for times in zip(*turns, strict=True))
    return (
        f"| {title} | {slow:.0f} | {quick:.0f} | {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    names = sorted(key.split("/")[1] for key in mpe_environments)
    lines = [
        "# Stepping mpe2 directly",
        "",
        f"`python benchmarks/direct.py --repeats {repeats}`: microseconds of CPU time per env step (all agents), medians over",
        f"{repeats} alternating episodes of {STEPS} steps, resets included; public is PettingZoo's conversion. The ratio is the",
        "median over the pairs of episodes, with its quartiles. Results are equal to the bit.",
        "",
        "| env | public | direct | ratio |",
        "|---|---|---|---|",
        *(row(name, single, repeats, name=name) for name in names),
        row(f"simple_spread_v3, {COPIES} copies in a `SerialVectorEnv`", vector, repeats, copies=COPIES),
    ]
    write_page("direct", lines, ("pettingzoo", "mpe2", "numpy"))


if __name__ == "__main__":
    main()
