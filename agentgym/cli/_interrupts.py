"""Ctrl-C while a run is going: first no new episodes, then no more at all.

The episodes that have begun are the dear ones, and most are nearly over. So the first Ctrl-C lets
them finish; whoever doesn't want to wait presses it again. Either way the run can be gone on with.
SIGTERM comes from somebody who will soon kill: it stops at once.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

OnInterrupt: TypeAlias = Literal["drain", "stop"]


class Interrupts:
    """What becomes of a run when the user has had enough.

    Args:
        choice: What the first Ctrl-C does: let finish what has begun, or stop.
    """

    def __init__(self, choice: OnInterrupt) -> None:
        self._choice = choice
        self.signal: int | None = None
        """The first signal that came; None if none has."""

    @property
    def exit_code(self) -> int:
        """What the process exits with, as a shell expects it of one that a signal ended."""
        return 128 + (self.signal or signal.SIGINT)

    @contextmanager
    def watching(self, drain: Callable[[], None], in_flight: Callable[[], int]) -> Iterator[None]:
        """Heed signals inside the block, which runs on an event loop.

        Outside of a program's main thread nothing can be heeded, and nothing is.

        Args:
            drain: Ends the taking of new episodes.
            in_flight: Episodes that have begun and aren't over.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def interrupted() -> None:
            first = self.signal is None
            self.signal = self.signal or signal.SIGINT
            if first and self._choice == "drain":
                drain()
                _say(f"no new episodes; {in_flight()} that have begun finish (again: stop now)")
            else:
                stop(signal.SIGINT)

        def stop(number: int) -> None:
            self.signal = self.signal or number
            loop.remove_signal_handler(signal.SIGINT)  # whoever insists ends it the hard way
            _say("stopping")
            task.cancel()

        handlers: dict[int, Callable[[], Any]] = {
            signal.SIGINT: interrupted,
            signal.SIGTERM: lambda: stop(signal.SIGTERM),
        }
        before = {}
        try:
            for number, handler in handlers.items():
                known = signal.getsignal(number)
                loop.add_signal_handler(number, handler)
                before[number] = known
        except (NotImplementedError, RuntimeError, ValueError):  # as asyncio has it:
            pass  # a system without such signals (the first), or not the main thread
        try:
            yield
        finally:
            for number, known in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, known)


def _say(text: str) -> None:
    print(f"agentgym: {text}", file=sys.stderr, flush=True)
