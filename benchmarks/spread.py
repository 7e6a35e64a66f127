"""What one run gains from several processes on a machine, and what more machines are expected to give: ``python benchmarks/spread.py``.

Runs of simple_spread alone, in two processes under torchrun, and with one and two rollout actors, in turns. What the first process
spends on collecting, updating and exchanging is taken on its clock and, since others may want the cores too, in CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from racers import SETTINGS, watched
from results_page import write_page

STEPS = 128
KINDS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "mpe2's own env, 8 copies": (8, 10, ()),
    "native twin, 64 copies": (64, 10, ("--native",)),
}
"""Copies, updates and flags."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WAYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "one process": ((), ()),
    "2 under torchrun": (TORCHRUN, ()),
    "1 rollout actor": ((), ("--rollout-actors", "1")),
    "2 rollout actors": ((), ("--rollout-actors", "2")),
}
"""How Python is started, and flags."""
PARTS = [
    f"{part}{clock}" for part in ("collect", "update", "gradients", "exchange") for clock in ("", "_cpu")
]
MACHINES = (2, 4, 8, 16)
LATENCY, BANDWIDTH = 100e-6, 10e9 / 8
"""Of the network between machines that is assumed, in seconds and bytes a second."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Path(options.child[0]), options.child[1:])
        return
    lines = [
        "# One run in several processes",
        "",
        f"`python benchmarks/spread.py --repeats {options.repeats}`: simple_spread, 3 agents, {STEPS} steps an update, 4 epochs, 4",
        "minibatches, 2x64 tanh. Medians over the updates after the first, of medians over runs in turns. Milliseconds are of the first",
        "process, for 1024 env steps: by the clock, and in brackets of CPU time, which says more where others want the cores too.",
        "*Exchanged* is its share of time in what goes between processes under torchrun, waiting for the other one included.",
        "",
        "| | | env-steps/s | collect ms | update ms | exchanged |",
        "|---|---|---|---|---|---|",
    ]
    measured: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in KINDS:
            runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for repeat in range(options.repeats):
                for way in WAYS if repeat % 2 else reversed(WAYS):
                    runs[way].append(measure(kind, way, repeat, Path(scratch)))
            measured[kind] = {way: medians(of_way) for way, of_way in runs.items()}
            for way, figures in measured[kind].items():
                lines.append(row(kind, way, figures))
    write_page("spread", [*lines, *expectations(measured)], ("marl-tools", "mpe2", "torch", "ray", "numpy"))


def measure(kind: str, way: str, seed: int, scratch: Path) -> dict[str, float]:
    """One run; seconds an update."""
    copies, updates, flags = KINDS[kind]
    start, more = WAYS[way]
    out = scratch / f"{time.time_ns()}"
    counts = (
        "--timesteps",
        copies * STEPS * updates,
        "--num-envs",
        copies,
        "--rollouts",
        STEPS,
        "--seed",
        seed,
    )
    train = ("train", "simple_spread", *counts, *SETTINGS, *flags, *more, "--out", out)
    watched([str(part) for part in (sys.executable, *start, __file__, "--child", out, *train)])
    rows = json.loads((out / "watched.json").read_text())[1:]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def child(out: Path, command: list[str]) -> None:
    """Run the command line with a watch on its parts; what they took in each update goes to the run folder."""
    from marl_tools.cli import main as command_line
    from marl_tools.training.ippo import IPPO
    from marl_tools.training.learner import GroupLearner
    from marl_tools.training.ranks import Ranks

    rows: list[dict[str, float]] = []

    def watch(owner: type, method: str, name: str) -> None:
        inner = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if method == "collect":
                rows.append(dict.fromkeys(PARTS, 0.0))
            started, cpu = time.perf_counter(), time.process_time()
            try:
                return inner(*args, **kwargs)
            finally:
                if rows:
                    rows[-1][name] += time.perf_counter() - started
                    rows[-1][f"{name}_cpu"] += time.process_time() - cpu

        setattr(owner, method, wrapped)

    watch(IPPO, "collect", "collect")
    watch(IPPO, "update", "update")
    # The only work of an update that is divided.
    watch(GroupLearner, "_accumulate", "gradients")
    for method in ("gather", "add_up", "tell"):
        watch(Ranks, method, "exchange")
    code = command_line(command)
    if os.environ.get("RANK", "0") == "0":
        (out / "watched.json").write_text(json.dumps(rows))
    raise SystemExit(code)


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def row(kind: str, way: str, figures: dict[str, float]) -> str:
    steps = KINDS[kind][0] * STEPS
    seconds = figures["collect"] + figures["update"]
    scale = 1000 * 1024 / steps
    parts = [
        f"{figures[part] * scale:.1f} ({figures[f'{part}_cpu'] * scale:.1f})"
        for part in ("collect", "update")
    ]
    share = f"{figures['exchange'] / seconds:.0%}" if way == "2 under torchrun" else ""
    return f"| {kind} | {way} | {steps / seconds:,.0f} | {' | '.join(parts)} | {share} |"


def expectations(measured: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """What a simple model of these figures gives for processes that nobody has measured."""
    lines = [
        "",
        "## What more machines are expected to give",
        "",
        "*Expected, not measured.* Of the CPU time that an update takes with its rollout, in one process and in each of two under torchrun, a",
        "part s is the same in both (noise, advantages, normalisers, the optimiser, packing and unpacking what is exchanged) and a part d is",
        "divided: s + d and s + d / 2. With P processes on as many machines, each with a free core, an update is then taken to need",
        "",
        "    s  +  d / P  +  rollout / bandwidth  +  16 gradient sums of 2 (P - 1) messages, one after the other",
        "",
        f"on a network with a latency of {LATENCY * 1e6:.0f} microseconds and {BANDWIDTH * 8 / 1e9:.0f} Gbit/s. Larger networks and"
        " costlier envs have more to divide, more",
        "copies too, since s grows slower than d.",
        "",
        "| | s ms | d ms | " + " | ".join(f"{machines} machines" for machines in MACHINES) + " |",
        "|---|---|---|" + "---|" * len(MACHINES),
    ]
    for kind, ways in measured.items():
        once, twice = (
            ways[way]["collect_cpu"] + ways[way]["update_cpu"] for way in ("one process", "2 under torchrun")
        )
        divided = max(0.0, 2 * (once - twice))
        same = once - divided
        cells = [f"{1000 * same:.0f}", f"{1000 * divided:.0f}"]
        for machines in MACHINES:
            gain = once / (same + divided / machines + sending(kind, machines))
            # Each needs a copy of its own.
            cells.append(f"{gain:.1f} times" if machines <= KINDS[kind][0] else "")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def sending(kind: str, machines: int) -> float:
    """Seconds on the wire in an update; a row of an agent holds 18 observed numbers and 40 bytes beside."""
    rows, bytes_a_row, gradient_steps, gradient = 3 * KINDS[kind][0] * STEPS, 18 * 4 + 40, 16, 12_000 * 4
    rollout = rows * bytes_a_row * (machines - 1) / machines / BANDWIDTH
    return rollout + gradient_steps * (2 * (machines - 1) * LATENCY + 2 * gradient / BANDWIDTH)


if __name__ == "__main__":
    main()
