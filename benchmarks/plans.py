"""What a plan adds to its runs: ``python benchmarks/plans.py --out DIR``, then again with ``--page``.

Many tiny runs, each in a process of its own; the wall time of the whole plan beside the sum of the runs' own. ``--alone`` runs of
the same settings are started by ``marl-tools train`` for comparison.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from results_page import write_page

from marl_tools.bench.executors import Event, Started
from marl_tools.bench.local_executor import LocalExecutor
from marl_tools.bench.plan import Plan
from marl_tools.bench.runner import run_plan
from marl_tools.core.logging import configure_logging

SETTINGS: dict[str, Any] = {
    "native": True,
    "timesteps": 4096,
    "num_envs": 16,
    "rollouts": 32,
    "final_policy_eval_episodes": 10,
    "video_episodes": 0,
}


class Timed(LocalExecutor):
    """The default executor, and the seconds that it took to get ready for the first run."""

    ready = 0.0

    def run(self, jobs: Any, on_event: Any) -> None:
        begun = time.perf_counter()

        def tell(event: Event) -> None:
            if isinstance(event, Started) and not self.ready:
                self.ready = time.perf_counter() - begun
            on_event(event)

        super().run(jobs, tell)


def measure_plan(folder: Path, runs: int) -> dict[str, Any]:
    plan = Plan(
        name="tiny",
        settings=SETTINGS,
        methods={"shared": {}, "separate": {"share": "none"}},
        tasks={"crossing": {}},
        seeds=tuple(range(runs // 2)),
    )
    shutil.rmtree(folder, ignore_errors=True)
    executor = Timed()
    started = time.perf_counter()
    status = run_plan(plan, folder, executor=executor)
    wall = time.perf_counter() - started
    own = [run.seconds for run in status.runs]
    return {
        "runs": len(own),
        "failures": len(status.failures),
        "wall": wall,
        "own": sum(own),
        "median": statistics.median(own),
        "ready": executor.ready,
    }


def measure_alone(folder: Path, runs: int) -> dict[str, Any]:
    """Wall seconds of a run that is started by itself."""
    flags = [
        "--native",
        "--timesteps",
        "4096",
        "--num-envs",
        "16",
        "--rollouts",
        "32",
        "--video-episodes",
        "0",
    ]
    walls = []
    for seed in range(runs):
        out = folder / f"s{seed}"
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, "-m", "marl_tools", "train", "crossing", *flags]
        started = time.perf_counter()
        subprocess.run([*command, "--seed", str(seed), "--out", str(out)], check=True, capture_output=True)
        walls.append(time.perf_counter() - started)
        assert (out / "done.json").exists(), out
    return {"runs": runs, "median": statistics.median(walls)}


def page(rows: list[dict[str, Any]]) -> None:
    plans = [row for row in rows if "own" in row]
    alone = [row for row in rows if "own" not in row]
    lines = [
        "# What a plan adds to its runs",
        "",
        "`python benchmarks/plans.py`: tiny runs of crossing (native, 4,096 env steps, 10 evaluation episodes before and after, no "
        "film), one at a time, each in a process of its own. *Own time* is measured in that process, from the run's first line to "
        "its last; *added* is all else: the server that processes are forked from, starting and ending them, looking for what "
        "is to do, `plan.json` and `summary.json`. *Ready*: the part of it before the first run began, once a plan; *rest*: the others, a "
        "run.",
        "",
        "| runs | wall, s | sum of own times, s | median of a run, s | added | ready, s | rest, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in plans:
        added = row["wall"] - row["own"]
        lines.append(
            f"| {row['runs']} | {row['wall']:.1f} | {row['own']:.1f} | {row['median']:.2f} | {100 * added / row['own']:.1f} % | "
            f"{row['ready']:.1f} | {1000 * (added - row['ready']) / row['runs']:.0f} |"
        )
    for row in alone:
        lines += [
            "",
            f"The same run started by itself with `marl-tools train` takes {row['median']:.1f} s, imports included (median of "
            f"{row['runs']}).",
        ]
    write_page("plans", lines, ["torch", "numpy"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="scratch folder")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--alone", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    options = parser.parse_args()
    results = options.out / "plans.json"
    if not options.page:
        configure_logging(min_level="ERROR")
        options.out.mkdir(parents=True, exist_ok=True)
        rows = [
            measure_plan(options.out / "plan", options.runs),
            measure_alone(options.out / "alone", options.alone),
        ]
        earlier = json.loads(results.read_text()) if results.exists() else []
        results.write_text(json.dumps([*(row for row in earlier if "own" in row), *rows]))
    page(json.loads(results.read_text()))


if __name__ == "__main__":
    main()
