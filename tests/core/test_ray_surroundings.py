import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from marl_tools.core.errors import ConfigError
from marl_tools.core.ray_surroundings import probe, ray_environment, short_temp_dir, sigterm_kept

NICENESS = "RAY_worker_niceness"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", r"no Ray cluster at 127\.0\.0\.1:1 .*refused.* by: ray start --head --port 1"),
        ("[::1]:70000", r"no Ray cluster at \[::1\]:70000"),
        ("nonsense", "'nonsense' is no address of a Ray cluster: give host:port"),
        ("ray://127.0.0.1:10001", "is no address of a Ray cluster: give host:port of its head"),
        ("http://127.0.0.1:8265", "is no address of a Ray cluster"),
    ],
)
def test_an_address_where_there_is_no_cluster_is_refused_at_once(address, reason):
    with pytest.raises(ConfigError, match=reason):
        probe(address)


def test_an_address_where_somebody_listens_is_left_to_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe(f"127.0.0.1:{server.getsockname()[1]}")
    probe("auto")
    probe("local")


@pytest.fixture
def home(tmp_path, monkeypatch):
    # Set first, so that what a test leaves is undone.
    for name in ("RAY_AUTH_MODE", *(name for name in os.environ if name.startswith("RAY_"))):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_no_token_is_asked_for_where_there_is_none(home):
    with ray_environment(own=False):
        assert "RAY_AUTH_MODE" not in os.environ


def test_a_token_is_used_for_a_cluster_of_ones_own(home):
    with ray_environment(own=True):
        assert os.environ["RAY_AUTH_MODE"] == "token"


def test_a_token_is_used_where_there_is_one_for_as_long_as_the_process_lives(home):
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0123")
    with ray_environment(own=False):
        pass
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_what_the_user_has_set_for_ray_stays(home, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv(NICENESS, "7")
    with ray_environment(own=True):
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
        assert os.environ[NICENESS] == "7"
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


def test_the_folder_of_a_cluster_is_short_enough_for_sockets_and_gone_afterwards(tmp_path, monkeypatch):
    deep = tmp_path / ("a" * 60)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with short_temp_dir() as folder:
        assert len(str(folder)) <= 40
        assert folder.parent == Path("/tmp")
        (folder / "log").write_text("a log")
    assert not folder.exists()


def test_the_answer_to_sigterm_is_the_same_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) == before
