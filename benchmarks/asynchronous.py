"""What collecting beside updates is worth on a machine: ``python benchmarks/asynchronous.py``.

Whole runs of simple_spread with and without ``--asynchronous``, in turns; medians and ranges of env-steps per second.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from racers import Ours
from results_page import write_page

KINDS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "native twin, 64 copies": (64, 16, ("--native",)),
    "mpe2's own env, 8 copies, 2 workers": (8, 12, ("--workers", "2")),
    "mpe2's own env, 8 copies, this process": (8, 12, ()),
}
"""Copies, updates and flags."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    lines = [
        "# Collecting beside updates",
        "",
        f"`python benchmarks/asynchronous.py --repeats {options.repeats}`: simple_spread, 3 agents, 128 steps an update, 4 epochs, 4",
        "minibatches, 2x64 tanh; runs with and without `--asynchronous` in turns. Env-steps per second: medians, and ranges in",
        "brackets.",
        "",
        "| | synchronous | asynchronous | ratio of medians |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for kind, (copies, updates, flags) in KINDS.items():
            pair = [
                Ours(name="synchronous", num_envs=copies, flags=flags),
                Ours(name="asynchronous", num_envs=copies, flags=(*flags, "--asynchronous")),
            ]
            rates: dict[str, list[float]] = {racer.name: [] for racer in pair}
            for repeat in range(options.repeats):
                for racer in pair if repeat % 2 else reversed(pair):
                    figures = racer.run(repeat, 128 * copies * updates, Path(scratch))
                    rates[racer.name].append(figures["steps_per_second"])
            before, after = (rates[racer.name] for racer in pair)
            ratio = statistics.median(after) / statistics.median(before)
            lines.append(f"| {kind} | {shown(before)} | {shown(after)} | {ratio:.2f} |")
    write_page("asynchronous", lines, ("marl-tools", "mpe2", "torch", "numpy"))


def shown(rates: list[float]) -> str:
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


if __name__ == "__main__":
    main()
