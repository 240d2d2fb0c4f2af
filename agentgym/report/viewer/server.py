"""The viewer as a server on this machine, for more episodes than a page should hold.

It answers on the loopback interface only, and only requests that name that interface as their host:
a web page elsewhere whose name was made to point here gets nothing. It reads, and changes nothing.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from agentgym.errors import ConfigError, TraceError
from agentgym.report.single_file import content_security_policy, page
from agentgym.report.viewer.pages import script, style
from agentgym.report.viewer.shelf import Shelf

HOST = "127.0.0.1"


class ViewerServer:
    """Serves the episodes of some paths until it is closed.

    Args:
        paths: Trace files, or folders with some.
        port: Where to listen; 0 takes a free one.
        title: Plain text.

    Raises:
        TraceError: If there is nothing to show.
        ConfigError: If the port can't be had.
    """

    def __init__(self, paths: Sequence[Path], *, port: int = 0, title: str) -> None:
        self.shelf = Shelf(paths)
        text = "".join(page(title=title, style=style(), script=script(), served=True))
        handler = type("Handler", (_Handler,), {"shelf": self.shelf, "page": text.encode()})
        try:
            self._server = _Server((HOST, port), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"can't listen on port {port}: {reason}; --port names one") from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self._server.server_port}/"

    def serve(self) -> None:
        """Answer until `shutdown` is called from another thread, or an exception comes."""
        self.shelf.start()
        self._server.serve_forever(poll_interval=0.1)

    def shutdown(self) -> None:
        """Let `serve` return."""
        self._server.shutdown()

    def close(self) -> None:
        """Free the port and end the reading."""
        self._server.server_close()
        self.shelf.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed while it was being answered is no error to print."""


class _Handler(BaseHTTPRequestHandler):
    shelf: Shelf
    page: bytes
    timeout = 30.0
    """Seconds that a request may take to come; a connection is for one."""

    def do_GET(self) -> None:
        if not _is_loopback(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, b"this viewer is for localhost only\n", "text/plain")
            return
        try:
            address = urlsplit(self.path)
            if address.path == "/":
                self._send(HTTPStatus.OK, self.page, "text/html")
                return
            asked = {name: values[-1] for name, values in parse_qs(address.query).items()}
            answer = self._answer(address.path, asked)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, b"that is no number\n", "text/plain")
        except TraceError as error:
            self._send(HTTPStatus.GONE, f"{error}\n".encode(errors="replace"), "text/plain")
        else:
            if answer is None:
                self._send(HTTPStatus.NOT_FOUND, b"there is no such page\n", "text/plain")
            else:
                self._send(HTTPStatus.OK, answer.encode(), "application/json")

    def _answer(self, path: str, asked: dict[str, str]) -> str | None:
        """The JSON for a request; None if nothing is there."""
        generation = int(asked["generation"]) if asked.get("generation") else 0
        if path == "/api/rows":
            return json.dumps(self.shelf.rows(generation, int(asked.get("after", 0))))
        if path == "/api/episode":
            return self.shelf.body(generation, int(asked.get("row", -1)))
        if path == "/api/search":
            after = max(0, int(asked.get("after", 0)))
            return json.dumps(self.shelf.search(generation, asked.get("text", ""), after))
        return None

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header(
            "Content-Security-Policy",
            content_security_policy(style=style(), script=script(), served=True)
            + "; frame-ancestors 'none'",
        )
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing of requests: the terminal is for the person."""


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine, at whatever port (one may be forwarded)."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
