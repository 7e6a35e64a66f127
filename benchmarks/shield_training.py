"""What a shield costs while training: ``python benchmarks/shield_training.py``.

Updates (collect and learn, refreshes of the tables included) of two trainers on `crossing`, one with a ledger shield and one
without, in turns; ratios of the medians and of the means of their CPU times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from results_page import write_page

from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.native import make_envs
from marl_tools.experiment.safety import make_shield
from marl_tools.training.ippo import IPPO
from marl_tools.vector import SerialVectorEnv

WARM_UP = 5
AIM = 80
RUNS: dict[str, dict[str, Any]] = {
    "`marl-tools train crossing`, as it is": {},
    "the same with `--native`": {"native": True},
    "native, 32 envs, 64 steps": {"native": True, "num_envs": 32, "rollouts": 64},
    "native, 128 envs, 64 steps": {"native": True, "num_envs": 128, "rollouts": 64},
    "native, 512 envs, 64 steps": {"native": True, "num_envs": 512, "rollouts": 64},
}


def trainer(shield: str, **settings: Any) -> IPPO:
    config = RunConfig.from_flat({"env": "crossing", "shield": shield, **settings})
    factory, count = config.factory(), config.num_envs
    envs = make_envs(factory, count, native=True) if config.native else SerialVectorEnv(factory, count)
    guard = make_shield(config.safety, factory(), envs.groups, num_envs=count, gamma=config.ippo.gamma)
    return IPPO(envs, config.ippo, seed=0, total_frames=config.timesteps, shield=guard)


def measure(settings: dict[str, Any], updates: int) -> tuple[list[float], list[float], int]:
    """CPU seconds of each update without and with the shield, from the first one on; and the env steps of one."""
    trainers = [trainer(shield, **settings) for shield in ("none", "ledger")]
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(updates + WARM_UP):
        for times, one in zip(seconds, trainers, strict=True):
            start = time.process_time()
            one.update(one.collect())
            times.append(time.process_time() - start)
    return *seconds, trainers[0].frames_per_update


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# What a shield costs while training",
        "",
        f"`python benchmarks/shield_training.py`: crossing with and without `--shield ledger`, CPU time of {options.updates} updates each, in",
        f"turns, after {WARM_UP} more; refreshes of the tables included. Medians leave rare dear refreshes out, means hold everything.",
        f"Aim: at least {AIM} % of the throughput without a shield.",
        "",
        "| run | ms an update without: median, mean | with | throughput kept: median, % | mean, % | env steps per CPU-second with, mean |",
        "|---|---|---|---|---|---|",
    ]
    reached = []
    for name, settings in RUNS.items():
        plain, shielded, frames = measure(settings, options.updates)
        (low, high), (mean, dear) = (
            [figure(times[WARM_UP:]) for times in (plain, shielded)]
            for figure in (statistics.median, statistics.fmean)
        )
        lines.append(
            f"| {name} | {low * 1e3:.0f}, {mean * 1e3:.0f} | {high * 1e3:.0f}, {dear * 1e3:.0f} | {100 * low / high:.0f} "
            f"| {100 * mean / dear:.0f} | {frames / dear:,.0f} |"
        )
        if 100 * low >= AIM * high and 100 * mean >= AIM * dear:
            reached.append(name)
    lines += ["", f"By median and mean, the aim is reached by: {'; '.join(reached) or 'none'}."]
    write_page("shield_training", lines, ("marl-tools", "torch", "numpy"))


if __name__ == "__main__":
    main()
