import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from urllib.parse import quote

import pytest

from marl_tools.bench.report.serve import ReportServer
from marl_tools.core.errors import ConfigError
from tests.bench.report.test_in_browser import complaints, until


@contextmanager
def served(folder, **how):
    """A server in a thread that looks for news at every question."""
    with ReportServer(folder, port=0, **how) as server:
        server.report.work = float("inf")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


def ask(server, path, *, method="GET", host=None, **headers):
    """Status, headers and body of a reply, the path as it is written."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or server.url[7:-1])
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, reply.headers, body


def add_episodes(run, count=20):
    lines = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
    with open(run / "episodes.jsonl", "a") as file:
        file.writelines(lines[-1:] * count)


def test_a_server_listens_on_this_machine_alone(run):
    with served(run) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert server.url == f"http://127.0.0.1:{server.server_address[1]}/"


def test_the_page_is_live_and_tells_news_once(run):
    with served(run) as server:
        status, headers, page = ask(server, "/")
        assert status == 200
        assert headers["Content-Type"].startswith("text/html")
        assert b'data-live="2.0"' in page
        version = json.loads(ask(server, "/news?since=0")[2])["version"]
        assert json.loads(ask(server, f"/news?since={version}")[2]) == {"version": version}
        add_episodes(run)
        news = json.loads(ask(server, f"/news?since={version}")[2])
        assert news["version"] > version
        assert "returns" in news["figures"]


def test_details_of_a_run_are_told_by_its_number_alone(plan):
    with served(plan) as server:
        reply = json.loads(ask(server, "/run/0")[2])
        assert "What this run shows" in reply["body"]
        assert "run-0-returns" in reply["figures"]
        for number in ("10", "-1", "x", "", "1e0", "٣", "9" * 30):
            assert ask(server, f"/run/{quote(number)}")[0] == 404


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-99", (0, 100)),
        ("bytes=100-", (100, None)),
        ("bytes=-10", (-10, None)),
        ("bytes=5-999999999", (5, None)),
        ("bytes=0-0", (0, 1)),
    ],
)
def test_a_player_gets_the_part_of_a_film_that_it_asks_for(run, asked, part):
    clip = next((run / "videos").glob("*.mp4"))
    whole = clip.read_bytes()
    with served(run) as server:
        status, headers, body = ask(server, f"/videos/{clip.name}", Range=asked)
    assert status == 206
    assert body == whole[slice(*part)]
    first = len(whole) - len(body) if part[1] is None else part[0]
    assert headers["Content-Range"] == f"bytes {first}-{first + len(body) - 1}/{len(whole)}"


def test_a_film_comes_whole_unless_a_part_is_asked_for(run):
    clip = next((run / "videos").glob("*.mp4"))
    with served(run) as server:
        path = f"/videos/{clip.name}"
        for how in ({}, {"Range": "bytes=x"}, {"Range": "bytes=0-1,3-4"}):
            status, headers, body = ask(server, path, **how)
            assert (status, body) == (200, clip.read_bytes())
            assert headers["Accept-Ranges"] == "bytes"
        assert ask(server, path, Range="bytes=999999999-")[0] == 416
        status, headers, body = ask(server, path, method="HEAD")
        assert (status, body, int(headers["Content-Length"])) == (200, b"", clip.stat().st_size)


@pytest.mark.parametrize(
    "path",
    [
        "/config.json",
        "/../config.json",
        "/videos/../config.json",
        "/videos/%2e%2e/config.json",
        "/videos/..%2fconfig.json",
        "//etc/passwd",
        "/%2fetc/passwd",
        "/videos/",
        "/videos/secret.mp4",
        "/videos/%00",
    ],
)
def test_nothing_but_the_page_and_its_films_is_given_out(run, path):
    secret = run.parent / "secret.mp4"
    secret.write_bytes(b"secret")
    (run / "videos" / "secret.mp4").symlink_to(secret)
    with served(run) as server:
        status, _, body = ask(server, path)
    assert status == 404
    assert b"secret" not in body


def test_a_page_of_elsewhere_cannot_read_it_under_a_name_of_its_own(run):
    with served(run) as server:
        assert ask(server, "/", host="evil.example")[0] == 403
        assert ask(server, "/news", host="evil.example:80")[0] == 403
        assert ask(server, "/news", host="[::")[0] == 403
        assert ask(server, "/news", host="localhost:80")[0] == 200


def test_a_port_that_is_taken_is_refused_with_the_remedy(run):
    with served(run) as server, pytest.raises(ConfigError, match="give another --port"):
        ReportServer(run, port=server.server_address[1])


def test_a_live_page_shows_what_comes_without_being_loaded_anew(browser, plan):
    run = next((plan / "runs").glob("ippo-crossing-s0-*"))
    done = (run / "done.json").read_bytes()
    (run / "done.json").unlink()
    with served(plan) as server:
        server.report.seconds = 0.1
        browser.get(server.url)
        browser.execute_script("window.same = true; document.querySelector('tbody.run button.open').click()")
        until(browser, "return document.querySelector('.place .figure')")
        tile = "return document.querySelector('.tile dd').textContent"
        assert browser.execute_script(tile) == "9 of 10"
        (run / "done.json").write_bytes(done)
        add_episodes(run)
        until(browser, "return document.querySelector('.tile dd').textContent === '10 of 10'")
        assert until(browser, "return document.querySelector('tbody.run').dataset.state === 'done'")
        assert browser.execute_script(
            "return window.same && document.querySelector('tbody.run button.open').ariaExpanded === 'true'"
        )
        assert complaints(browser) == []


def test_ctrl_c_ends_a_server_cleanly(run):
    command = "from marl_tools.cli import main; raise SystemExit(main())"
    call = [sys.executable, "-c", command, "report", str(run), "--serve", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, **pipes) as process:
        try:
            assert process.stdout is not None
            assert re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
    assert process.returncode == 0
    assert "no longer served" in out
    assert err == ""
