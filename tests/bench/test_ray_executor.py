"""Plans on a cluster of two nodes, as far as one machine can pretend to be two."""

import contextlib
import os
import re
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from marl_tools.bench import ray_executor
from marl_tools.bench.executors import Finished, Retrying, Started
from marl_tools.bench.jobs import Job, run_job
from marl_tools.bench.ray_executor import RayExecutor
from marl_tools.bench.ray_job import Surroundings, attempt
from marl_tools.core.cluster import Resources, connect
from marl_tools.core.errors import ConfigError, WorkerError
from marl_tools.core.ray_surroundings import ray_environment
from tests.bench.saboteur import TINY
from tests.experiment.test_resume import assert_same_run

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed"),
    pytest.mark.slow,
]

SHIELDED = {
    **TINY,
    "env": "crossing",
    "env_kwargs": {},
    "native": True,
    "shield": "ledger",
    "timesteps": 256,
    "final_policy_eval_episodes": 3,
}


@pytest.fixture(scope="module")
def head():
    """The pid of the daemon of a cluster's first node; this process has joined it, and there is one more node."""
    with ray_environment(own=True):
        yield from two_nodes()


def two_nodes():
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(initialize_head=True, head_node_args={**node, "temp_dir": folder})
        try:
            cluster.add_node(**node, wait=False)
            with connect(cluster.address):
                cluster.wait_for_nodes()
                yield cluster.head_node.all_processes["raylet"][0].process.pid
        finally:
            cluster.shutdown()


@pytest.fixture
def events():
    return []


def unlucky(folder, name, **kwargs):
    kwargs = {"max_cycles": 9, "marker": str(folder / f"{name}.marker"), **kwargs}
    return job(folder, name, {**TINY, "env": "tests.bench.unlucky:Unlucky", "env_kwargs": kwargs})


def job(folder, name, settings):
    return Job(id=name, config=settings, folder=folder / "plan" / "runs" / name, trusted=True)


def finished(events):
    return {event.result.id: event for event in events if isinstance(event, Finished)}


def assert_as_if_run_here(one, here):
    """What the job left is what it comes to in this process, undisturbed."""
    assert run_job(one.config, here / "runs" / one.id, True).state == "done"
    assert_same_run(one.folder, here / "runs" / one.id)


def test_ctrl_c_saves_the_runs_and_the_next_call_goes_on_with_them(head, events, tmp_path):
    one = unlucky(tmp_path, "a", harm="stop", pid=os.getpid())
    with pytest.raises(KeyboardInterrupt):
        RayExecutor().run([one], events.append)
    (end,) = finished(events).values()
    assert end.result.state == "interrupted"
    assert 0 < end.result.frames < 96
    RayExecutor().run([one], events.append)
    assert finished(events)["a"].result.state == "done"
    assert_as_if_run_here(one, tmp_path / "here")


def test_a_run_that_fails_is_reported_and_stops_no_other(head, events, tmp_path):
    wrong = job(
        tmp_path, "wrong", {**TINY, "env": "tests.envs_for_tests:Team", "env_kwargs": {"nonsense": 1}}
    )
    RayExecutor().run([wrong, job(tmp_path, "right", SHIELDED)], events.append)
    ends = finished(events)
    assert (ends["wrong"].result.state, ends["wrong"].attempts) == ("failed", 1)
    assert "nonsense" in ends["wrong"].result.error
    assert ends["right"].result.state == "done"
    assert not (tmp_path / "plan" / ".cluster").exists()


def test_what_no_node_is_big_enough_for_ends_with_what_there_is(head, events, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_executor, "_LOOK_SECONDS", 0.05)
    executor = RayExecutor(resources=Resources(cpus=64, custom={"telescope": 1}), patience=0.2)
    with pytest.raises(WorkerError, match=r"1 wait for 64 CPU, 1 telescope each, and 0 of 2 nodes are gone"):
        executor.run([job(tmp_path, "a", SHIELDED)], events.append)
    assert events == []


def test_a_node_that_does_not_see_the_folder_ends_the_plan_before_it_writes_elsewhere(
    head, events, tmp_path, monkeypatch
):
    not_shared = contextlib.nullcontext((tmp_path / "plan" / ".cluster", "another text"))
    monkeypatch.setattr(ray_executor, "_mark", lambda folder: not_shared)
    with pytest.raises(ConfigError, match=r"does not see .*plan, which the plan is written to"):
        RayExecutor().run([job(tmp_path, "a", SHIELDED)], events.append)
    assert finished(events) == {}
    assert not (tmp_path / "plan").exists()


def test_a_plan_outlives_a_worker_and_a_node_and_is_what_it_would_have_been(head, events, tmp_path):
    jobs = [unlucky(tmp_path, name, harm="lose", pid=head) for name in ("a", "b")]
    jobs.append(job(tmp_path, "c", SHIELDED))
    RayExecutor(retries=1).run(jobs, events.append)
    ends = finished(events)
    assert {name: (end.result.state, end.attempts) for name, end in ends.items()} == {
        "a": ("done", 2),
        "b": ("done", 2),
        "c": ("done", 1),
    }
    assert sorted((event.id, event.attempt) for event in events if isinstance(event, Started)) == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
        ("c", 1),
    ]
    retried = [event for event in events if isinstance(event, Retrying)]
    assert sorted((event.result.id, event.attempt) for event in retried) == [("a", 1), ("b", 1)]
    for one in jobs:
        assert_as_if_run_here(one, tmp_path / "here")


def test_a_run_that_was_lost_too_often_fails_and_says_how(head, events, tmp_path):
    harm = {"max_cycles": 9, "harm": "kill"}
    one = job(tmp_path, "a", {**TINY, "env": "tests.bench.saboteur:Saboteur", "env_kwargs": harm})
    RayExecutor(retries=0).run([one], events.append)
    (end,) = finished(events).values()
    assert (end.result.state, end.attempts) == ("failed", 1)
    assert re.search(r"process \d+ on \S+ was lost: The worker died unexpectedly", end.result.error)
    assert (one.folder / "error.json").exists()


def test_the_mark_of_a_call_that_was_killed_misleads_no_later_one(tmp_path):
    (tmp_path / ".cluster").write_text("of a call that was killed")
    with ray_executor._mark(tmp_path) as (path, text):
        assert path.read_text() == text
        stale = Surroundings(
            directory=tmp_path, paths=(), variables={}, mark=(path, "of a call that was killed")
        )
        with pytest.raises(ConfigError, match="does not see"):
            stale.enter()
    assert list(tmp_path.iterdir()) == []


def test_modules_and_files_of_the_caller_are_there_for_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("modules")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (tmp_path / ".cluster").write_text("text")
    surroundings = Surroundings.here((tmp_path / ".cluster", "text"))
    assert str(tmp_path / "modules") in surroundings.paths
    assert not any(path.endswith("site-packages") for path in surroundings.paths), "each node has its own"
    monkeypatch.undo()
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.chdir(Path.cwd())
    surroundings.enter()
    assert Path.cwd() == tmp_path
    assert str(tmp_path / "modules") in sys.path
    assert os.environ["WANDB_MODE"] == "disabled"


def test_an_attempt_says_first_who_makes_it(tmp_path):
    items = attempt(job(tmp_path, "a", SHIELDED), Surroundings.here((tmp_path / "nowhere", "text")))
    assert next(items).pid == os.getpid()
    with pytest.raises(ConfigError, match="must share that folder"):
        next(items)
