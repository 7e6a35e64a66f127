"""A plan on a Ray cluster of two nodes that loses a worker and then a whole node, held against the same plan in peace.

    python benchmarks/ray_kills.py [--plan PLAN.toml | shield | ...] [--seeds N] [--peace FOLDER] [--name ray_kills]

Both nodes are on this machine, with a core each. When a third of the env steps is done, the process of a run is killed with SIGKILL;
at two thirds all processes of the second node are. The plan has to end complete, on the node that is left, and every run folder is
compared with that of the serial executor: episodes, updates, weights, best checkpoint, certificate; times aside.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from results_page import write_page
from resume_kills import differences

from marl_tools.bench.command import find_plan
from marl_tools.bench.executors import Event, Finished, Started
from marl_tools.bench.jobs import Job, frames_of
from marl_tools.bench.local_executor import LocalExecutor
from marl_tools.bench.plan import Plan
from marl_tools.bench.ray_executor import RayExecutor
from marl_tools.bench.runner import PlanStatus, check_complete, run_plan
from marl_tools.core.ray_surroundings import ray_environment

SMALL = Plan(
    name="small",
    settings={
        "num_envs": 16,
        "rollouts": 32,
        "timesteps": 16_384,
        "native": True,
        "checkpoint_every": 4,
        "final_policy_eval_episodes": 50,
        "video_episodes": 0,
    },
    methods={
        "ippo": {},
        "lagrangian": {"constraint": "lagrange"},
        "ledger": {"shield": "ledger", "shield_calibrate": 20},
    },
    tasks={"crossing": {}},
    seeds=(0, 1),
)
POLL_SECONDS = 0.02


class Assassin:
    """An executor that hands jobs to one on Ray, and kills a worker and a node of its cluster on the way."""

    def __init__(self, cluster: Any, second: Any) -> None:
        self.losses: list[str] = []
        self.attempts: Counter[str] = Counter()
        self._cluster, self._second = cluster, second
        self._raylet = second.all_processes["raylet"][0].process.pid
        self._running: dict[str, int] = {}
        self._over = threading.Event()

    def run(self, jobs: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        """See `Executor`."""

        def watch(event: Event) -> None:
            if isinstance(event, Started):
                self._running[event.id] = int(event.where.split()[1])
                self.attempts[event.id] = event.attempt
            elif isinstance(event, Finished):
                self._running.pop(event.result.id)
            on_event(event)

        killer = threading.Thread(target=self._kill, args=(jobs,))
        killer.start()
        try:
            RayExecutor(address=self._cluster.address).run(jobs, watch)
        finally:
            self._over.set()
            killer.join()

    def _kill(self, jobs: Sequence[Job]) -> None:
        folders = {job.id: job.folder for job in jobs}
        total = sum(job.config["timesteps"] for job in jobs)
        while not self._over.wait(POLL_SECONDS) and len(self.losses) < 2:
            done = sum(map(frames_of, folders.values()))
            midway = {
                name: pid
                for name, pid in list(self._running.items())
                if frames_of(folders[name]) > 0 and not (folders[name] / "evaluation-trained.json").exists()
            }
            if not self.losses and done > total / 3 and midway:
                name, pid = next(iter(midway.items()))
                os.kill(pid, signal.SIGKILL)
                self.losses.append(f"the worker of {name} at step {frames_of(folders[name]):,}")
            elif self.losses and done > 2 * total / 3:
                there = [name for name, pid in midway.items() if parent(pid) == self._raylet]
                if there:
                    self._cluster.remove_node(self._second, allow_graceful=False)
                    steps = frames_of(folders[there[0]])
                    self.losses.append(f"the second node, with {there[0]} at step {steps:,}")


def parent(pid: int) -> int:
    """0 for a process that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def on_two_nodes(plan: Plan, folder: Path) -> tuple[PlanStatus, Assassin]:
    """Run the plan on a cluster of its own and kill what is to be killed."""
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    with (
        ray_environment(own=True),
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as temp_dir,
    ):
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={**node, "temp_dir": temp_dir})
        try:
            assassin = Assassin(cluster, cluster.add_node(**node))
            return run_plan(plan, folder, executor=assassin), assassin
        finally:
            cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", help="a preset or a TOML file; by default six small runs")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--peace", type=Path, help="the plan's folder as the serial executor left it")
    parser.add_argument("--name", default="ray_kills", help="of the page in benchmarks/results")
    arguments = parser.parse_args()
    plan = find_plan(arguments.plan) if arguments.plan else SMALL
    if arguments.seeds:
        plan = plan.with_seeds(arguments.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        started = time.perf_counter()
        status, assassin = on_two_nodes(plan, folder / "ray")
        check_complete(status)
        minutes = (time.perf_counter() - started) / 60
        peace = arguments.peace or folder / "peace"
        check_complete(run_plan(plan, peace, executor=LocalExecutor()))
        found = {
            run.id: differences(peace / "runs" / run.id, folder / "ray" / "runs" / run.id)
            for run in status.runs
        }
    write_page(arguments.name, page(plan, status, assassin, found, minutes), ["marl-tools", "ray", "torch"])


def page(
    plan: Plan, status: PlanStatus, assassin: Assassin, found: dict[str, list[str]], minutes: float
) -> list[str]:
    same = sum(not differing for differing in found.values())
    steps = max(run.timesteps for run in status.runs)
    return [
        "# A plan that loses a worker and a node",
        "",
        f"`python benchmarks/ray_kills.py`: the plan `{plan.name}` ({len(status.runs)} runs of up to {steps:,} env steps) on two Ray nodes of one core "
        f"each, both on this machine. Killed: {'; then '.join(assassin.losses)}. The plan took {minutes:.1f} minutes and ended "
        f"with {status.done} of {len(status.runs)} runs done.",
        "",
        f"**{same} of {len(found)} runs are the same as those of the serial executor**: episodes, updates, weights, best "
        "checkpoint, certificate; times aside.",
        "",
        "| run | attempts | differs in |",
        "|---|---|---|",
        *(
            f"| {name} | {assassin.attempts[name]} | {', '.join(differing) or 'nothing'} |"
            for name, differing in found.items()
        ),
    ]


if __name__ == "__main__":
    main()
