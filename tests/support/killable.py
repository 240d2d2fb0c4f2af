"""The `agentgym` command in a process of its own that may be killed at any moment.

Processes are forked from a server that has everything imported, so that one costs a few
milliseconds rather than seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agentgym.clients import calling

_WAIT_S = 60.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["agentgym.cli._rollout", "agentgym.clients.chat", "agentgym.rollout", "agentgym.testing.envs"]
)


class Command:
    """One run of the command, begun at once.

    Args:
        args: Its arguments.
        folder: Where it runs; what it prints goes to `output.txt` there.
        largest_file: Bytes beyond which no file of it can grow, as on a disk that is full.
    """

    def __init__(self, *args: object, folder: Path, largest_file: int | None = None) -> None:
        self._folder = folder
        self._process = _FORKS.Process(
            target=_run, args=([str(arg) for arg in args], str(folder), largest_file)
        )
        self._process.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._process.is_alive()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        self._process.join(_WAIT_S)
        if not self.is_over:
            self._process.kill()
            raise AssertionError(f"still running; it said:\n{self.output}")
        code = self._process.exitcode
        assert code is not None
        return code

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until something holds; False if the command ended before."""
        end = time.monotonic() + _WAIT_S
        while not condition():
            if self.is_over:
                return False
            assert time.monotonic() < end, f"never came; it said:\n{self.output}"
            time.sleep(0.002)  # leaves the processor to the process waited for
        return True

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.signal(signal.SIGKILL)
        self._process.join(_WAIT_S)

    @property
    def output(self) -> str:
        """All that commands in this folder have printed."""
        file = self._folder / "output.txt"
        return file.read_text() if file.exists() else ""


def _run(args: list[str], folder: str, largest_file: int | None) -> None:
    """In the process: become the command."""
    os.chdir(folder)
    file = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    calling._FIRST_PAUSE_S = 0.02  # that there is a pause is tested where the clock is a fake
    from agentgym.cli import main

    code = main(args)
    sys.stdout.flush()
    os._exit(code)
