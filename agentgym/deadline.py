"""Deadlines that stand still while the work waits in a queue.

A policy call may wait for a slot of its client before anything is sent, a judge for its turn in a
rate limit. That says nothing about the server, the tool or the judge whose time is being kept, and
the more is in flight the longer it is. So whoever keeps somebody in a queue says so, and every
deadline around the work stands still until the wait is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from types import TracebackType

_open: ContextVar[tuple[Deadline, ...]] = ContextVar("agentgym_deadlines", default=())


@contextmanager
def queued() -> Iterator[None]:
    """Stop the deadlines around the block; it does nothing but wait for its turn."""
    deadlines = _open.get()
    for deadline in deadlines:
        deadline.tell(1)
    try:
        yield
    finally:
        for deadline in deadlines:
            deadline.tell(-1)


class Deadline:
    """`asyncio.timeout`, without the time spent in queues; raises TimeoutError when it is over.

    While several pieces of work inside it wait and others don't, it stands still.

    Args:
        seconds: Time allowed.
    """

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._waiting = 0
        self._since = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._timeout: asyncio.Timeout
        self._token: Token[tuple[Deadline, ...]]

    @property
    def left_s(self) -> float:
        """Seconds left when it was last looked at: at an end of a wait, or of the block."""
        return self._left_s

    @property
    def is_over(self) -> bool:
        """Whether the time is up, which is why the block was left."""
        return self._timeout.expired()

    async def __aenter__(self) -> Deadline:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._timeout = asyncio.timeout_at(self._since + self._left_s)
        await self._timeout.__aenter__()
        self._token = _open.set((*_open.get(), self))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _open.reset(self._token)
        if not self._waiting:
            self._run_on()
        await self._timeout.__aexit__(kind, error, traceback)  # turns a cancellation into its error

    def tell(self, change: int) -> None:
        """One more (1) or one fewer (-1) piece of work waits; from any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._count(change)
            return
        with suppress(RuntimeError):  # closed, with whatever had the deadline
            # A tool in a thread, whose client waits in a loop of its own.
            self._loop.call_soon_threadsafe(self._count, change)

    def _count(self, change: int) -> None:
        if not self._waiting:
            self._run_on()
        self._waiting += change
        self._since = self._loop.time()
        with suppress(RuntimeError):  # over, or left meanwhile
            self._timeout.reschedule(None if self._waiting else self._since + self._left_s)

    def _run_on(self) -> None:
        now = self._loop.time()
        self._left_s -= now - self._since
        self._since = now
