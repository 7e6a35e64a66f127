"""Workers in trouble: envs that raise, processes that die or hang, parents that are killed, and what is left of them all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marl_tools.core.errors import EnvError, WorkerError
from marl_tools.core.seeding import episode_seed
from marl_tools.vector import SerialVectorEnv, WorkerVectorEnv
from tests.vector.test_workers import ENV, ROOT, same, workers
from tests.vector.worker_envs import LIVES, employer, lives, threaded, troubled, unlike


def idle(envs: Any) -> dict[str, np.ndarray]:
    return {g.name: np.zeros((envs.num_envs, len(g.agents)), np.int64) for g in envs.groups}


def advance(envs: Any, steps: int) -> list[Any]:
    """Steps in which nobody does anything; returns the logs."""
    return [log for _ in range(steps) for log in envs.step(idle(envs)).episodes]


def pids(envs: WorkerVectorEnv) -> list[int]:
    return [worker.pid for worker in envs._crew.workers]


def alive(pid: int) -> bool:
    with suppress(OSError):
        # A zombie is dead, though nobody has read its exit code yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(condition: Any, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_what_an_env_raises_is_raised_here_with_its_copy_and_the_workers_traceback():
    envs = workers(partial(troubled, trouble="raise"), 5)
    envs.reset(2)
    logs = advance(envs, 4)
    with pytest.raises(ZeroDivisionError, match="the wheel came off") as caught:
        envs.step(idle(envs))
    where, trace = caught.value.__notes__
    assert where == f"in copy 3 of team_v0, episode seed {episode_seed(2, 5 + 3)}, step 1"
    assert trace.startswith(f"raised in worker process {pids(envs)[1]} with copies 2 to 4 of team_v0:\n")
    assert "in get_into_trouble" in trace
    with pytest.raises(EnvError, match=r"not running: call reset\(seed\)"):
        envs.step(idle(envs))
    # The others go on after a reset, and every episode is in some log.
    logs += envs.reset(2).episodes
    logs += envs.close()
    assert [(log.env_index, log.episode, log.length) for log in logs if log.length == 4] == [
        (copy, 0, 4) for copy in range(5)
    ]
    assert [log.env_index for log in logs if log.interrupted] == [0, 1, 2]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [("odd", "OddError: the wheel came off, really: True"), ("quit", "SystemExit: enough")],
)
def test_what_cannot_be_raised_here_comes_as_an_env_error_that_says_what_it_was(trouble, message):
    envs = workers(partial(troubled, trouble=trouble, at=1), 4)
    envs.reset(0)
    with pytest.raises(EnvError, match=message) as caught:
        envs.step(idle(envs))
    assert "get_into_trouble" in caught.value.__notes__[-1]
    if trouble == "odd":
        assert caught.value.__notes__[0].startswith("in copy 3 of team_v0")
    envs.close()


@pytest.mark.parametrize(
    ("trouble", "how"),
    [
        ("kill", r"was killed by signal 9 \(Killed\)"),
        ("exit", "ended with exit code 3"),
        ("hang", "gave no answer"),
    ],
)
def test_a_worker_that_dies_or_hangs_is_named_and_its_episodes_are_logged(trouble, how):
    envs = workers(partial(troubled, trouble=trouble, at=7), 5, timeout=2.0 if trouble == "hang" else 60.0)
    serial = SerialVectorEnv(partial(troubled, trouble="none"), 5)
    envs.reset(0), serial.reset(0)
    logs, pid = advance(envs, 6), pids(envs)[1]
    with pytest.raises(WorkerError, match=f"worker process {pid} with copies 2 to 4 of team_v0 {how}"):
        envs.step(idle(envs))
    assert not alive(pid)
    with pytest.raises(WorkerError, match=how):
        envs.reset(0)
    logs += envs.close()
    # What the dead were playing is logged as if they had been closed in time.
    expected = advance(serial, 6)
    assert list(map(same, logs[:5])) == list(map(same, expected))
    dead = [same(log) for log in logs[5:] if log.env_index >= 2]
    assert dead == [same(log) for log in serial.close() if log.env_index >= 2]
    assert all(log.interrupted and log.costs == {"agent_0": 0.0, "agent_1": 0.0} for log in dead)


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_what_a_dead_worker_was_playing_is_known_to_the_last_figure(steps):
    envs, serial = workers(lives, len(LIVES), 1), SerialVectorEnv(lives, len(LIVES))
    envs.reset(1), serial.reset(1)
    for each in (envs, serial):
        for t in range(steps):
            notes = [
                {"overrides": {"agent_0": copy}, "bound": {"agent_0": 0.1 * t}} for copy in range(len(LIVES))
            ]
            each.step(idle(each), notes)
    os.kill(pids(envs)[0], signal.SIGKILL)
    assert list(map(same, envs.close())) == list(map(same, serial.close()))


def test_workers_that_die_are_replaced_where_that_is_allowed():
    envs = workers(partial(troubled, trouble="kill", at=6, copies=(1, 3)), 4, on_worker_death="restart")
    envs.resume(frames=1000, episodes_started=8)
    step, logs, lost, cut = envs.reset(5), [], 0, 0
    for t in range(20):
        step = envs.step(idle(envs))
        logs += step.episodes
        group = step.groups["agent"]
        if step.lost is not None:
            lost += 1
            # Cut off without a reward, and already in the next episode.
            assert group.truncated[step.lost].all()
            assert not group.rewards[step.lost].any()
            assert (group.obs[step.lost][..., 0] == 0).all()
            cut += int(step.lost.sum())
        assert group.active.all()
        assert envs.frames == 1000 + 4 * (t + 1)
    logs += envs.close()
    assert lost
    # Each is killed at its sixth step: once in a worker of two copies, at steps 6, 12 and 18.
    assert cut == 3 * 4
    interrupted = [log for log in logs if log.interrupted]
    assert [(log.t_start, log.t_end, log.length) for log in interrupted[:4]] == [(1016, 1020, 1)] * 4
    seeds = [log.seed for log in logs]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [episode_seed(5, log.episode * 4 + log.env_index) for log in logs]
    for copy in range(4):
        numbers = [log.episode for log in logs if log.env_index == copy]
        assert numbers == list(range(8, 8 + len(numbers)))
    assert sum(log.length for log in logs) == 4 * 20 - cut
    assert {log.length for log in logs if not log.interrupted} == {4}


def test_a_worker_that_dies_between_steps_is_replaced_at_the_next_reset_too():
    envs = workers(lives, 4, on_worker_death="restart")
    envs.reset(0)
    advance(envs, 2)
    os.kill(pids(envs)[0], signal.SIGKILL)
    step = envs.reset(0)
    assert sorted((log.env_index, log.length) for log in step.episodes) == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert step.groups["agent"].active[:2].all()
    assert envs.close() == []


def test_a_worker_whose_replacement_dies_at_once_is_not_replaced_for_ever():
    envs = workers(partial(troubled, trouble="none"), 2, on_worker_death="restart")
    envs.reset(0)
    envs._crew._make_env = b"cunlikely_module\nenv\n."
    os.kill(pids(envs)[0], signal.SIGKILL)
    with pytest.raises(ModuleNotFoundError, match="unlikely_module") as caught:
        envs.step(idle(envs))
    assert "right after it took the place of a dead one" in caught.value.__notes__[-1]
    envs.close()


def test_an_env_that_cannot_be_built_in_a_worker_says_why_and_leaves_no_process():
    before = multiprocessing.active_children()
    with pytest.raises(EnvError, match="no licence in this process") as caught:
        workers(unlike, 4)
    assert "with copies 0 to 1 of" in caught.value.__notes__[-1]
    assert multiprocessing.active_children() == before


def test_closing_twice_returns_the_open_episodes_once_and_ends_every_process():
    envs = workers(lives, 4)
    envs.reset(0)
    logs, crew = advance(envs, 2), pids(envs)
    closed = envs.close()
    assert len(logs) + len(closed) == 4
    assert envs.close() == []
    assert not any(map(alive, crew))
    with pytest.raises(EnvError, match="was closed and cannot be reset"):
        envs.reset(0)


def test_a_copy_that_fails_to_close_keeps_neither_the_processes_nor_the_logs():
    envs = workers(partial(troubled, trouble="raise", at=-1), 4)
    envs.reset(0)
    advance(envs, 1)
    crew = pids(envs)
    with pytest.raises(ZeroDivisionError, match="the wheel came off"):
        envs.close()
    assert not any(map(alive, crew))
    assert [log.env_index for log in envs.close()] == [0, 1, 2, 3]


def test_workers_that_hang_are_closed_all_the_same(monkeypatch):
    monkeypatch.setattr("marl_tools.vector.workers._CLOSING_SECONDS", 0.5)
    envs = workers(partial(troubled, trouble="hang", at=2), 4, pipeline=True)
    envs.reset(0)
    advance(envs, 1)
    envs.send(0, {"agent": np.zeros((2, 2), np.int64)})
    envs.send(1, {"agent": np.zeros((2, 2), np.int64)})
    crew = pids(envs)
    # Those that did answer are one step further.
    assert sorted((log.env_index, log.length) for log in envs.close()) == [(0, 2), (1, 2), (2, 1), (3, 1)]
    assert not any(map(alive, crew))


def test_a_wait_that_was_interrupted_loses_no_episode_whatever_it_had_read():
    envs = workers(partial(troubled, trouble="none"), 4)
    envs.reset(0)
    logs = advance(envs, 3)
    first, second = envs._crew.workers
    envs._send(envs._whole, idle(envs), None)
    # As if Ctrl-C had struck after one answer was read, and the other's request had never left.
    assert [log.length for log in first.receive().episodes] == [4, 4]
    second.receive()
    second.waiting = True
    logs += envs.close()
    assert sorted((log.env_index, log.length) for log in logs) == [(copy, 4) for copy in range(4)]


@pytest.mark.parametrize("end", ["close", "reset"])
def test_episodes_are_told_once_though_a_wait_was_interrupted(end):
    envs = workers(partial(troubled, trouble="none"), 4)
    envs.reset(0)
    logs = advance(envs, 3)
    envs._send(envs._whole, idle(envs), None)
    # One answer is taken in, the other is still on its way.
    envs._crew.collect([0])
    logs += envs.close() if end == "close" else envs.reset(0).episodes
    assert sorted((log.env_index, log.episode, log.length) for log in logs) == [(c, 0, 4) for c in range(4)]
    assert envs.close() == []


def test_a_worker_that_dies_between_steps_is_replaced_when_a_state_is_taken():
    envs = workers(lives, 4, on_worker_death="restart")
    envs.reset(0)
    logs = advance(envs, 2)
    os.kill(pids(envs)[1], signal.SIGKILL)
    state = envs.state()
    assert [copy["builder"]["length"] for copy in state["copies"]] == [2, 2, 0, 0]
    step = envs.step(idle(envs))
    logs += step.episodes
    assert step.lost is None
    assert [(log.env_index, log.length) for log in logs if log.interrupted] == [(2, 2), (3, 2)]
    envs.close()


@pytest.mark.parametrize("kind", ["program", "fork"])
def test_what_an_env_started_can_be_ended_by_it(kind, tmp_path):
    envs = workers(partial(employer, kind=kind, folder=tmp_path), 2)
    started = [int((tmp_path / f"{copy}").read_text()) for copy in range(2)]
    assert all(map(alive, started))
    envs.close()
    # Else the workers would have waited until they were killed, and left them behind.
    assert not any(map(alive, started))


@pytest.mark.parametrize(("said", "threads"), [(None, 1), ("3", 3)])
def test_a_worker_computes_in_one_thread_unless_somebody_said_otherwise(monkeypatch, said, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    envs = WorkerVectorEnv(threaded, 1, 1)
    assert os.environ.get("OMP_NUM_THREADS") == said
    envs.reset(0)
    assert set(envs.step(idle(envs)).groups["agent"].rewards.ravel()) == {threads}
    envs.close()


UNGUARDED = """
from marl_tools.core.wrappers import EpisodeRecorder
from marl_tools.vector import WorkerVectorEnv
from tests.vector.worker_envs import Team
def make(env_index):
    return EpisodeRecorder(Team(), env_index=env_index)
WorkerVectorEnv(make, 2, 1)
"""


def test_a_main_script_that_needs_a_guard_is_told_so(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, script], cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "WorkerError: worker process" in last
    assert "defined in the main script" in last
    assert "if __name__ == '__main__':" in last


@pytest.mark.parametrize(("arguments", "source"), [(["-c", UNGUARDED], ""), (["-"], UNGUARDED)])
def test_a_factory_of_an_interactive_session_is_refused_up_front(arguments, source):
    done = subprocess.run(
        [sys.executable, *arguments],
        input=source,
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "ConfigError: <function make" in done.stderr.splitlines()[-1]
    assert "put that into a module, or leave workers at 0" in done.stderr.splitlines()[-1]


SCRIPT = """
import os, sys, time
from functools import partial
import numpy as np
from marl_tools.vector import WorkerVectorEnv
from tests.vector.worker_envs import troubled
envs = WorkerVectorEnv(partial(troubled, trouble="hang", at={at}, max_cycles=5), 4, 2, start_method="{method}", timeout={timeout})
envs.reset(0)
print(*[worker.pid for worker in envs._crew.workers], flush=True)
try:
    parent = os.getppid()
    # It does not outlive a test session that is killed.
    for t in range(10**9):
        if os.getppid() != parent:
            os._exit(1)
        envs.step({{"agent": np.zeros((4, 2), np.int64)}})
        if t == 3:
            print("playing", flush=True)
except KeyboardInterrupt:
    print("interrupted", len(envs.close()) if {close} else "and dropped", flush=True)
    del envs
"""


started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_script_outlives_its_test():
    yield
    while started:
        started.pop().kill()


def run_script(
    at: int, method: str, *, timeout: float = 120.0, close: bool = True
) -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(at=at, method=method, timeout=timeout, close=close)],
        cwd=ROOT,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(process)
    assert process.stdout
    crew = [int(pid) for pid in process.stdout.readline().split()]
    assert process.stdout.readline() == "playing\n"
    return process, crew


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_parent_that_is_killed_leaves_no_process_and_no_shared_memory(method):
    before = set(os.listdir("/dev/shm"))
    # One worker hangs in its env, the other waits for a request.
    process, crew = run_script(at=8, method=method)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not any(map(alive, crew)))
    assert set(os.listdir("/dev/shm")) <= before


def test_ctrl_c_reaches_the_parent_alone():
    process, crew = run_script(at=10**9, method="spawn")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (err, process.returncode) == ("", 0)
    assert out.startswith("interrupted ")
    assert not any(map(alive, crew))


def test_a_vector_env_that_is_dropped_takes_its_workers_along_though_they_hang():
    process, crew = run_script(at=8, method="spawn", close=False)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("interrupted and dropped\n", "", 0)
    assert not any(map(alive, crew))


def test_time_in_which_the_whole_program_is_stopped_does_not_count_as_a_workers():
    process, _ = run_script(at=10**9, method="spawn", timeout=4.0)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(4.5)
    os.killpg(process.pid, signal.SIGCONT)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (err, process.returncode) == ("", 0)
    assert out.startswith("interrupted ")
