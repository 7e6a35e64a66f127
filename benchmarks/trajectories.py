"""What saving trajectories costs: ``python benchmarks/trajectories.py [--repeats 40]``.

Whole episodes of three agents, 1000 steps a turn: short ones, one file each, and long ones in segments of 100 to 200
steps. Bare and wrapped envs take turns. A row is the median over the turns of the CPU time of the whole process, the writing thread
included, divided by the agent-steps; what is still unwritten at the end of a turn is waited for and counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpe2 import simple_spread_v3
from pettingzoo import ParallelEnv
from results_page import write_page
from wrappers import AGENTS, Bare

from marl_tools.core.segment_files import segment_files
from marl_tools.core.segments import read_segment
from marl_tools.core.wrappers import EpisodeRecorder, TrajectoryRecorder
from marl_tools.core.wrappers.direct import step_directly
from marl_tools.training.segments import SegmentWindows

TARGET = 10.0
STEPS_A_TURN = 1000


class Endless(Bare):
    """The env that computes nothing, in episodes of ``steps`` steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def step(self, actions: dict[str, int]) -> Any:
        observations, rewards, terminations, _, infos = super().step(actions)
        truncated = self.t >= self.steps
        self.agents = [] if truncated else list(self.possible_agents)
        return observations, rewards, terminations, dict.fromkeys(rewards, truncated), infos


ENVS: dict[str, tuple[int, Callable[[], ParallelEnv]]] = {
    "nothing to compute, 25 steps": (25, lambda: Endless(25)),
    "nothing to compute, 1000 steps": (1000, lambda: Endless(1000)),
    "mpe2 simple_spread, 25 steps": (25, lambda: step_directly(simple_spread_v3.parallel_env(max_cycles=25))),
    "mpe2 simple_spread, 200 steps": (
        200,
        lambda: step_directly(simple_spread_v3.parallel_env(max_cycles=200)),
    ),
}


def play(env: Any, steps: int) -> tuple[float, float, float]:
    """Microseconds per agent-step, over some whole episodes: CPU of the whole process and of the thread that steps, and the clock's
    until the last step returns.
    """
    episodes = STEPS_A_TURN // steps
    actions = dict.fromkeys(env.possible_agents, 0)
    start, own, waited = time.process_time(), time.thread_time(), time.perf_counter()
    for _ in range(episodes):
        env.reset(seed=0)
        for _ in range(steps):
            env.step(actions)
    own, waited = time.thread_time() - own, time.perf_counter() - waited
    if isinstance(env, TrajectoryRecorder):
        env.flush()
    per_step = 1e6 / (episodes * steps * AGENTS)
    return (time.process_time() - start) * per_step, own * per_step, waited * per_step


def measure(
    steps: int, make: Callable[[], ParallelEnv], repeats: int, folder: str
) -> dict[str, tuple[float, ...]]:
    envs = {
        "bare": make(),
        "EpisodeRecorder": EpisodeRecorder(make()),
        'TrajectoryRecorder, "npz"': TrajectoryRecorder(make(), f"{folder}/npz"),
        'TrajectoryRecorder, "npz-compressed"': TrajectoryRecorder(
            make(), f"{folder}/z", format="npz-compressed"
        ),
    }
    turns = [{name: play(env, steps) for name, env in envs.items()} for _ in range(1 + repeats)]
    for env in envs.values():
        env.close()
    return {
        name: (
            statistics.median(turn[name][0] for turn in turns[1:]),
            statistics.median(turn[name][0] - turn["bare"][0] for turn in turns[1:]),
            *(
                statistics.median(turn[name][part] - turn["bare"][part] for turn in turns[1:])
                for part in (1, 2)
            ),
        )
        for name in envs
    }


def reading(folder: Path) -> list[str]:
    """How fast the files come back: one by one, and as batches of windows."""
    files = segment_files(folder)
    start = time.process_time()
    for file in files:
        read_segment(file)
    one = (time.process_time() - start) / len(files) * 1e6
    windows = SegmentWindows(folder, length=20, batch_size=256, seed=0)
    batches = iter(windows)
    next(batches)
    start = time.process_time()
    for _ in range(20):
        next(batches)
    batch = (time.process_time() - start) / 20 * 1e3
    size = sum(file.stat().st_size for file in files) / len(files) / 1024
    return [
        f"Reading: {one:.0f} microseconds a file of 25 steps ({size:.0f} KiB), {len(files)} files; {batch:.0f} ms a batch of 256",
        f"windows of 20 steps drawn from all of them, {windows.transitions} transitions.",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    lines = [
        "# What saving trajectories costs",
        "",
        f"`python benchmarks/trajectories.py --repeats {options.repeats}`: microseconds per agent-step, three agents. CPU time, writing in the",
        f"background included, and how much later a step returns. Target: at most {TARGET:.0f} later than the bare env's.",
        "",
        "| env and episode | wrapper | CPU | added | of it in the thread that steps | a step returns later by |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for label, (steps, make) in ENVS.items():
            for wrapper, (whole, added, own, later) in measure(
                steps, make, options.repeats, f"{scratch}/{steps}"
            ).items():
                lines.append(
                    f"| {label} | {wrapper} | {whole:.2f} | {'| |' if wrapper == 'bare' else f'{added:.2f} | {own:.2f} | {later:.2f}'} |"
                )
        lines += [
            "",
            "An episode of 25 steps is a file of its own; longer ones share its cost among more steps. mpe2 is stepped directly, as runs",
            "do; its own step varies from turn to turn by about what is measured here.",
            "",
            *reading(Path(scratch) / "25" / "npz"),
        ]
    write_page("trajectories", lines, ("pettingzoo", "mpe2", "numpy", "torch"))
