import fcntl
import os
import threading

import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.experiment import lock
from marl_tools.experiment.lock import RunLock, holder, wait_until_free


@pytest.fixture
def held_lock(tmp_path):
    """A lock that another open file holds, as another process would; tests write into it who that is."""
    with open(tmp_path / "run.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def name_holder(file, text):
    file.write(text)
    file.flush()


def test_a_lock_names_process_and_machine_and_is_renewed_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_RENEWAL_SECONDS", 0.001)
    with RunLock(tmp_path):
        who = holder(tmp_path)
        assert who.pid == os.getpid()
        assert who.host
        assert not who.is_elsewhere
        os.utime(tmp_path / "run.lock", (1, 1))
        while (tmp_path / "run.lock").stat().st_mtime == 1:
            threading.Event().wait(0.001)
    assert not (tmp_path / "run.lock").exists()


def test_a_lock_of_a_machine_that_is_gone_is_taken_over(tmp_path, held_lock):
    name_holder(held_lock, "4711 a-machine-that-burnt-down\n")
    with pytest.raises(ConfigError, match=r"process 4711 on a-machine-that-burnt-down.*gone, remove"):
        RunLock(tmp_path).__enter__()
    wait_until_free(tmp_path, seconds=60, silence=0.2)
    with RunLock(tmp_path):
        assert holder(tmp_path).pid == os.getpid()


def test_a_lock_of_another_machine_that_is_renewed_is_left_alone(tmp_path, held_lock):
    name_holder(held_lock, "4711 a-busy-machine\n")
    done = threading.Event()

    def renew():
        for moment in range(10**9):
            if done.wait(0.01):
                return
            os.utime(held_lock.fileno(), (moment, moment))

    renewal = threading.Thread(target=renew)
    renewal.start()
    with pytest.raises(ConfigError, match="in use by process 4711 on a-busy-machine"):
        wait_until_free(tmp_path, seconds=2.5, silence=2.0)
    done.set()
    renewal.join()
    assert (tmp_path / "run.lock").exists()


@pytest.mark.parametrize("content", ["", "4711\n", f"4711 {lock.platform.node()}\n", "\x1b[2J not a pid"])
def test_a_silent_lock_of_this_machine_is_no_dead_one(tmp_path, held_lock, content):
    name_holder(held_lock, content)
    with pytest.raises(ConfigError, match=r"is in use by process (4711|-1):"):
        wait_until_free(tmp_path, seconds=0.3, silence=0.0)
    assert (tmp_path / "run.lock").exists()


def test_waiting_ends_when_the_holder_lets_go(tmp_path, held_lock):
    name_holder(held_lock, "4711 elsewhere\n")
    release = threading.Timer(0.2, fcntl.flock, (held_lock, fcntl.LOCK_UN))
    release.start()
    wait_until_free(tmp_path, seconds=60, silence=60)
    release.join()
    assert (tmp_path / "run.lock").exists(), "it was waited for, not removed"


def test_nobody_waits_for_a_folder_that_is_not_in_use(tmp_path):
    wait_until_free(tmp_path / "not there", seconds=0)
    wait_until_free(tmp_path, seconds=0)


def test_who_was_taken_for_dead_does_not_remove_the_lock_of_the_next(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / "run.lock").unlink()
        (tmp_path / "run.lock").write_text("4711 elsewhere\n")
    assert (tmp_path / "run.lock").exists()
