"""`agentgym serve` as a process of its own, to be killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

SUPPORT = Path(__file__).parent
ENV = "serving:serving/Counter-v0"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class ServiceProcess:
    """One service, on a port and a store that stay the same however often it is started.

    Args:
        folder: Where its store is.
        flags: Further arguments.
    """

    def __init__(self, folder, *flags, env=None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.store = folder / "service.db"
        self._flags = ["--port", str(self.port), "--store", str(self.store), *flags]
        self._environ = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self.process = None

    def start(self):
        """Start it; returns once it answers."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentgym", "serve", *self._flags],
            cwd=SUPPORT,  # where `serving:…` is imported from
            env=self._environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return self

    def _answers(self):
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def kill(self):
        """End it as a power cut would."""
        self.process.kill()
        self.process.communicate()

    def terminate(self):
        """Ask it to end; returns its exit code and what it said."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def __enter__(self):
        return self.start()

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.kill()
