"""Workers and their parents killed at random moments: ``python benchmarks/worker_kills.py [--kills 200]``.

Each session is a player with 4 copies of mpe2 simple_spread in 2 workers. The copies themselves note every episode that
they finish (the witness), the player writes one line an episode as a run does. Afterwards no process and no shared memory
may be left; every episode that a copy finished must be in the player's log: as finished, or as interrupted one step earlier
where its worker was killed before it could tell; or, with the player itself dead, it must have finished in the very step
that the player was waiting for.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3
from pettingzoo.utils import BaseParallelWrapper
from results_page import write_page

from marl_tools.core.errors import WorkerError
from marl_tools.core.io import JsonLines
from marl_tools.core.wrappers import EpisodeRecorder
from marl_tools.vector import WorkerVectorEnv

COPIES, WORKERS, STEPS = 4, 2, 9
GRACE_SECONDS = 20.0
KILLS_A_SESSION = 10
MARK = "MARL_TOOLS_KILLS"


class Witness(BaseParallelWrapper):
    """Notes each episode that ends: its seed, its length and when."""

    def __init__(self, env: Any, path: str) -> None:
        super().__init__(env)
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._now = {"seed": seed, "length": 0}
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        results = super().step(actions)
        self._now["length"] += 1
        if not self.env.agents:
            line = json.dumps({**self._now, "time": time.monotonic_ns()})
            os.write(self._file, f"{line}\n".encode())
        return results


def make_env(path: str, env_index: int) -> EpisodeRecorder:
    env = simple_spread_v3.parallel_env(max_cycles=STEPS + env_index)
    return EpisodeRecorder(Witness(env, path), "simple_spread", env_index=env_index)


def play(folder: Path, policy: str, method: str) -> None:
    """The player: steps until it is told to stop, by a file, or until a worker's death is raised."""
    with open(folder / "asked", "r+b") as file:
        asked = mmap.mmap(file.fileno(), 8)
    envs = WorkerVectorEnv(
        partial(make_env, str(folder / "witness.jsonl")),
        COPIES,
        WORKERS,
        start_method=method,
        on_worker_death=policy,
    )
    rng = np.random.default_rng()
    crew: list[int] = []
    with JsonLines(folder / "episodes.jsonl") as lines:
        step = envs.reset(rng.integers(2**31))
        try:
            while not (folder / "stop").exists():
                pids = [worker.pid for worker in envs._crew.workers]
                if pids != crew:
                    crew = pids
                    print(json.dumps(crew), flush=True)
                actions = {"agent": rng.integers(5, size=step.groups["agent"].active.shape)}
                asked[:] = time.monotonic_ns().to_bytes(8, "little")
                step = envs.step(actions)
                for episode in step.episodes:
                    lines.append(episode.to_json())
        except WorkerError as error:
            print(json.dumps({"error": str(error)}), flush=True)
        for episode in envs.close():
            lines.append(episode.to_json())


class Session:
    """One player, and what is to be found after it."""

    def __init__(self, folder: Path, policy: str, method: str) -> None:
        self.folder, self.mark = folder, f"{os.getpid()}-{folder.name}"
        (folder / "asked").write_bytes(bytes(8))
        self.before = shared_memory()
        self.player = subprocess.Popen(
            [sys.executable, __file__, "--player", str(folder), policy, method],
            env={**os.environ, MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=open(folder / "stderr", "w"),  # noqa: SIM115
            text=True,
        )
        os.set_blocking(self.player.stdout.fileno(), False)
        self.crew: list[int] = []
        self.errors: list[str] = []

    def listen(self) -> None:
        """Take in what the player has printed: the processes of its workers, or an error."""
        for line in self.player.stdout:
            told = json.loads(line)
            if isinstance(told, list):
                self.crew = told
            else:
                self.errors.append(told["error"])

    def wait_for_crew(self) -> None:
        while not self.crew and self.player.poll() is None:
            time.sleep(0.01)
            self.listen()

    def finish(self, killed: bool) -> Counter[str]:
        """Let the player stop and look at everything; returns what was found."""
        (self.folder / "stop").touch()
        try:
            self.player.wait(GRACE_SECONDS * 3)
        except subprocess.TimeoutExpired:
            self.player.kill()
        self.listen()
        end = time.monotonic() + GRACE_SECONDS
        while (left := marked(self.mark)) and time.monotonic() < end:
            time.sleep(0.05)
        found = Counter(
            {
                "processes left": len(left),
                "shared memory left": len(shared_memory() - self.before),
                "players that ended badly": int(not killed and self.player.returncode != 0),
            }
        )
        return found + self._compare(killed)

    def _compare(self, killed: bool) -> Counter[str]:
        witnessed = {row["seed"]: row for row in read_lines(self.folder / "witness.jsonl")}
        logs = read_lines(self.folder / "episodes.jsonl")
        logged = {row["seed"]: row for row in logs}
        asked = int.from_bytes((self.folder / "asked").read_bytes(), "little")
        found = Counter(
            {"episodes witnessed": len(witnessed), "episodes logged twice": len(logs) - len(logged)}
        )
        for seed, row in witnessed.items():
            log = logged.get(seed)
            if log is None:
                in_flight = killed and row["time"] >= asked
                found[
                    "finished in the step that died with the player"
                    if in_flight
                    else "finished episodes lost"
                ] += 1
            elif "interrupted" not in log["ends"].values():
                found["logged as finished"] += 1
                found["episodes of a wrong length"] += log["length"] != row["length"]
            else:
                found["logged as interrupted, one step short"] += 1
                found["episodes of a wrong length"] += log["length"] != row["length"] - 1
        told = self.errors + re.findall(r"worker process \d+ .*", (self.folder / "stderr").read_text())
        found["errors and warnings"] = len(told)
        found["of them without copy and env"] = sum(
            not re.search(r"cop(y|ies) \d.* of simple_spread", line) for line in told
        )
        return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: the last one may have been cut by a kill."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def marked(mark: str) -> list[int]:
    """Living processes that descend from a session's player."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("pym-", "psm_", "sem.", "torch_"))}


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def run_session(kind: str, method: str, rng: random.Random, kills: int) -> Counter[str]:
    """Up to ``kills`` kills of workers or one of the player."""
    with TemporaryDirectory() as folder:
        session = Session(Path(folder), "raise" if kind == "worker, raise" else "restart", method)
        done = 0
        if kind == "player":
            # Sometimes before it has started its workers, sometimes while it does.
            if rng.random() < 0.7:
                session.wait_for_crew()
            time.sleep(rng.uniform(0, 2.0))
            done += kill(session.player.pid)
        while kind != "player" and done < kills and session.player.poll() is None and not session.errors:
            session.wait_for_crew()
            time.sleep(rng.expovariate(2.0))
            session.listen()
            if session.crew:
                done += kill(session.crew.pop(rng.randrange(len(session.crew))))
        return Counter({f"kills: {kind}": done}) + session.finish(killed=kind == "player")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--player", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.player:
        play(Path(args.player[0]), *args.player[1:])
        return
    rng, total, sessions = random.Random(args.seed), Counter[str](), 0
    shares = {"worker, restart": 0.6, "worker, raise": 0.2, "player": 0.2}
    for kind, share in shares.items():
        while (left := round(args.kills * share) - total[f"kills: {kind}"]) > 0:
            limit = min(left, KILLS_A_SESSION) if kind == "worker, restart" else 1
            total += run_session(kind, rng.choice(["spawn", "forkserver"]), rng, limit)
            sessions += 1
            print(f"{sessions} sessions, {dict(total)}", file=sys.stderr, flush=True)
    must_be_zero = (
        "processes left",
        "shared memory left",
        "players that ended badly",
        "finished episodes lost",
        "episodes logged twice",
        "episodes of a wrong length",
        "of them without copy and env",
    )
    rows = [(name, total[name]) for name in (*sorted(set(total) - set(must_be_zero)), *must_be_zero)]
    write_page(
        "worker_kills",
        [
            "# Workers and parents killed at random moments",
            "",
            f"`python benchmarks/worker_kills.py --kills {args.kills} --seed {args.seed}`: {sessions} sessions of {COPIES} "
            f"copies of simple_spread in {WORKERS} workers, start methods spawn and forkserver; SIGKILL to a worker that may "
            "be replaced, to one that may not, or to the player itself. Every count below the line must be 0.",
            "",
            "| found | count |",
            "|---|---|",
            *(f"| {name} | {count} |" for name, count in rows[: -len(must_be_zero)]),
            "| — | |",
            *(f"| {name} | {count} |" for name, count in rows[-len(must_be_zero) :]),
        ],
        ["mpe2", "pettingzoo", "numpy"],
    )
    sys.exit(any(total[name] for name in must_be_zero))


if __name__ == "__main__":
    main()
