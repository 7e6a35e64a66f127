"""Runs that are killed at random moments and resumed, held against runs that never stopped.

    python benchmarks/resume_kills.py [--kills 3] [--cases crossing/shield ...] [--out benchmarks/results/resume_kills.md]

Each case is trained once in peace. Then it is trained again, killed with SIGKILL at random moments of its whole life, resumed
each time, and in the end compared: episodes, updates, weights, best checkpoint, certificate; times aside. Where single envs are
stepped, all transitions are saved too, and held against the log.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

import marl_tools.experiment.run  # noqa: F401 - what every child needs is imported once
from marl_tools.cli import main as main_of_marl_tools
from marl_tools.core.segment_files import segment_files
from marl_tools.core.segments import read_segment
from marl_tools.training.checkpoint import load_checkpoint

TIMES = ("wall_time", "collect_seconds", "update_seconds")
METHODS: dict[str, list[str]] = {
    "ippo": [],
    "lagrange": ["--constraint", "lagrange"],
    "shield": ["--shield", "ledger", "--shield-calibrate", "10"],
}
WORKERS = ["--workers", "2"]
CASES: dict[str, tuple[str, list[str]]] = {
    f"{env}/{method}": (env, flags)
    for env in ("crossing", "corridor", "stag_hunt")
    for method, flags in METHODS.items()
}
CASES |= {
    "simple_spread/ippo": ("simple_spread", []),
    "simple_spread/lagrange": ("simple_spread", METHODS["lagrange"]),
    "simple_spread/ippo, 2 workers": ("simple_spread", WORKERS),
    "simple_spread/lagrange, 2 workers": ("simple_spread", [*METHODS["lagrange"], *WORKERS]),
    "crossing/shield, 2 workers": ("crossing", [*METHODS["shield"], *WORKERS]),
    "kaz/ippo": ("kaz", ["--env-kwargs", "spawn_delay=5"]),
}
NATIVE = {"crossing", "corridor", "stag_hunt", "simple_spread"}
SIZE = [
    "--timesteps",
    "4096",
    "--num-envs",
    "4",
    "--rollouts",
    "64",
    "--checkpoint-every",
    "3",
    "--hidden",
    "32",
]
SIZE += [
    "--final-policy-eval-episodes",
    "20",
    "--video-episodes",
    "0",
    "--eval-every",
    "5",
    "--eval-episodes",
    "3",
]


def begin(arguments: list[str], log: Path) -> BaseProcess:
    """A ``marl-tools train`` in a process of its own, forked, since importing everything takes longer than the run."""
    process = multiprocessing.get_context("fork").Process(target=_train, args=(arguments, log))
    process.start()
    return process


def _train(arguments: list[str], log: Path) -> None:
    with open(log, "ab", buffering=0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.exit(main_of_marl_tools(["train", *arguments]))


def finish(arguments: list[str], log: Path) -> None:
    """Run to the end."""
    process = begin(arguments, log)
    process.join()
    assert process.exitcode == 0, log.read_text()


def kill_at(arguments: list[str], frames: float, pause: float, log: Path, updates: Path) -> bool:
    """Run until so many env steps are logged, and some seconds more; whether the kill came before the end."""
    process = begin(arguments, log)
    while process.is_alive() and progress(updates) < frames:
        time.sleep(0.002)
    process.join(pause)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def progress(updates: Path) -> int:
    """Env steps of the last whole line."""
    lines = updates.read_text().split("\n")[:-1] if updates.exists() else []
    return json.loads(lines[-1])["frames"] if lines else 0


def rows(path: Path) -> list[dict[str, Any]]:
    plain = (json.loads(line) for line in path.read_text().splitlines())
    return [{key: value for key, value in row.items() if key not in TIMES} for row in plain]


def same(ours: Any, theirs: Any) -> bool:
    """Whether two nested mappings hold equal arrays; a bound that is not known yet, NaN, equals another."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == theirs.dtype.kind == "f")


def differences(whole: Path, cut: Path) -> list[str]:
    """What of two run folders is not the same."""
    logs = ("episodes.jsonl", "updates.jsonl")
    found = [name for name in logs if json.dumps(rows(whole / name)) != json.dumps(rows(cut / name))]
    for name in ("latest", "best"):
        (ours, state), (theirs, other) = (
            load_checkpoint(folder / "checkpoints" / f"{name}.safetensors") for folder in (whole, cut)
        )
        if ours.keys() != theirs.keys() or not all(torch.equal(ours[key], theirs[key]) for key in ours):
            found.append(f"{name} checkpoint")
        if not same(state["shield"], other["shield"]):
            found.append(f"shield in the {name} checkpoint")
    for name in ("certificate.json", "evaluation-trained.json", "evaluation-random.json"):
        texts = [(folder / name).read_text() if (folder / name).exists() else None for folder in (whole, cut)]
        if texts[0] != texts[1]:
            found.append(name)
    return found


def not_conserved(run: Path) -> list[str]:
    """Whether the transitions that a run saved are those that its log counts, episode by episode and agent by agent."""
    saved: Counter[tuple[int, int, str]] = Counter()
    for path in segment_files(run / "trajectories"):
        segment = read_segment(path)
        for agent, part in segment.agents.items():
            saved[segment.env_index, segment.episode, agent] += len(part)
    logged = {
        (row["env_index"], row["episode"], agent): steps
        for row in rows(run / "episodes.jsonl")
        if row["split"] == "train"
        for agent, steps in row["lengths"].items()
    }
    return [] if {key: saved[key] for key in logged} == logged else ["transitions saved"]


def try_case(name: str, native: bool, kills: int, chance: random.Random, folder: Path) -> str:
    """One line of the table."""
    env, flags = CASES[name]
    call = [env, *SIZE, "--native" if native else "--trajectories", *flags]
    whole, cut, log = folder / "whole", folder / "cut", folder / "log.txt"
    finish([*call, "--out", str(whole)], log)
    total = progress(whole / "updates.jsonl")
    made, frames = 0, []
    arguments, updates = [*call, "--out", str(cut)], cut / "updates.jsonl"
    for target in sorted(chance.uniform(0, 1.15) * total for _ in range(kills)):
        come_to = progress(updates)
        # Beyond the last update come calibration and evaluation, where the log tells no more how far it is.
        pause = chance.uniform(0, 0.15) if come_to < total else chance.uniform(0.2, 2.0)
        if not kill_at(arguments, min(total, max(target, come_to + 1)), pause, log, updates):
            break
        made += 1
        frames.append(str(progress(updates)))
        # A run that was killed before its settings were written has nothing to go on with.
        if (cut / "config.json").exists() and (cut / "config.json").stat().st_size:
            arguments = ["--resume", str(cut)]
        else:
            shutil.rmtree(cut, ignore_errors=True)
    if not (cut / "done.json").exists():
        finish(arguments, log)
    aside = cut / "episodes.replayed.jsonl"
    replayed = len(rows(aside)) if aside.exists() else 0
    found = differences(whole, cut) + ([] if native else not_conserved(whole) + not_conserved(cut))
    kind = "native" if native else "2 workers" if "--workers" in flags else "serial"
    return f"| {name.partition(',')[0]} | {kind} | {made} | {', '.join(frames)} | {replayed} | {', '.join(found) or 'identical'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    lines = [
        "| run | envs | kills | at env step | episodes played again | compared with the run that never stopped |"
    ]
    lines.append("|---|---|---|---|---|---|")
    print("\n".join(lines), flush=True)
    for name in options.cases:
        env, flags = CASES[name]
        for native in (False, True) if env in NATIVE and "--workers" not in flags else (False,):
            with tempfile.TemporaryDirectory() as folder:
                lines.append(try_case(name, native, options.kills, chance, Path(folder)))
            print(lines[-1], flush=True)
    if options.out:
        heading = f"# Killed and resumed\n\n`python benchmarks/resume_kills.py --kills {options.kills} --seed {options.seed}`\n\n"
        options.out.write_text(heading + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
