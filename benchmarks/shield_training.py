"""What a shield costs while training: ``python benchmarks/shield_training.py``.

Updates (collect and learn, refreshes of the tables included) of two trainers on native `crossing`, one with a ledger shield and one
without, in turns; the ratio of the medians of their CPU times.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from results_page import write_page

from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.native import make_envs
from marl_tools.experiment.safety import make_shield
from marl_tools.training.ippo import IPPO

WARM_UP = 5
AIM = 80


def trainer(num_envs: int, shield: str) -> IPPO:
    config = RunConfig.from_flat(
        {"env": "crossing", "native": True, "num_envs": num_envs, "rollouts": 64, "shield": shield}
    )
    factory = config.factory()
    envs = make_envs(factory, num_envs, native=True)
    guard = make_shield(config.safety, factory(), envs.groups, num_envs=num_envs, gamma=config.ippo.gamma)
    return IPPO(envs, config.ippo, seed=0, total_frames=10**6, shield=guard)


def measure(num_envs: int, updates: int) -> tuple[float, float]:
    """Median CPU seconds of an update without and with the shield."""
    trainers = [trainer(num_envs, shield) for shield in ("none", "ledger")]
    seconds: list[list[float]] = [[], []]
    for _ in range(updates + WARM_UP):
        for times, one in zip(seconds, trainers, strict=True):
            start = time.process_time()
            one.update(one.collect())
            times.append(time.process_time() - start)
    plain, shielded = (statistics.median(times[WARM_UP:]) for times in seconds)
    return plain, shielded


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {num_envs: measure(num_envs, options.updates) for num_envs in (32, 128, 512)}
    lines = [
        "# What a shield costs while training",
        "",
        f"`python benchmarks/shield_training.py`: native crossing, 64 steps an update, medians of CPU time over {options.updates} updates",
        f"in turns. Aim: at least {AIM} % of the throughput without a shield.",
        "",
        "| envs | ms an update without | with | throughput kept, % | env steps per CPU-second with |",
        "|---|---|---|---|---|",
    ]
    for num_envs, (plain, shielded) in figures.items():
        kept, rate = 100 * plain / shielded, num_envs * 64 / shielded
        lines.append(f"| {num_envs} | {plain * 1e3:.0f} | {shielded * 1e3:.0f} | {kept:.0f} | {rate:,.0f} |")
    reached = [str(envs) for envs, (plain, shielded) in figures.items() if 100 * plain >= AIM * shielded]
    lines += ["", f"Aim reached with {' and '.join(reached) or 'none of these numbers of'} envs."]
    write_page("shield_training", lines, ("marl-tools", "torch", "numpy"))


if __name__ == "__main__":
    main()
