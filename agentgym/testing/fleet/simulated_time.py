"""An event loop whose time jumps: nobody waits, and a run of hours is over in a second.

Ordinary coroutines run on it, with `asyncio.sleep` and the loop's timers; whenever all of them
wait, the clock goes to the next timer. So what decides in a real engine can be run unchanged.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Handle(Protocol):
    """A timer."""

    def cancel(self) -> Any:
        """Let it not go off."""


class LoopTimers:
    """Timers of an event loop, on which virtual time passes at its own speed.

    Args:
        loop: The loop.
        speed: Virtual seconds per second of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, speed: float = 1.0) -> None:
        self._loop = loop
        self._speed = speed

    def now(self) -> float:
        """Virtual seconds."""
        return self._loop.time() * self._speed

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> Handle:
        """Call back after some virtual seconds."""
        return self._loop.call_later(delay_s / self._speed, callback, *args)


class _JumpingSelector(selectors.SelectSelector):
    """Waits for no file, and tells how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Skip the wait.

        Raises:
            RuntimeError: If nothing would ever end it.
        """
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and no timer is set: a deadlock")
        if not ready and timeout:
            self.waited_s += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps from one timer to the next, beginning at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.waited_s


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in simulated time.

    Raises:
        RuntimeError: If the coroutines wait for each other, or for a file or a thread.
    """
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
