"""A real `vllm serve` on a CPU, started with the command that `agentgym train` prints."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentgym.train.sync import server_command

START_UP_S = 300
CONTEXT, RANK, SERVED_NAME = 512, 8, "policy"
"""Of the server that all modules share, see `conftest.live_server`."""


@contextmanager
def policy_server(
    model: Path,
    log: Path,
    *,
    max_context: int,
    environment: Mapping[str, str] = MappingProxyType({}),
    **command_options: Any,
) -> Iterator[str]:
    """Runs for as long as it is entered; gives its URL.

    Args:
        model: Folder of the weights that it starts with.
        log: Where its output goes.
        max_context: Tokens of prompt and answer.
        environment: Further variables.
        **command_options: For `server_command`.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    options = {"dtype": "float32", "max_context": max_context, "cpu": True, "port": port}
    told = server_command(str(model), **{**options, **command_options})
    command = shlex.split(told)
    split = command.index("vllm")
    variables = dict(pair.split("=", 1) for pair in command[:split])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("vllm")), *command[split + 1 :]],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **variables,
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                **environment,
            },
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_UP_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError("vLLM did not start:\n" + log.read_text(errors="replace")[-3000:])
