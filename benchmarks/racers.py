"""The trainers that are compared on simple_spread, each in an environment of its own, and how one run of one is measured.

All have the same settings: 8 envs x 128 steps, 4 epochs, 4 minibatches, learning rate 2.5e-4, two tanh layers of 64, shared
parameters, gamma 0.99, lambda 0.95, clip 0.2, entropy 0.01. A peer's script ``peers/<name>.py`` prints its figures as
JSON in its last line; its pins are in ``peers/<name>.txt``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
VENVS = HERE.parent / ".venv-peers"
LAST = 500
"""Episodes over which a run's final return is the mean."""
SETTINGS = (
    *("--share", "group"),
    *("--learning-epochs", "4", "--mini-batches", "4", "--learning-rate", "2.5e-4"),
    *("--hidden", "64", "64", "--activation", "tanh"),
    *("--final-policy-eval-episodes", "0", "--video-episodes", "0"),
)


@dataclass(frozen=True, kw_only=True)
class Ours:
    """``marl-tools train`` with some more flags."""

    name: str
    flags: Sequence[str] = ()
    num_envs: int = 8
    agents: int = 3
    steps: int | None = None
    """Env steps of a short run, where the usual number says too little."""

    def run(self, seed: int, timesteps: int, scratch: Path) -> dict[str, float]:
        """Train once; the figures are read from the run's own log."""
        out = scratch / f"{self.name.replace(' ', '-')}-{seed}-{timesteps}-{time.time_ns()}"
        program = Path(sys.executable).with_name("marl-tools")
        counts = ("--timesteps", timesteps, "--num-envs", self.num_envs, "--rollouts", 128, "--seed", seed)
        env = ("train", "simple_spread", "--env-kwargs", f"N={self.agents}", "max_cycles=25")
        command = [program, *env, *counts, *SETTINGS, *self.flags, "--out", out]
        _, seconds, memory = watched([str(part) for part in command])
        episodes = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
        updates = [json.loads(line) for line in (out / "updates.jsonl").read_text().splitlines()]
        returns = [statistics.fmean(log["returns"].values()) for log in episodes]
        collecting = sum(row["collect_seconds"] for row in updates)
        updating = sum(row["update_seconds"] for row in updates)
        return {
            "return": statistics.fmean(returns[-LAST:]),
            "steps_per_second": updates[-1]["frames"] / (collecting + updating),
            "update_share": updating / (collecting + updating),
            "seconds": seconds,
            "megabytes": max(memory),
            # While training goes on: the first fifth is start-up, the last evaluates.
            "megabytes_early": statistics.median(memory[len(memory) // 5 : len(memory) // 2] or memory),
            "megabytes_late": statistics.median(memory[len(memory) // 2 : -len(memory) // 5] or memory),
        }


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A script beside this file, run by the interpreter of its own environment."""

    name: str
    script: str
    pins: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    def python(self) -> Path:
        """The peer's interpreter; its environment is made where it is missing."""
        pins = self.pins or self.script
        venv = VENVS / pins
        python, ready = venv / "bin" / "python", venv / "ready"
        if not ready.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
            pip = [python, "-m", "pip", "install", "-q"]
            # torch first and alone, as in scripts/setup.
            subprocess.run([*pip, "torch==2.13.0"], check=True)
            subprocess.run([*pip, "-r", HERE / "peers" / f"{pins}.txt"], check=True)
            # A peer whose own pins have no build for this machine's torch.
            if (alone := HERE / "peers" / f"{pins}.no-deps.txt").exists():
                subprocess.run([*pip, "--no-deps", "-r", alone], check=True)
            ready.touch()
        return python

    def run(self, seed: int, timesteps: int, scratch: Path) -> dict[str, float]:
        """Train once; the figures are those that the script prints."""
        script = HERE / "peers" / f"{self.script}.py"
        command = [str(part) for part in (self.python(), script, seed, timesteps, LAST)]
        printed, seconds, memory = watched(command, scratch, {"SDL_VIDEODRIVER": "dummy"} | self.variables)
        return {**json.loads(printed.splitlines()[-1]), "seconds": seconds, "megabytes": max(memory)}


def watched(
    command: Sequence[str], cwd: Path | None = None, variables: dict[str, str] | None = None
) -> tuple[str, float, list[float]]:
    """Run a command: what it printed, its seconds, and the memory in MB that it and its children held, twice a second.

    Raises:
        RuntimeError: it failed; its last words are in the message.
    """
    started, memory = time.perf_counter(), [0.0]
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=os.environ | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.5):
            memory.append(megabytes_of(process.pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        printed, complaints = process.communicate()
    finally:
        over.set()
        sampler.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {complaints[-2000:]}")
    return printed, time.perf_counter() - started, memory


def megabytes_of(pid: int) -> float:
    """Proportional memory of a process and all that descend from it."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    family, grown = {pid}, True
    while grown:
        children = {child for child, parent in parents.items() if parent in family} - family
        family |= children
        grown = bool(children)
    return sum(map(_proportional, family)) / 1024


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


SB3 = Peer(name="Stable-Baselines3 + SuperSuit", script="sb3")
PEERS = (
    SB3,
    Peer(name="plain PPO + SuperSuit", script="plain_ppo", pins="sb3"),
    Peer(name="AgileRL", script="agilerl_ippo", pins="agilerl"),
    Peer(name="BenchMARL", script="benchmarl_ippo", pins="benchmarl"),
    Peer(name="RLlib", script="rllib_ppo", pins="rllib"),
    Peer(name="skrl", script="skrl_ippo", pins="skrl"),
)
