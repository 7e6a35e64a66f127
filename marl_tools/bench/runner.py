"""Carry out a plan: what is missing of it, in a folder that can be called again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from marl_tools.bench.executors import Event, Executor, Finished
from marl_tools.bench.fingerprint import plain_settings
from marl_tools.bench.jobs import Job, JobState, frames_of, log_file, state_of
from marl_tools.bench.local_executor import LocalExecutor
from marl_tools.bench.plan import Plan, PlannedRun
from marl_tools.bench.plan_folder import FINISHED, SUMMARY, join_plan, run_folder, save_plan
from marl_tools.bench.progress import PlanProgress
from marl_tools.core.errors import ConfigError, Interrupted, MarlToolsError
from marl_tools.core.io import create_dir, save_to_file
from marl_tools.core.logging import log
from marl_tools.envs.tasks import require
from marl_tools.experiment.config import names_code
from marl_tools.experiment.lock import RunLock

_LONGEST_REASON = 300


class PlanFailed(MarlToolsError):
    """Some runs of a plan failed, the others are done; the message lists them and says how to go on."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run of a plan: how it stands, and what the last call did about it.

    ``seconds`` and ``attempts`` are those of that call, 0 where it had nothing to do; ``error`` says why a run failed or is damaged.
    """

    id: str
    method: str
    task: str
    seed: int
    state: JobState
    frames: int
    timesteps: int
    seconds: float = 0.0
    attempts: int = 0
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def failed(self) -> bool:
        return self.state in ("failed", "damaged")


@dataclass(frozen=True, kw_only=True)
class PlanStatus:
    """All runs of the plan in a folder, those of earlier calls among them."""

    folder: Path
    name: str
    runs: tuple[RunStatus, ...]

    @property
    def failures(self) -> list[RunStatus]:
        return [run for run in self.runs if run.failed]

    @property
    def done(self) -> int:
        return sum(run.finished for run in self.runs)


def plan_status(plan: Plan, folder: Path, *, only: Sequence[str] = ()) -> PlanStatus:
    """How the runs that `run_plan` would look after stand in a folder, which may not be there yet. Nothing is changed.

    Raises:
        ConfigError: the folder holds another plan, or something else; or ``only`` picks nothing.
        CorruptFileError: its plan.json is damaged.
    """
    joined, runs = join_plan(plan, folder)
    picked = _picked(runs, plan.seeds, only)
    return PlanStatus(folder=folder, name=joined.name, runs=tuple(_status(run, folder) for run in picked))


def run_plan(
    plan: Plan,
    folder: Path,
    *,
    executor: Executor | None = None,
    only: Sequence[str] = (),
    trusted: bool = False,
) -> PlanStatus:
    """Run what is missing of a plan: what is done is skipped, what was stopped goes on, what failed is tried again.

    A run that fails stops no other, and none is raised: see ``failures`` of what is returned, or `check_complete`.
    ``summary.json`` in the folder says how all runs stand, also after Ctrl-C.

    Args:
        plan: asked for; seeds, methods and tasks may be more than those that the folder holds already.
        folder: of the plan; made if it is not there.
        executor: None: a process a run on this machine, one run at a time.
        only: parts of ids; runs whose id holds none of them are left as they are.
        trusted: whether code that the plan names may be imported.

    Raises:
        ConfigError: the plan names code and is not ``trusted``, ``only`` picks nothing, the folder holds another plan, or
            another process works in it.
        MissingExtraError: a package behind a task is missing.
        Interrupted: Ctrl-C or SIGTERM, after the runs' states were saved.
    """
    folder = folder.absolute()
    joined, runs = join_plan(plan, folder)
    picked = _picked(runs, plan.seeds, only)
    _check_code(picked, trusted)
    for task in {run.task: run.config.task for run in picked}.values():
        require(task)
    try:
        create_dir(folder)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}; give another --out") from error
    with RunLock(folder):
        # Another process may have added to it meanwhile.
        joined, runs = join_plan(plan, folder)
        save_plan(joined, runs, folder)
        statuses = {run.id: _status(run, folder) for run in runs}
        jobs = [
            Job(id=run.id, config=plain_settings(run.config), folder=run_folder(folder, run), trusted=trusted)
            for run in picked
            if not (statuses[run.id].finished or statuses[run.id].state == "damaged")
        ]
        log(f"{plan.name}: {len(jobs)} of {len(runs)} runs to do in {folder}", type="plan")
        done = sum(status.finished for status in statuses.values())
        with PlanProgress(plan.name, jobs, total=len(jobs) + done) as progress:

            def on_event(event: Event) -> None:
                progress.tell(event)
                if isinstance(event, Finished):
                    statuses[event.result.id] = _after(statuses[event.result.id], event)

            try:
                if jobs:
                    (executor or LocalExecutor()).run(jobs, on_event)
            except KeyboardInterrupt:
                done = sum(status.finished for status in statuses.values())
                raise Interrupted(
                    f"stopped with {done} of {len(runs)} runs done; the states of the others are saved, and the same command "
                    "goes on with them"
                ) from None
            finally:
                status = PlanStatus(folder=folder, name=plan.name, runs=tuple(statuses.values()))
                save_to_file(_summary(status), folder, SUMMARY)
    return status


def check_complete(status: PlanStatus) -> None:
    """Refuse a plan of which runs failed.

    Raises:
        PlanFailed: lists them, each with its error, its folder and its log.
    """
    if not (failures := status.failures):
        return
    lines = [f"{len(failures)} of {len(status.runs)} runs failed in {status.folder}:"]
    for run in failures:
        folder = status.folder / "runs" / run.id
        tries = f" after {run.attempts} attempts" if run.attempts > 1 else ""
        reason = (run.error or "").strip().split("\n")[0][:_LONGEST_REASON]
        lines += [
            f"  {run.id}  {run.state}{tries}: {reason}",
            f"    folder {folder}",
            f"    log    {log_file(folder)}",
        ]
    raise PlanFailed(
        "\n".join(
            [*lines, "The same command tries the failed ones again; damaged ones it leaves as they are."]
        )
    )


def _picked(runs: Sequence[PlannedRun], seeds: Sequence[int], only: Sequence[str]) -> list[PlannedRun]:
    asked = [run for run in runs if run.seed in seeds]
    picked = [run for run in asked if not only or any(part in run.id for part in only)]
    if not picked:
        raise ConfigError(
            f"--only {' '.join(only)} picks none of the runs, which are called like {asked[0].id!r}: give a part of such a name"
        )
    return picked


def _check_code(runs: Sequence[PlannedRun], trusted: bool) -> None:
    code = sorted({name for run in runs for name in names_code(run.config)})
    if code and not trusted:
        raise ConfigError(
            f"this plan names code to be imported: {', '.join(code)}. If you trust it, add --trust."
        )


def _status(run: PlannedRun, folder: Path) -> RunStatus:
    place = run_folder(folder, run)
    state, error = state_of(run.config, place)
    return RunStatus(
        id=run.id,
        method=run.method,
        task=run.task,
        seed=run.seed,
        state=state,
        frames=frames_of(place),
        timesteps=run.config.timesteps,
        error=error,
    )


def _after(status: RunStatus, event: Finished) -> RunStatus:
    result = event.result
    return replace(
        status,
        state=result.state,
        frames=result.frames,
        seconds=result.seconds,
        attempts=event.attempts,
        error=result.error,
    )


def _summary(status: PlanStatus) -> dict[str, Any]:
    states = [run.state for run in status.runs]
    return {
        "name": status.name,
        "written": time.time(),
        "counts": {state: states.count(state) for state in sorted(set(states))},
        "failures": [run.id for run in status.failures],
        "runs": [asdict(run) for run in status.runs],
    }
