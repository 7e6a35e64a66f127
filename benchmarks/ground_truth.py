"""Certificates against the truth: ``marl-tools bench shield --seeds 5``, then ``python benchmarks/ground_truth.py runs/shield``.

On two environments of other packages whose law can be enumerated, `lle_level_3` and `masa_stag_hunt`, the exact violation
probability of random play and of every team that the plan trained, beside the interval that fresh evaluation episodes give.
A row that is in the scratch folder already is not worked out again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from results_page import write_page

from marl_tools.bench.comparison import compare
from marl_tools.core.logging import configure_logging
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.folder import load_config
from marl_tools.experiment.team import certify_run, evaluate_run, load_team
from marl_tools.safety.exact import ExactModel, solve
from marl_tools.training.exact_play import exact_violations
from marl_tools.training.policy import RandomPolicy
from marl_tools.vector.serial import env_groups

CONFIDENCE = 0.999
TASKS = {"lle_level_3": 78, "masa_stag_hunt": 50}


def measure(
    config: RunConfig, folder: Path | None, horizon: int, episodes: int, model: ExactModel
) -> dict[str, Any]:
    """Exact violation probabilities of the team in ``folder``, of random play without one, and its certificate."""
    env = config.factory(judged=True)()
    policy: Any = (
        RandomPolicy(env_groups(env), seed=config.seed) if folder is None else load_team(folder, config)
    )
    evaluation = evaluate_run(config, policy, episodes=episodes)
    certificate = certify_run(config, evaluation, policy)
    assert certificate is not None
    subjects = certificate["horizons"][-1]["subjects"]
    started = time.process_time()
    exact = exact_violations(env, policy, horizon=horizon, model=model)
    return {
        "exact_seconds": time.process_time() - started,
        "return": evaluation.mean_returns()["mean over agents"],
        "subjects": {
            name: {"exact": exact[name], "violations": row["violations"], "interval": row["interval"]}
            for name, row in subjects.items()
        },
    }


def page(rows: list[dict[str, Any]], episodes: int) -> list[str]:
    """The table, and how many of its intervals hold the truth."""
    lines, held, told = [], 0, 0
    for row in rows:
        for name, one in row["subjects"].items():
            low, high = one["interval"]
            # The ends come from a root search, the figure from a sum of millions: both are right to about 1e-12.
            inside = low - 1e-9 <= one["exact"] <= high + 1e-9
            held, told = held + inside, told + 1
            lines.append(
                f"| {row['task']} | {row['method']} | {row['seed']} | {row['return']:.2f} | {name} | {one['exact']:.6f} "
                f"| {one['violations']} | {low:.4f} to {high:.4f} | {'yes' if inside else '**no**'} |"
            )
    return [
        "# Certificates against the exact violation probability",
        "",
        "`python benchmarks/ground_truth.py runs/shield`: the teams of the plan `shield` ([its page](../../docs/shield-plan.md)) and random",
        "play, on two environments of other packages; the exact probability of a violation within an episode, by",
        f"enumeration, and the Clopper-Pearson interval at confidence {CONFIDENCE} from {episodes} fresh evaluation episodes. A shielded team is",
        f"followed with its slack. {held} of {told} intervals hold the truth; at most {(1 - CONFIDENCE) * told:.2f} are expected to miss it by chance.",
        "",
        "| task | method | seed | return | of | exact | violations | interval | inside |",
        "|---|---|---|---|---|---|---|---|---|",
        *lines,
    ]


def planned(plan: Path, task: str) -> Iterator[tuple[str, int, Path | None, RunConfig]]:
    """Method, seed, folder and settings of every finished run on the task; each seed's random play goes first."""
    found = compare(plan, reps=1)
    runs = [(run, plan / "runs" / run.id) for run in found.runs if run.task == task]
    configs = {run.id: load_config(folder) for run, folder in runs}
    seeds = {run.seed: configs[run.id] for run, _ in runs}
    yield from (("random", seed, None, config) for seed, config in sorted(seeds.items()))
    yield from ((run.method, run.seed, folder, configs[run.id]) for run, folder in runs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path, help="folder of the plan")
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--scratch", type=Path, default=Path("runs/ground_truth"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", help="only these")
    options = parser.parse_args()
    torch.set_num_threads(1)
    configure_logging(min_level="ERROR")
    options.scratch.mkdir(parents=True, exist_ok=True)
    rows = []
    for task in options.tasks:
        model = None
        for method, seed, folder, config in planned(options.plan, task):
            if options.methods and method not in options.methods:
                continue
            done = options.scratch / f"{task}-{method}-{seed}.json"
            if not done.exists():
                fresh = dataclasses.replace(
                    config,
                    # Of its own: the episodes of a row are neither those of the run nor of another row.
                    final_policy_eval_seed_offset=10_000_000 * (seed + 1),
                    final_policy_eval_horizons=(TASKS[task],),
                    final_policy_eval_confidence=CONFIDENCE,
                )
                model = solve(fresh.factory()()) if model is None else model
                figures = measure(fresh, folder, TASKS[task], options.episodes, model)
                done.write_text(json.dumps({"task": task, "method": method, "seed": seed, **figures}))
                print(done.stem, f"{figures['exact_seconds']:.0f} s", figures["subjects"], flush=True)
            rows.append(json.loads(done.read_text()))
    write_page(
        "ground_truth",
        page(rows, options.episodes),
        ["laser-learning-environment", "masa-safe-rl", "numpy", "torch"],
    )


if __name__ == "__main__":
    main()
