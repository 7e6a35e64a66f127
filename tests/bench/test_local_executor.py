"""A process a run: what one does to itself, no other feels; and all stop together."""

import json
import os

import pytest

from marl_tools.bench.executors import Finished, Retrying, Started
from marl_tools.bench.jobs import Job, log_file, run_job
from marl_tools.bench.local_executor import LocalExecutor
from marl_tools.core.io import read_jsonl
from tests.bench.saboteur import SABOTEUR, TEAM, TINY

FINE = {"env": TEAM, **TINY}


def harmful(harm, **kwargs):
    return {"env": SABOTEUR, **TINY, "env_kwargs": {"max_cycles": 9, "harm": harm, **kwargs}}


def carry_out(folder, settings, **kwargs):
    """The events of jobs with these settings by id; a KeyboardInterrupt is the last of them."""
    jobs = [Job(id=id, config=own, folder=folder / "runs" / id, trusted=True) for id, own in settings.items()]
    events = []
    try:
        LocalExecutor(**kwargs).run(jobs, events.append)
    except KeyboardInterrupt as stop:
        events.append(stop)
    return events


def results(events):
    return {event.result.id: event for event in events if isinstance(event, Finished)}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A folder, and the events of a plan in which two runs do themselves harm always, one once, and the last none."""
    folder = tmp_path_factory.mktemp("plan")
    settings = {
        "raises": harmful("raise"),
        "killed": harmful("kill"),
        "mended": harmful("kill", marker=str(folder / "harmed")),
        "fine": FINE,
    }
    return folder, carry_out(folder, settings, retries=1)


def test_runs_that_fail_or_are_killed_fail_alone(mixed):
    _, events = mixed
    ends = {id: (end.result.state, end.attempts) for id, end in results(events).items()}
    assert ends == {
        "raises": ("failed", 1),
        "killed": ("failed", 2),
        "mended": ("done", 2),
        "fine": ("done", 1),
    }


def test_every_attempt_is_told_of_and_a_further_one_waits_for_the_others(mixed):
    _, events = mixed
    names = {Started: "started", Retrying: "retrying", Finished: "finished"}
    told = [
        (names[type(event)], event.id if isinstance(event, Started) else event.result.id) for event in events
    ]
    assert told == [
        *[(what, "raises") for what in ("started", "finished")],
        *[(what, id) for id in ("killed", "mended") for what in ("started", "retrying")],
        *[(what, id) for id in ("fine", "killed", "mended") for what in ("started", "finished")],
    ]


def test_a_killed_process_is_named_with_its_signal_in_its_run_too(mixed):
    folder, events = mixed
    result = results(events)["killed"].result
    assert "was killed by signal 9 (Killed)" in result.error
    assert 0 < result.frames < 96
    assert json.loads((folder / "runs" / "killed" / "error.json").read_text())["message"] in result.error
    assert "ZeroDivisionError" in log_file(folder / "runs" / "raises").read_text()


def test_a_run_is_the_same_in_a_process_of_its_own_killed_midway_or_not(mixed, tmp_path):
    folder, _ = mixed
    # Harm that has been done already: the same settings play to the end here.
    alone = tmp_path / "runs" / "mended"
    assert run_job(
        json.loads((folder / "runs" / "mended" / "config.json").read_text()) | {"out": None}, alone, True
    ).finished
    logs = [list(read_jsonl(run / "episodes.jsonl")) for run in (folder / "runs" / "mended", alone)]
    for log in logs:
        for episode in log:
            del episode["wall_time"]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 10


def test_told_to_stop_all_running_jobs_save_their_state_and_go_on_when_called_again(tmp_path):
    stop = {"pid": os.getpid(), "marker": str(tmp_path / "harmed")}
    settings = {"stops": harmful("stop", **stop), "long": FINE | {"timesteps": 1_000_000}, "later": FINE}
    events = carry_out(tmp_path, settings, jobs=2)
    assert isinstance(events[-1], KeyboardInterrupt)
    ends = {id: end.result.state for id, end in results(events).items()}
    assert ends == {"stops": "interrupted", "long": "interrupted"}
    assert not (tmp_path / "runs" / "later").exists()
    del settings["long"]
    assert {end.result.state for end in results(carry_out(tmp_path, settings)).values()} == {"done"}


def test_without_jobs_there_is_nothing_to_wait_for(tmp_path):
    assert carry_out(tmp_path, {}) == []
