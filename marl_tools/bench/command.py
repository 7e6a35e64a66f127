"""``marl-tools bench``: a plan by its name or file, run in a folder, and what came of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from marl_tools.bench.executors import Executor
from marl_tools.bench.local_executor import LocalExecutor
from marl_tools.bench.plan import Plan
from marl_tools.bench.presets import PRESETS
from marl_tools.bench.runner import PlanStatus, check_complete, plan_status, run_plan
from marl_tools.core.errors import ConfigError, did_you_mean
from marl_tools.experiment.arguments import BenchArgs


def bench(call: BenchArgs) -> None:
    """Run a plan and print how it stands.

    Raises:
        ConfigError: an unknown plan, or what `run_plan` refuses.
        PlanFailed: some runs failed; all others were run.
        Interrupted: Ctrl-C or SIGTERM, after the runs' states were saved.
    """
    plan = find_plan(call.plan)
    if call.seeds is not None:
        plan = plan.with_seeds(call.seeds)
    folder = call.out or Path("runs") / plan.name
    if call.dry_run:
        _print_runs(plan, plan_status(plan, folder, only=call.only))
        return
    status = run_plan(plan, folder, executor=_executor(call), only=call.only, trusted=call.trust)
    _print_end(plan, status)
    if call.report:
        from marl_tools.bench.report.command import report_finished_run

        report_finished_run(status.folder)
    check_complete(status)


def find_plan(name: str) -> Plan:
    """A preset by its name, or a plan from a TOML file.

    Raises:
        ConfigError: neither; or a plan that cannot be.
        CorruptFileError: a file that is no TOML.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return Plan.from_toml(path)
    raise ConfigError(f"no plan {name!r}: give a TOML file or a preset.{did_you_mean(name, PRESETS)}")


def _executor(call: BenchArgs) -> Executor:
    if call.executor == "serial":
        if call.ray_address is not None:
            raise ConfigError(f"--ray-address {call.ray_address} needs --executor ray")
        return LocalExecutor(jobs=call.jobs, retries=call.retries)
    if call.jobs != 1:
        raise ConfigError(f"--jobs {call.jobs} with --executor ray: the cluster's cores decide; leave it out")
    from marl_tools.bench.ray_executor import RayExecutor

    return RayExecutor(address=call.ray_address, retries=call.retries)


def _print_runs(plan: Plan, status: PlanStatus) -> None:
    """Every run and what is left out, for --dry-run."""
    table = Table("run", "state", "env steps", box=None)
    for run in status.runs:
        table.add_row(run.id, run.state, f"{run.frames:,} of {run.timesteps:,}")
    Console().print(table)
    left = [run for run in status.runs if not run.finished]
    steps = sum(max(0, run.timesteps - run.frames) for run in left)
    _print_excluded(plan)
    print(f"{len(left)} of {len(status.runs)} runs to do, {steps:,} env steps, in {status.folder}")


def _print_end(plan: Plan, status: PlanStatus) -> None:
    """A line a method and task, with how many of its seeds are done."""
    done = Counter((run.method, run.task) for run in status.runs if run.finished)
    of = Counter((run.method, run.task) for run in status.runs)
    table = Table("method", "task", "runs done", box=None)
    for (method, task), count in of.items():
        table.add_row(method, task, f"{done[method, task]} of {count}")
    Console().print(table)
    _print_excluded(plan)
    print(f"plan folder {status.folder}")


def _print_excluded(plan: Plan) -> None:
    for excluded in plan.excluded:
        print(f"left out: {excluded.method} on {excluded.task}: {excluded.why}")
