"""Returns on simple_spread, ours beside Stable-Baselines3 + SuperSuit: ``python benchmarks/returns.py``.

Same environment (3 agents, 25 cycles, discrete), same budget and the same settings for both: 8 envs x 128 steps, 4 epochs,
4 minibatches, learning rate 2.5e-4, two tanh layers of 64, shared parameters, gamma 0.99, lambda 0.95, entropy
0.01, one torch thread. Runs alternate, one seed of each after the other. Stable-Baselines3 lives in an environment of
its own, made at the first run, since its pins are not ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from racers import LAST, SB3, Ours
from results_page import write_page

TIMESTEPS = 200_000
TARGET = -20.5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--timesteps", type=int, default=TIMESTEPS)
    options = parser.parse_args()
    racers = (Ours(name="marl-tools"), SB3)
    rows: dict[str, list[dict[str, float]]] = {racer.name: [] for racer in racers}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in options.seeds:
            for racer in racers:
                rows[racer.name].append(racer.run(seed, options.timesteps, Path(scratch)))
                print(json.dumps({racer.name: rows[racer.name][-1]}), file=sys.stderr)
    lines = [
        "# Returns on simple_spread",
        "",
        f"`python benchmarks/returns.py`: mean return (episode sum, mean over agents) over the last {LAST} training",
        f"episodes at {options.timesteps:,} env steps, seed by seed; env-steps/s while training, medians over the seeds.",
        "8 envs x 128 steps, 4 epochs, 4 minibatches, lr 2.5e-4, 2x64 tanh, shared parameters, one torch thread; runs",
        f"alternate. Aim: at least {TARGET} on each seed. (Random play earns about -26.6, standing still about -23.9.)",
        "",
        "| trainer | "
        + " | ".join(f"seed {seed}" for seed in options.seeds)
        + " | env-steps/s | update, % of training |",
        "|---|" + "---|" * (len(options.seeds) + 2),
    ]
    for name, runs in rows.items():
        rate = statistics.median(run["steps_per_second"] for run in runs)
        share = 100 * statistics.median(run["update_share"] for run in runs)
        cells = " | ".join(f"{run['return']:.2f}" for run in runs)
        lines.append(f"| {name} | {cells} | {rate:.0f} | {share:.0f} |")
    reached = all(run["return"] >= TARGET for run in rows["marl-tools"])
    lines += ["", f"Aim {'reached' if reached else 'missed'} on the seeds shown."]
    lines += ["", "The peer reads a truncation as a termination, which costs it return on this task."]
    write_page("returns", lines, ("marl-tools", "pettingzoo", "mpe2", "torch", "numpy"))


if __name__ == "__main__":
    main()
