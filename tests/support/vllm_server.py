"""A real vLLM server with a real small model, which can be killed and brought back."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = "smollm2"
START_UP_S = 400
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


class VllmServer:
    """SmolLM2-135M-Instruct behind `vllm serve`, always on the same port.

    Args:
        log: Where its output goes.
        context: Tokens of context.
        cache_gib: Memory for the KV cache; 1 GiB holds some 23,000 tokens.
    """

    def __init__(self, log: Path, *, context: int, cache_gib: int = 1) -> None:
        self._log = log
        self._cache_gib = cache_gib
        self._process: subprocess.Popen[bytes] | None = None
        self._model = _model_folder()
        self._port = _free_port()
        self.context = context
        self.url = f"http://127.0.0.1:{self._port}"
        """Root, without /v1."""

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [
            *(Path(sys.executable).with_name("vllm"), "serve", self._model),
            *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", self._port),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", self.context),
            # vLLM 0.31 on a CPU dies of a seeded request whose prompt is prefilled in parts.
            "--no-enable-chunked-prefill",
            # Otherwise it keeps the cached part of a prompt's tokens to itself.
            "--enable-prompt-tokens-details",
            # So small a model writes line feeds for ever wherever a grammar lets it.
            *(
                "--structured-outputs-config",
                '{"backend": "xgrammar", "disable_any_whitespace": true}',
            ),
            *("--max-num-seqs", 16, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        ]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    **OFFLINE,
                    "VLLM_CPU_KVCACHE_SPACE": str(self._cache_gib),
                },
                start_new_session=True,
            )
        deadline = time.monotonic() + START_UP_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                fetch(f"{self.url}/health")
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        self.stop()
        raise RuntimeError("vLLM did not start:\n" + self._log.read_text()[-3000:])

    def kill(self) -> None:
        """Kill it at once, its workers too, whatever they are doing."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(60)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def counted(self, metric: str) -> int:
        """What the server itself has counted, such as `generation_tokens_total`."""
        found = re.search(
            rf"^vllm:{metric}\{{.*\}} (\S+)$", fetch(f"{self.url}/metrics"), re.MULTILINE
        )
        return int(float(found[1])) if found else 0


def fetch(url: str) -> str:
    """The text behind a URL."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


def _model_folder() -> str:
    script = ROOT / "scripts" / "make_smollm2.py"
    found = subprocess.run(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **OFFLINE},
    )
    return found.stdout.strip().splitlines()[-1]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
