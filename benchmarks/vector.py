"""Vector envs with random actions: ``python benchmarks/vector.py``.

simple_spread (3 agents, 25 cycles) in ours, SuperSuit's and AgileRL's, the last two in environments of their own. Ours log every
episode meanwhile; the others do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from racers import HERE, PEERS, SB3, watched
from results_page import write_page

from marl_tools.core.factory import EnvFactory
from marl_tools.core.types import VectorEnv
from marl_tools.envs.particles import ParticleVectorEnv, scenario_of
from marl_tools.vector import SerialVectorEnv, WorkerVectorEnv

AGILERL = next(peer for peer in PEERS if peer.name == "AgileRL")


def factory(direct: bool = True) -> EnvFactory:
    return EnvFactory(
        make_env="mpe2.simple_spread_v3:parallel_env", kwargs={"N": 3, "max_cycles": 25}, direct=direct
    )


def native(envs: int) -> VectorEnv:
    scenario = scenario_of(factory()().env)
    assert scenario is not None
    return ParticleVectorEnv(scenario, envs)


OURS: dict[str, tuple[Callable[[], VectorEnv], int]] = {
    "serial, 8 copies": (lambda: SerialVectorEnv(factory(), 8), 400),
    "serial, 8 copies, PettingZoo's own step": (lambda: SerialVectorEnv(factory(False), 8), 150),
    "2 workers, 8 copies": (lambda: WorkerVectorEnv(factory(), 8, 2), 600),
    "2 workers, 64 copies": (lambda: WorkerVectorEnv(factory(), 64, 2), 100),
    "native twin, 8 copies": (lambda: native(8), 3000),
    "native twin, 64 copies": (lambda: native(64), 1500),
    "native twin, 1024 copies": (lambda: native(1024), 300),
}
THEIRS = {
    "SuperSuit, 8 copies": (SB3, ("supersuit", 8, 0, 150)),
    "SuperSuit, 8 copies, 2 processes": (SB3, ("supersuit", 8, 2, 150)),
    "AgileRL, 8 copies, 8 processes": (AGILERL, ("agilerl", 8, 8, 200)),
}


def ours(make: Callable[[], VectorEnv], steps: int) -> float:
    """Env-steps/s after a warm-up."""
    envs = make()
    try:
        envs.reset(0)
        rng = np.random.default_rng(0)
        group = envs.groups[0]
        actions = rng.integers(0, 5, (64, envs.num_envs, len(group.agents)))
        for t in range(30):
            envs.step({group.name: actions[t % 64]})
        started = time.perf_counter()
        for t in range(steps):
            envs.step({group.name: actions[t % 64]})
        return envs.num_envs * steps / (time.perf_counter() - started)
    finally:
        envs.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in (*OURS, *THEIRS)}
    for _ in range(options.repeats):
        for name, (make, steps) in OURS.items():
            rates[name].append(ours(make, steps))
        for name, (peer, arguments) in THEIRS.items():
            script = HERE / "peers" / "step_vector.py"
            command = [str(part) for part in (peer.python(), script, *arguments)]
            printed, _, _ = watched(command, Path("."), {"SDL_VIDEODRIVER": "dummy"})
            rates[name].append(float(printed.splitlines()[-1]))
        print(json.dumps({name: round(found[-1]) for name, found in rates.items()}), file=sys.stderr)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    fastest = max(medians[name] for name in THEIRS)
    lines = [
        "# Vector envs",
        "",
        f"`python benchmarks/vector.py --repeats {options.repeats}`: simple_spread, 3 agents, 25 cycles, random actions, resets included;",
        "env-steps/s, medians over alternating rounds (lowest to highest). Ours keep a log of every episode.",
        "",
        "| vector env | env-steps/s | times the fastest peer |",
        "|---|---|---|",
    ]
    for name, rate in medians.items():
        found = rates[name]
        lines.append(
            f"| {name} | {rate:,.0f} ({min(found):,.0f} to {max(found):,.0f}) | {rate / fastest:.2f} |"
        )
    write_page("vector", lines, ("marl-tools", "pettingzoo", "mpe2", "numpy"))


if __name__ == "__main__":
    main()
