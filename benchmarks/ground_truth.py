"""Certificates against the truth: ``python benchmarks/ground_truth.py``.

On two environments of other packages whose law can be enumerated, `lle_level_3` and `masa_stag_hunt`, the exact violation
probability of random and of trained teams, beside the interval that evaluation episodes give. A row that is in the scratch
folder already is not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from results_page import write_page

from marl_tools.core.logging import configure_logging
from marl_tools.experiment.config import RunConfig
from marl_tools.experiment.run import train
from marl_tools.experiment.team import certify_run, evaluate_run, load_team
from marl_tools.safety.exact import ExactModel, solve
from marl_tools.training.exact_play import exact_violations
from marl_tools.training.policy import RandomPolicy
from marl_tools.vector.serial import env_groups

CONFIDENCE = 0.999
TASKS = {"lle_level_3": 78, "masa_stag_hunt": 50}
METHODS: dict[str, dict[str, Any]] = {
    "random": {},
    "ippo": {},
    "lagrange": {"constraint": "lagrange", "cost_limit": 0.05},
    "ledger": {"shield": "ledger", "max_risk": 0.05},
}


def measure(config: RunConfig, method: str, horizon: int, episodes: int, model: ExactModel) -> dict[str, Any]:
    """Train a team if the method has one; its exact violation probabilities and the certificate of ``episodes``."""
    env, started = config.factory()(), time.process_time()
    if method == "random":
        policy: Any = RandomPolicy(env_groups(env), seed=config.seed)
    else:
        train(config)
        policy = load_team(config.out, config)
    trained = time.process_time() - started
    evaluation = evaluate_run(config, policy, episodes=episodes)
    certificate = certify_run(config, evaluation, policy)
    assert certificate is not None
    subjects = certificate["horizons"][-1]["subjects"]
    exact = exact_violations(env, policy, horizon=horizon, model=model)
    return {
        "train_seconds": trained,
        "return": evaluation.mean_returns()["mean over agents"],
        "subjects": {
            name: {"exact": exact[name], "violations": row["violations"], "interval": row["interval"]}
            for name, row in subjects.items()
        },
    }


def page(rows: list[dict[str, Any]], options: argparse.Namespace) -> list[str]:
    """The table, and how many of its intervals hold the truth."""
    lines, held, told = [], 0, 0
    wanted = len(TASKS) * len(METHODS) * options.seeds
    missing = wanted - len(rows)
    for row in rows:
        for name, one in row["subjects"].items():
            low, high = one["interval"]
            # The ends come from a root search, the figure from a sum of millions: both are right to about 1e-12.
            inside = low - 1e-9 <= one["exact"] <= high + 1e-9
            held, told = held + inside, told + 1
            lines.append(
                f"| {row['task']} | {row['method']} | {row['seed']} | {row['return']:.2f} | {name} | {one['exact']:.6f} "
                f"| {one['violations']} of {options.episodes} | {low:.4f} to {high:.4f} | {'yes' if inside else '**no**'} |"
            )
    return [
        "# Certificates against the exact violation probability",
        "",
        f"`python benchmarks/ground_truth.py --seeds {options.seeds} --timesteps {options.timesteps} --episodes {options.episodes}`:"
        f" teams trained for {options.timesteps:,} env steps, a random one",
        f"beside them; the exact probability of a violation within an episode, by enumeration, and the Clopper-Pearson interval at confidence {CONFIDENCE}",
        f"from {options.episodes} evaluation episodes. A shielded team is followed with its slack. {held} of {told} intervals hold the truth; by",
        f"chance {(1 - CONFIDENCE) * told:.2f} would miss it at most. The shield's own bound is 0.05 an agent. These runs are short: what is shown is that",
        "figures agree, not what a method can learn."
        + (
            f" {missing} of {wanted} teams have not been run yet: the same command runs them."
            if missing
            else ""
        ),
        "",
        "| task | method | seed | return | of | exact | violations | interval | inside |",
        "|---|---|---|---|---|---|---|---|---|",
        *lines,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--timesteps", type=int, default=50_000)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--scratch", type=Path, default=Path("runs/ground_truth"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    configure_logging(min_level="ERROR")
    options.scratch.mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        model = None
        for method in options.methods:
            for seed in range(options.seeds):
                name = f"{task}-{method}-{seed}"
                done = options.scratch / f"{name}.json"
                if done.exists():
                    continue
                settings = {
                    "env": task,
                    "seed": seed,
                    "timesteps": options.timesteps,
                    "out": options.scratch / name,
                    # Else the seeds of one row's episodes would be those of the next, but one.
                    "final_policy_eval_seed_offset": 1_000_000 * (seed + 1),
                    "final_policy_eval_horizons": (TASKS[task],),
                    "final_policy_eval_episodes": 0,
                    "final_policy_eval_confidence": CONFIDENCE,
                }
                # What a stopped run left behind.
                shutil.rmtree(settings["out"], ignore_errors=True)
                config = RunConfig.from_flat(settings | METHODS[method])
                model = solve(config.factory()()) if model is None else model
                figures = measure(config, method, TASKS[task], options.episodes, model)
                row = {"task": task, "method": method, "seed": seed, **figures}
                done.write_text(json.dumps(row))
                print(name, f"{row['train_seconds']:.0f} s", row["subjects"], flush=True)
    names = [f"{t}-{m}-{s}.json" for t in TASKS for m in METHODS for s in range(options.seeds)]
    files = [path for name in names if (path := options.scratch / name).exists()]
    write_page(
        "ground_truth",
        page([json.loads(path.read_text()) for path in files], options),
        ["laser-learning-environment", "masa-safe-rl", "numpy", "torch"],
    )


if __name__ == "__main__":
    main()
