"""Returns on simple_spread, ours beside Stable-Baselines3 + SuperSuit: ``python benchmarks/returns.py``.

Same environment (3 agents, 25 cycles, discrete), same budget and the same settings for both: 8 envs x 128 steps, 4 epochs,
4 minibatches, learning rate 2.5e-4, two tanh layers of 64, shared parameters, gamma 0.99, lambda 0.95, entropy
0.01, one torch thread. Runs alternate, one seed of each after the other. Stable-Baselines3 lives in an environment of
its own (``--peer-venv``, made at the first run), since its pins are not ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results_page import write_page

HERE = Path(__file__).parent
TIMESTEPS = 200_000
LAST = 500
TARGET = -20.5


def ours(seed: int, timesteps: int, folder: Path) -> dict[str, float]:
    """One run by the command line; the figures are read from its own log."""
    out = folder / f"ours-{seed}"
    started = time.perf_counter()
    subprocess.run(
        [
            Path(sys.executable).with_name("marl-tools"),
            *("train", "simple_spread", "--env-kwargs", "N=3", "max_cycles=25"),
            *("--timesteps", str(timesteps), "--seed", str(seed), "--out", out),
            *("--num-envs", "8", "--rollouts", "128", "--learning-epochs", "4", "--mini-batches", "4"),
            *(
                "--learning-rate",
                "2.5e-4",
                "--hidden",
                "64",
                "64",
                "--activation",
                "tanh",
                "--share",
                "group",
            ),
            *("--final-policy-eval-episodes", "0", "--video-episodes", "0"),
        ],
        check=True,
    )
    seconds = time.perf_counter() - started
    logs = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    updates = [json.loads(line) for line in (out / "updates.jsonl").read_text().splitlines()]
    returns = [statistics.fmean(log["returns"].values()) for log in logs]
    learning = sum(row["collect_seconds"] + row["update_seconds"] for row in updates)
    return {
        "return": statistics.fmean(returns[-LAST:]),
        "steps_per_second": updates[-1]["frames"] / learning,
        "update_share": sum(row["update_seconds"] for row in updates) / learning,
        "seconds": seconds,
    }


def peer(seed: int, timesteps: int, python: Path) -> dict[str, float]:
    """One run of the peer's script, which prints its figures as JSON in the last line."""
    started = time.perf_counter()
    done = subprocess.run(
        [python, HERE / "peers" / "sb3.py", str(seed), str(timesteps), str(LAST)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "SDL_VIDEODRIVER": "dummy"},
    )
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.perf_counter() - started}


def peer_python(venv: Path) -> Path:
    """The peer's interpreter; its environment is made where it is missing."""
    python = venv / "bin" / "python"
    ready = venv / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        pip = [python, "-m", "pip", "install", "-q"]
        # torch first and alone, as in scripts/setup.
        subprocess.run([*pip, "torch==2.13.0"], check=True)
        subprocess.run([*pip, "-r", HERE / "peers" / "sb3.txt"], check=True)
        ready.touch()
    return python


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--timesteps", type=int, default=TIMESTEPS)
    parser.add_argument("--peer-venv", type=Path, default=HERE.parent / ".venv-peers" / "sb3")
    options = parser.parse_args()
    python = peer_python(options.peer_venv.absolute())
    rows: dict[str, list[dict[str, float]]] = {"marl-tools": [], "Stable-Baselines3 + SuperSuit": []}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in options.seeds:
            rows["marl-tools"].append(ours(seed, options.timesteps, Path(scratch)))
            rows["Stable-Baselines3 + SuperSuit"].append(peer(seed, options.timesteps, python))
            print(json.dumps({name: runs[-1] for name, runs in rows.items()}), file=sys.stderr)
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
