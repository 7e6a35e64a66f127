"""How long the page of many runs takes, and how large it is: ``python benchmarks/report.py [--runs 200]``.

One small plan of 2 methods on 1 task with 2 seeds is really run. Its runs are then copied under the ids of further seeds, so that the
folder is that of a plan of so many runs: the report reads, compares and draws each of them as any other, but seeds repeat.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results_page import write_page

from marl_tools.bench.plan import Plan
from marl_tools.bench.plan_folder import run_folder, save_plan
from marl_tools.experiment.run import train

PLAN = Plan(
    name="many",
    settings={
        "native": True,
        "num_envs": 16,
        "rollouts": 32,
        "timesteps": 8192,
        "final_policy_eval_episodes": 50,
    },
    methods={"ippo": {}, "ledger": {"shield": "ledger"}},
    tasks={"crossing": {}},
    seeds=(0, 1),
)
MEASURE = """
import json, resource, sys, time
from marl_tools.bench.report import write_report
wall, cpu = time.perf_counter(), time.process_time()
page = write_report(sys.argv[1], videos=sys.argv[2])
print(json.dumps({
    "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "bytes": page.stat().st_size,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 20, 200])
    parser.add_argument("--repeats", type=int, default=3)
    call = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = make_runs(Path(scratch) / "real")
        rows = []
        for count in call.runs:
            folder = copied(runs, count, Path(scratch) / f"plan-{count}")
            episodes = sum(line_count(path) for path in folder.glob("runs/*/episodes.jsonl"))
            for videos in ("none", "embed"):
                measured = [measure(folder, videos) for _ in range(call.repeats)]
                middle = {key: statistics.median(row[key] for row in measured) for key in measured[0]}
                worst = max(row["wall"] for row in measured)
                rows.append((count, episodes, videos, middle, worst))
    write_page("report", page(rows, call.repeats), ("marl-tools", "plotly", "jinja2", "numpy"))


def make_runs(folder: Path) -> list[Path]:
    """The runs that are really made."""
    for run in PLAN.runs():
        train(dataclasses.replace(run.config, out=run_folder(folder, run)))
    return [run_folder(folder, run) for run in PLAN.runs()]


def copied(real: list[Path], count: int, folder: Path) -> Path:
    """A plan of ``count`` runs, or of one run each of fewer seeds than methods would need."""
    per_method = max(1, count // len(PLAN.methods))
    methods = dict(list(PLAN.methods.items())[: max(1, count // per_method)])
    plan = dataclasses.replace(PLAN, methods=methods, seeds=tuple(range(per_method)))
    runs = plan.runs()
    save_plan(plan, runs, folder)
    for run in runs:
        source = next(
            path for path in real if path.name.startswith(f"{run.method}-{run.task}-s{run.seed % 2}-")
        )
        target = run_folder(folder, run)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("checkpoints"))
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config | {"seed": run.seed}))
    return folder


def measure(folder: Path, videos: str) -> dict[str, float]:
    """One report, in a process of its own."""
    call = [sys.executable, "-c", MEASURE, str(folder), videos]
    return json.loads(subprocess.run(call, capture_output=True, text=True, check=True).stdout)


def line_count(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def page(rows: list, repeats: int) -> list[str]:
    lines = [
        "# The report of many runs",
        "",
        f"`python benchmarks/report.py`: medians of {repeats} reports, each in a process of its own, from the folder of a plan to the page on "
        "the disk, imports included. Four runs were really made (8,192 env steps each, crossing); the others are copies of them under "
        "other seeds.",
        "",
        "| runs | episodes read | films | seconds | slowest | CPU seconds | page, MB | peak memory, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for count, episodes, videos, middle, worst in rows:
        figures = f"{middle['wall']:.1f} | {worst:.1f} | {middle['cpu']:.1f} | {middle['bytes'] / 1e6:.1f} | {middle['peak'] / 1e6:.0f}"
        lines.append(f"| {count} | {episodes:,} | {videos} | {figures} |")
    return [
        *lines,
        "",
        "plotly's script is 4.8 MB of each page. Films become part of a page up to 12 MB in all, the rest is linked.",
    ]


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(
        f"{time.perf_counter() - started:.0f} s, {resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime:.0f} CPU s of reports"
    )
