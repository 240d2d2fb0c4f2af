"""The command, run in an empty folder, and a model server for it to ask."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentgym.cli import main


@pytest.fixture
def agentgym_command(capsys, monkeypatch, tmp_path):
    """Runs the command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


class ModelServer:
    """A chat-completions server in a thread; `answer` maps a request's body to (status, body)."""

    def __init__(self, answer) -> None:
        outer = self
        self.bodies: list[dict] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.bodies.append(body)
                status, reply = answer(body)
                data = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *args: None  # clients that went away
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        serve = self.server.serve_forever
        threading.Thread(target=serve, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def model_server():
    made = []

    def make(answer) -> ModelServer:
        made.append(ModelServer(answer))
        return made[-1]

    yield make
    for server in made:
        server.close()
