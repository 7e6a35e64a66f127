"""A cluster of this machine, started and ended here; two nodes are in tests/bench/test_ray_executor.py."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from marl_tools.core.cluster import CancelledError, Resources, WorkerLostError, connect
from marl_tools.core.errors import ConfigError, MissingExtraError

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed")
ONE = Resources(cpus=1)


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, amount):
        self.value += amount
        return self.value

    def fail(self):
        raise ZeroDivisionError("as asked")

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


def items(last, pause):
    yield os.getpid()
    time.sleep(pause)
    yield last


def wait_for_ctrl_c(path):
    Path(path).touch()
    try:
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        Path(path).write_text("saved")
        raise


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        with connect(cpus=2) as cluster:
            yield cluster


@with_ray
@pytest.mark.slow
def test_actors_keep_their_state_raise_what_they_raise_and_are_missed_when_lost(cluster):
    actor = cluster.actor(Counter, 3, resources=ONE, spread=True)
    calls = [actor.add.remote(amount) for amount in (1, 2)]
    assert cluster.ready(calls, timeout=60, count=2) == calls
    assert [cluster.result(call, timeout=60) for call in calls] == [4, 6]
    with pytest.raises(ZeroDivisionError, match="as asked") as caught:
        cluster.result(actor.fail.remote(), timeout=60)
    assert "in fail" in caught.value.__notes__[0] or "Counter.fail" in caught.value.__notes__[0]
    with pytest.raises(WorkerLostError, match="actor died"):
        cluster.result(actor.die.remote(), timeout=60)
    cluster.kill(actor)


@with_ray
@pytest.mark.slow
def test_a_stream_tells_item_by_item_and_says_when_its_process_is_lost(cluster):
    stream = cluster.stream(items, "end", 0, resources=ONE)
    assert cluster.item(stream, timeout=60) != os.getpid()
    assert cluster.item(stream, timeout=60) == "end"
    with pytest.raises(StopIteration):
        cluster.item(stream, timeout=60)
    stream = cluster.stream(items, "end", 600, resources=ONE, name="a stream")
    assert cluster.ready([stream], timeout=60) == [stream]
    os.kill(cluster.item(stream, timeout=60), signal.SIGKILL)
    assert cluster.ready([stream], timeout=60) == [stream]
    with pytest.raises(WorkerLostError, match="worker died"):
        cluster.item(stream, timeout=60)


@with_ray
@pytest.mark.slow
def test_what_cannot_be_placed_is_not_waited_for_without_end(cluster):
    task = cluster.submit(os.path.join, "a", "b", resources=Resources(custom={"telescope": 1}))
    assert cluster.ready([task], timeout=0.1) == []
    with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
        cluster.result(task, timeout=0.1)
    cluster.cancel(task)
    with pytest.raises(CancelledError):
        cluster.result(task, timeout=60)
    assert cluster.ready([], timeout=60) == []


@with_ray
@pytest.mark.slow
def test_a_cancelled_task_is_told_as_by_ctrl_c(cluster, tmp_path):
    task = cluster.submit(wait_for_ctrl_c, str(tmp_path / "file"), resources=ONE)
    while not (tmp_path / "file").exists():
        assert cluster.ready([task], timeout=0.05) == []
    cluster.cancel(task)
    with pytest.raises(CancelledError):
        cluster.result(task, timeout=60)
    assert (tmp_path / "file").read_text() == "saved"


@with_ray
@pytest.mark.slow
def test_who_has_joined_a_cluster_stays_in_it(cluster, monkeypatch):
    with connect() as again:
        assert again.address == cluster.address
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"is in the cluster at .*shutdown\(\) before 127\.0\.0\.1:1"):
        with connect():
            pass
    (node,) = cluster.nodes()
    assert node.fits(Resources(cpus=2))
    assert not node.fits(Resources(cpus=3))
    assert cluster.free()["CPU"] <= 2


@with_ray
@pytest.mark.slow
def test_a_cluster_of_ones_own_leaves_no_process_and_no_folder():
    script = (
        "import os\n"
        "from marl_tools.core.cluster import connect\n"
        "with connect('local', cpus=1):\n"
        "    print(*os.listdir(os.environ['TMPDIR']))\n"
    )
    # Not pytest's, which is too deep for sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        environment = {**os.environ, "TMPDIR": folder, "HOME": folder}
        run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        (ours,) = (name for name in run.stdout.split() if name.startswith("marl-ray-"))
        while running_with(ours):
            time.sleep(0.05)
        assert os.listdir(folder) == [".ray"], "its token, which Ray keeps"
    assert "WARNING" not in run.stderr


def running_with(word):
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes())
    return [line for line in lines if word.encode() in line]


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r'pip install "marl-tools\[ray\]"'):
        with connect():
            pass
