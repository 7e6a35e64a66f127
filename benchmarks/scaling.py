"""Cost of training as the work grows: ``python benchmarks/scaling.py``.

simple_spread with 1 to 64 copies and with 3 to 48 agents, in mpe2's own envs and in their native twin, and the memory of one
long run. Network and settings are those of `racers.py`; runs are short, in turns, and medians are given.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from racers import Ours
from results_page import write_page

ENVS = (1, 2, 4, 8, 16, 32, 64)
AGENTS = (3, 6, 12, 24, 48)
NATIVE_ENVS = 64


def racers() -> dict[str, list[Ours]]:
    """What is run, by table."""
    return {
        "Copies, 3 agents, mpe2's own env": [
            Ours(name=f"{n} envs", num_envs=n, steps=128 * max(2 * n, 16)) for n in ENVS
        ],
        "Copies, 3 agents, native twin": [
            Ours(name=f"{n} envs", num_envs=n, flags=("--native",), steps=128 * max(8 * n, 64)) for n in ENVS
        ],
        "Agents, 8 copies, mpe2's own env": [
            Ours(name=f"{n} agents", agents=n, steps=1024 * max(1, 12 // n)) for n in AGENTS
        ],
        f"Agents, {NATIVE_ENVS} copies, native twin": [
            Ours(
                name=f"{n} agents",
                agents=n,
                num_envs=NATIVE_ENVS,
                flags=("--native",),
                steps=128 * NATIVE_ENVS * max(2, 24 // n),
            )
            for n in AGENTS
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--long", type=int, default=2_000_000, help="env steps of the long native run")
    options = parser.parse_args()
    lines = [
        "# How the cost of training grows",
        "",
        f"`python benchmarks/scaling.py --repeats {options.repeats}`: simple_spread, 128 steps an update, 4 epochs, 4 minibatches, 2x64",
        "tanh, one process. Microseconds of wall time per agent-step (medians over the repeats), collecting and updating apart;",
        "memory is the run's peak. In mpe2's own env every agent sees and may touch every other, so an agent's step itself",
        "costs in proportion to their number.",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for title, table in racers().items():
            runs: dict[str, list[dict[str, float]]] = {racer.name: [] for racer in table}
            for seed in range(options.repeats):
                for racer in table:
                    assert racer.steps is not None
                    runs[racer.name].append(racer.run(seed, racer.steps, Path(scratch)))
                    print(title, racer.name, runs[racer.name][-1], flush=True)
            lines += [
                "",
                f"## {title}",
                "",
                "| | env-steps/s | agent-steps/s | us per agent-step | collecting | updating | MB |",
                "|---|---|---|---|---|---|---|",
            ]
            for racer in table:
                figures = runs[racer.name]
                rate = statistics.median(run["steps_per_second"] for run in figures)
                share = statistics.median(run["update_share"] for run in figures)
                cost = 1e6 / rate / racer.agents
                memory = statistics.median(run["megabytes"] for run in figures)
                lines.append(
                    f"| {racer.name} | {rate:,.0f} | {rate * racer.agents:,.0f} | {cost:.1f} | {cost * (1 - share):.1f} | "
                    f"{cost * share:.1f} | {memory:.0f} |"
                )
        if options.long:
            run = Ours(name="long", num_envs=256, flags=("--native",)).run(0, options.long, Path(scratch))
            lines += [
                "",
                "## Memory over a long run",
                "",
                f"{options.long:,} env steps in 256 copies of the native twin: {run['megabytes_early']:.0f} MB in its first half and "
                f"{run['megabytes_late']:.0f} MB in its second (medians of samples twice a second, start and end left out).",
            ]
    write_page("scaling", lines, ("marl-tools", "mpe2", "torch", "numpy"))


if __name__ == "__main__":
    main()
