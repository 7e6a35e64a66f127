"""Vector envs side by side: ``python benchmarks/vector.py [--rounds 15]``.

8 copies of mpe2 simple_spread, stepped with random actions and nothing else, by ours (serial and in workers, by PettingZoo's
turns and directly), by SuperSuit's and, in an environment of its own, by AgileRL's; then whole rollouts of the trainer, in which a network chooses the actions. All
contestants are open at once and take turns, one stretch each a round; a row is the median over the rounds. CPU time is that of
all processes of a contestant together: on a machine that others use too it says more than wall time does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mpe2 import simple_spread_v3
from racers import HERE, PEERS, watched
from results_page import write_page

from marl_tools.core.factory import EnvFactory
from marl_tools.training.ippo import IPPO, IPPOConfig
from marl_tools.vector import SerialVectorEnv, WorkerVectorEnv

COPIES, AGENTS, STEPS = 8, 3, 64
DIRECT = EnvFactory(make_env="mpe2.simple_spread_v3:parallel_env")
TURNS = EnvFactory(make_env="mpe2.simple_spread_v3:parallel_env", direct=False)
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Contestant:
    """Something that plays `STEPS` steps of all copies when it is called, and the processes that it does so in."""

    def __init__(self, make: Callable[[], tuple[Callable[[], None], Callable[[], Any]]]) -> None:
        before = set(multiprocessing.active_children())
        self.play, self.close = make()
        self.pids = [os.getpid(), *(child.pid for child in set(multiprocessing.active_children()) - before)]
        self.rates: list[float] = []
        self.cpu: list[float] = []
        self.play()

    def round(self) -> None:
        cpu, start = self._cpu_seconds(), time.perf_counter()
        self.play()
        env_steps = STEPS * COPIES
        self.rates.append(env_steps / (time.perf_counter() - start))
        self.cpu.append((self._cpu_seconds() - cpu) / env_steps * 1e6)

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(_cpu_of(pid) for pid in self.pids[1:])


def _cpu_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def stepping(make_envs: Callable[[], Any]) -> Callable[[], Any]:
    """One of our vector envs with fixed random actions."""

    def make() -> Any:
        envs = make_envs()
        envs.reset(0)
        actions = {"agent": np.random.default_rng(0).integers(5, size=(COPIES, AGENTS))}

        def play() -> None:
            for _ in range(STEPS):
                envs.step(actions)

        return play, envs.close

    return make


def supersuit(processes: int) -> Callable[[], Any]:
    def make() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import supersuit

            env = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
            envs = supersuit.concat_vec_envs_v1(env, COPIES, num_cpus=processes, base_class="gymnasium")
        envs.reset(seed=0)
        actions = np.random.default_rng(0).integers(5, size=COPIES * AGENTS)

        def play() -> None:
            for _ in range(STEPS):
                envs.step(actions)

        return play, envs.close

    return make


def collecting(make_envs: Callable[[], Any]) -> Callable[[], Any]:
    """Rollouts as the trainer collects them, without its updates."""

    def make() -> Any:
        envs = make_envs()
        trainer = IPPO(envs, IPPOConfig(rollouts=STEPS), seed=0, total_frames=10**6)
        return trainer.collect, envs.close

    return make


def agilerl(steps: int = 300) -> float:
    """Env-steps/s of AgileRL's vector env, a process a copy."""
    peer = next(peer for peer in PEERS if peer.name == "AgileRL")
    script = HERE / "peers" / "step_agilerl.py"
    command = [str(part) for part in (peer.python(), script, COPIES, steps)]
    printed, _, _ = watched(command, variables={"SDL_VIDEODRIVER": "dummy"})
    return float(printed.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    ours: dict[str, Callable[[], Any]] = {
        "serial": lambda: SerialVectorEnv(DIRECT, COPIES),
        "1 worker": lambda: WorkerVectorEnv(DIRECT, COPIES, 1),
        "2 workers": lambda: WorkerVectorEnv(DIRECT, COPIES, 2),
    }
    races = {
        "stepping, PettingZoo's turns": {
            "serial": stepping(lambda: SerialVectorEnv(TURNS, COPIES)),
            "1 worker": stepping(lambda: WorkerVectorEnv(TURNS, COPIES, 1)),
            "2 workers": stepping(lambda: WorkerVectorEnv(TURNS, COPIES, 2)),
            "SuperSuit, in this process": supersuit(0),
            "SuperSuit, 2 processes": supersuit(2),
        },
        "stepping, directly": {name: stepping(make) for name, make in ours.items()},
        "collecting, directly": {
            **{name: collecting(make) for name, make in ours.items()},
            "2 workers, pipeline": collecting(lambda: WorkerVectorEnv(DIRECT, COPIES, 2, pipeline=True)),
        },
    }
    lines = [
        "# Vector envs side by side",
        "",
        f"`python benchmarks/vector.py --rounds {rounds}`: {COPIES} copies of mpe2 simple_spread, {AGENTS} agents, {rounds} "
        f"rounds of {STEPS} steps each, contestants in turn, one torch thread. Median, and lowest to highest.",
    ]
    for title, contestants in races.items():
        field = {name: Contestant(make) for name, make in contestants.items()}
        for _ in range(rounds):
            for contestant in field.values():
                contestant.round()
        lines += [
            "",
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| | env-steps/s | CPU microseconds an env-step |",
            "|---|---|---|",
        ]
        for name, contestant in field.items():
            contestant.close()
            rates = contestant.rates
            lines.append(
                f"| {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) | "
                f"{statistics.mean(contestant.cpu):,.0f} |"
            )
    rates = [agilerl() for _ in range(max(1, rounds // 5))]
    lines += [
        "",
        "## AgileRL, 8 processes, PettingZoo's turns",
        "",
        f"{statistics.median(rates):,.0f} env-steps/s ({min(rates):,.0f} to {max(rates):,.0f}) with random actions, in {len(rates)} runs",
        "of its own after the others.",
    ]
    write_page("vector", lines, ["mpe2", "pettingzoo", "supersuit", "numpy", "torch"])


if __name__ == "__main__":
    main()
