"""``marl-tools report --serve``: the page of a run or a plan that goes on, over HTTP on this machine."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import sys
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qs, unquote, urlsplit

from marl_tools.bench.report.clips import Videos
from marl_tools.bench.report.live import LiveReport
from marl_tools.core.errors import ConfigError

DEFAULT_PORT = 8642
_CHUNK = 2**16


class ReportServer(ThreadingHTTPServer):
    """Serves the report of one folder; ``with`` closes it. Use ``serve_forever()``.

    Args:
        folder: a run, or a plan.
        host: 127.0.0.1 unless others are to see it.
        port: 0: any that is free; None: `DEFAULT_PORT`, or any that is free if that is taken.
        videos: "none" leaves films out.

    Raises:
        ConfigError: neither run nor plan in the folder, or an address that cannot be had.
    """

    daemon_threads = True

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int | None = None, videos: Videos = "link"
    ) -> None:
        self.report = LiveReport(folder, videos=videos)
        wanted = [DEFAULT_PORT, 0] if port is None else [port]
        for number in wanted:
            try:
                super().__init__((host, number), _Handler)
                break
            except (OSError, OverflowError) as error:
                if number == wanted[-1]:
                    reason = getattr(error, "strerror", None) or error
                    raise ConfigError(
                        f"cannot serve at {host}:{number}: {reason}; give another --port, 0 for any"
                    ) from error
        self.local = _is_loopback(str(self.server_address[0]))

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is none of our trouble."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = cast(ReportServer, self.server)
        # A page of elsewhere, whose name was made to mean this machine, must not read it.
        if server.local and not _is_loopback(_host_in(self.headers.get("Host", ""))):
            return self._error(HTTPStatus.FORBIDDEN, "ask for 127.0.0.1 or localhost")
        report, address = server.report, urlsplit(self.path)
        path = unquote(address.path).removeprefix("/")
        if path in ("", "report.html"):
            return self._send(report.page().encode(), "text/html; charset=utf-8")
        if path == "news":
            return self._json(report.news(parse_qs(address.query).get("since", [""])[0]))
        if path.startswith("run/"):
            return self._json(report.run(path.removeprefix("run/")))
        clip = report.clip(path)
        if clip is None:
            return self._error(HTTPStatus.NOT_FOUND, "no such page or film")
        return self._film(clip.path, clip.kind)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Not a line a request: there is one every two seconds."""

    def _json(self, content: Any) -> None:
        if content is None:
            return self._error(HTTPStatus.NOT_FOUND, "no such run")
        return self._send(json.dumps(content).encode(), "application/json")

    def _error(self, status: HTTPStatus, why: str) -> None:
        self._send(f"{status.phrase}: {why}\n".encode(), "text/plain; charset=utf-8", status)

    def _send(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._head(status, kind, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _film(self, path: Path, kind: str) -> None:
        """The whole file, or the part of it that a player asks for."""
        try:
            with open(path, "rb") as file:
                self._parts_of(file, kind)
        except FileNotFoundError:
            self._error(HTTPStatus.NOT_FOUND, "the film is gone")

    def _parts_of(self, file: BinaryIO, kind: str) -> None:
        size = file.seek(0, os.SEEK_END)
        part = _part(self.headers.get("Range"), size)
        if part is None:
            return self._head(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, kind, 0, {"Content-Range": f"bytes */{size}"}
            )
        first, last = part
        status, ranges = HTTPStatus.OK, {"Accept-Ranges": "bytes"}
        if part != (0, size - 1):
            status, ranges["Content-Range"] = HTTPStatus.PARTIAL_CONTENT, f"bytes {first}-{last}/{size}"
        left = last - first + 1
        self._head(status, kind, left, ranges)
        file.seek(first)
        while self.command != "HEAD" and left > 0 and (piece := file.read(min(left, _CHUNK))):
            self.wfile.write(piece)
            left -= len(piece)
        return None

    def _head(self, status: HTTPStatus, kind: str, length: int, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(length), "Cache-Control": "no-store"}
        for name, value in {**headers, "X-Content-Type-Options": "nosniff", **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()


def _part(asked: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte of a Range header, the whole file without one that makes sense; None for one beyond the end."""
    match = re.fullmatch(r"bytes=(\d{0,15})-(\d{0,15})", asked or "")
    if match is None or not any(match.groups()):
        return 0, size - 1
    first, last = match.groups()
    if not first:
        return (max(0, size - int(last)), size - 1) if int(last) and size else None
    end = min(int(last), size - 1) if last else size - 1
    return (int(first), end) if int(first) <= end else None


def _host_in(header: str) -> str:
    """The host that was asked for, without its port; empty where it is none."""
    with suppress(ValueError):
        return urlsplit(f"//{header}").hostname or ""
    return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
