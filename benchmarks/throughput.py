"""The race on simple_spread: ``python benchmarks/throughput.py --out runs/throughput``, then again with ``--page``.

Every trainer plays the same env (3 agents, 25 cycles, discrete) with the same settings (see `racers.py`), each in an
environment of its own. Rates come from short runs that alternate, one of each trainer after the other, so that a busy
moment of the machine hits all alike; returns from whole runs, also alternating. Finished runs are lines of
``<out>/runs.jsonl`` and are skipped, so that it can be stopped and called again: ``--rates 5`` is five rounds of short
runs, ``--returns 5`` five seeds. ``--only`` picks trainers by a part of their name.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from racers import LAST, PEERS, Ours, Peer
from results_page import write_page
from scipy.stats import permutation_test

from marl_tools.bench.statistics import holm

SHORT, LONG = 20_480, 200_000
PLAIN = Ours(name="marl-tools")
OURS = (
    PLAIN,
    Ours(name="marl-tools, 2 workers", flags=("--workers", "2")),
    Ours(name="marl-tools, 2 workers, pipelined", flags=("--workers", "2", "--pipeline")),
    Ours(name="marl-tools, PettingZoo's own step", flags=("--no-direct",)),
)
NATIVE = tuple(
    Ours(name=f"native twin, {envs} envs{name}", flags=("--native", *flags), num_envs=envs, steps=steps)
    for envs, steps in ((8, 100_000), (64, 300_000), (256, 600_000))
    for name, flags in (("", ()), (", asynchronous", ("--asynchronous",)))
)
BARE = {"PettingZoo's own step": False, "direct step": True}


def bare_rate(direct: bool, steps: int = 6000, processes: int = 2) -> float:
    """Env-steps/s of the env alone, with random actions, on as many processes as there are cores."""
    command = [sys.executable, __file__, "--bare", str(steps), *(["--direct"] if direct else [])]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(float(process.communicate()[0]) for process in started)


def step_alone(steps: int, direct: bool) -> float:
    """Env-steps/s of one env in this process."""
    from marl_tools.core.factory import EnvFactory

    env = EnvFactory(
        make_env="mpe2.simple_spread_v3:parallel_env", kwargs={"N": 3, "max_cycles": 25}, direct=direct
    )()
    env.reset(seed=0)
    actions = [{agent: (t + k) % 5 for k, agent in enumerate(env.agents)} for t in range(5)]
    started = time.perf_counter()
    for t in range(steps):
        env.step(actions[t % 5])
        if not env.agents:
            env.reset()
    return steps / (time.perf_counter() - started)


def planned(rates: int, returns: int, only: Sequence[str]) -> Iterator[tuple[str, Ours | Peer, int, int]]:
    """Kind, trainer, seed and env steps of every run, in turns."""
    racers = [racer for racer in (*OURS, *PEERS, *NATIVE) if not only or any(o in racer.name for o in only)]
    for seed in range(rates):
        for racer in racers:
            yield "rate", racer, seed, getattr(racer, "steps", None) or SHORT
    for seed in range(returns):
        for racer in racers:
            yield "return", racer, seed, LONG


def measure(options: argparse.Namespace, done: Path) -> None:
    """Run what is planned and not there yet."""
    have = {(row["kind"], row["name"], row["seed"]) for row in rows_of(done)}
    for seed in range(options.rates):
        for name, direct in BARE.items():
            if ("bare", name, seed) not in have and not options.only:
                append(
                    done,
                    {"kind": "bare", "name": name, "seed": seed, "steps_per_second": bare_rate(direct)},
                )
    for kind, racer, seed, steps in planned(options.rates, options.returns, options.only):
        if (kind, racer.name, seed) in have:
            continue
        try:
            figures = racer.run(seed, steps, options.out)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{racer.name}: {error}", file=sys.stderr)
            continue
        append(done, {"kind": kind, "name": racer.name, "seed": seed, **figures})


def append(path: Path, row: dict[str, Any]) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def page(rows: list[dict[str, Any]]) -> list[str]:
    """The tables of what has been run."""

    def of(kind: str, name: str, figure: str) -> list[float]:
        return [row[figure] for row in rows if (row["kind"], row["name"]) == (kind, name)]

    fastest = max(statistics.median(of("rate", p.name, "steps_per_second") or [0.0]) for p in PEERS)
    two_cores = {name: statistics.median(of("bare", name, "steps_per_second") or [0.0]) for name in BARE}
    runs = [len(of("rate", racer.name, "steps_per_second")) for racer in (*OURS, *PEERS, *NATIVE)]
    rounds = min(filter(None, runs), default=0)
    lines = [
        "# Throughput on simple_spread",
        "",
        "`python benchmarks/throughput.py`: mpe2 simple_spread, 3 agents, 25 cycles, discrete; 8 envs x 128 steps, 4 epochs, 4",
        f"minibatches, 2x64 tanh. Rates: medians over at least {rounds} runs in turns of {SHORT:,} env steps (lowest to highest; more steps with",
        f"the twin), start-up not counted. Return: episode sum, mean over agents, last {LAST} training episodes at {LONG:,} env steps, mean over seeds",
        "(lowest to highest). p: one-sided permutation test that the trainer's returns are higher than `marl-tools`', Holm-",
        "corrected over the peers. Memory: the most that the run's processes held together.",
        "",
        "| trainer | env-steps/s | agent-steps/s | times the fastest peer | collect, ms per 1024 steps | update, ms per 1024 steps | MB | return | seeds | p, higher than ours |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ours = of("return", PLAIN.name, "return")
    tested = [p_higher(of("return", p.name, "return"), ours) for p in PEERS]
    higher = dict(zip((p.name for p in PEERS), holm(tested), strict=True))
    for racer in (*OURS, *PEERS, *NATIVE):
        rates = of("rate", racer.name, "steps_per_second")
        if not rates:
            continue
        rate = statistics.median(rates)
        update = statistics.median(of("rate", racer.name, "update_share"))
        returns = of("return", racer.name, "return")
        lines.append(
            f"| {racer.name} | {rate:,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) | {3 * rate:,.0f} | {rate / fastest:.2f} | "
            f"{1024e3 / rate * (1 - update):.0f} | {1024e3 / rate * update:.0f} | "
            f"{statistics.median(of('rate', racer.name, 'megabytes')):.0f} | "
            + (
                f"{statistics.fmean(returns):.2f} ({min(returns):.2f} to {max(returns):.2f}) | {len(returns)} | "
                if returns
                else "- | 0 | "
            )
            + (f"{higher[racer.name]:.3f} |" if higher.get(racer.name, math.nan) >= 0 else "- |")
        )
    lines += ["", "What two cores could do if policy and update were free, env alone in two processes:", ""]
    for name, rate in two_cores.items():
        if rate:
            shares = ", ".join(
                f"{racer.name} reaches {100 * statistics.median(rates) / rate:.0f} %"
                for racer in OURS
                if (rates := of("rate", racer.name, "steps_per_second"))
            )
            lines.append(f"- {name}: {rate:,.0f} env-steps/s; {shares}.")
    lines += [
        "",
        "AgileRL's network has one layer more (its encoder, latent and head cannot be fewer), and its 8 envs run in 8",
        "processes. skrl's PettingZoo wrapper plays one copy: 1024 steps of it make a rollout. PufferLib 3.0 and 2.0.6 could",
        "not be installed: their build downloads files. The plain PPO treats a truncation as an end, as the script it follows.",
        "With 8 copies workers are slower than one process: a vector step is short beside waking them (see vector.md).",
        "The native twin plays the same episodes as mpe2, to the bit; with --asynchronous its updates include waiting for the",
        "rollout collected beside them.",
        "",
        *twin_returns(rows),
    ]
    return lines


def twin_returns(rows: list[dict[str, Any]]) -> list[str]:
    """What the twin's runs earned: with as many copies as the plain env's run, and with more in runs of more steps."""

    def by_seed(name: str) -> dict[int, float]:
        return {row["seed"]: row["return"] for row in rows if (row["kind"], row["name"]) == ("return", name)}

    plain, twin = by_seed(PLAIN.name), by_seed(NATIVE[0].name)
    both = plain.keys() & twin.keys()
    same = sum(plain[seed] == twin[seed] for seed in both)
    lines = [
        f"{NATIVE[0].name} earns exactly what {PLAIN.name} does, at {LONG:,} steps, in {same} of {len(both)} seeds. More copies mean",
        "fewer updates of the same number of steps (24 with 64 copies, 6 with 256), so the runs of which the rates are were longer:",
        "",
    ]
    for racer in NATIVE[2:]:
        short = [row for row in rows if (row["kind"], row["name"]) == ("rate", racer.name)]
        returns = [row["return"] for row in short]
        if returns:
            seconds = statistics.median(row["seconds"] for row in short)
            lines.append(
                f"- {racer.name}: {statistics.fmean(returns):.2f} ({min(returns):.2f} to {max(returns):.2f}, {len(returns)} seeds) after "
                f"{racer.steps:,} env steps, in {seconds:.0f} s with start-up and exit."
            )
    return lines


def p_higher(theirs: list[float], ours: list[float]) -> float:
    """One-sided exact permutation test on the difference of means; NaN where seeds are missing."""
    if len(theirs) < 3 or len(ours) < 3:
        return math.nan
    test = permutation_test(
        (theirs, ours), lambda a, b: statistics.fmean(a) - statistics.fmean(b), alternative="greater"
    )
    return float(test.pvalue)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="scratch folder; results stay in it")
    parser.add_argument("--rates", type=int, default=5, help="rounds of short runs")
    parser.add_argument("--returns", type=int, default=5, help="seeds of whole runs")
    parser.add_argument("--only", nargs="*", default=[], help="parts of trainers' names")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    parser.add_argument("--note", default="", help="said at the page's end, e.g. what else the machine did")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--direct", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        print(step_alone(options.bare, options.direct))
        return
    if options.out is None:
        parser.error("--out is needed")
    options.out.mkdir(parents=True, exist_ok=True)
    done = options.out / "runs.jsonl"
    if not options.page:
        measure(options, done)
    write_page(
        "throughput",
        [*page(rows_of(done)), "", options.note],
        ("marl-tools", "pettingzoo", "mpe2", "torch", "numpy"),
    )


if __name__ == "__main__":
    main()
