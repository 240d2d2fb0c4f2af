"""One piece of work at a time, shared by all who ask for the same.

Work belongs to whom it is done for, not to the connection that asked. Whoever hangs up leaves
nothing half done; whoever asks for the same again waits for the same outcome; whoever asks for
something else is told to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from agentgym.serve.faults import ServiceFault

T = TypeVar("T")
Key: TypeAlias = tuple[Any, ...]
"""What tells pieces of work apart; the first part names the kind."""


class _Flight(NamedTuple):
    key: Key
    task: asyncio.Task[Any]
    due: float


class SharedWork:
    """The work of one session.

    Args:
        clock: Seconds.
        longest_s: What takes longer can't be stopped.
    """

    def __init__(self, clock: Callable[[], float], longest_s: float) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._flight: _Flight | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether something is being done."""
        return self._flight is not None

    @property
    def due(self) -> float | None:
        """When what is being done is over at the latest, by the clock; None if nothing is."""
        return None if self._flight is None else self._flight.due

    async def once(self, key: Key, work: Callable[[], Awaitable[T]]) -> T:
        """Do a piece of work, or wait with whoever asked for the same before.

        Raises:
            ServiceFault: 409 if something else is being done, 404 after `stop`.
        """
        if self._closed:
            raise _closed()
        flight = self._flight
        if flight is not None and flight.key != key:
            text = f"the session is at another request ({flight.key[0]}); wait for its answer"
            raise ServiceFault(409, "busy", text, retry_after_s=1)
        if flight is None:
            task = asyncio.create_task(self._landing(work))
            task.add_done_callback(_retrieved)
            flight = self._flight = _Flight(key, task, self._clock() + self._longest_s)
        try:
            result: T = await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.task.cancelled() and self._closed:
                raise _closed() from None
            raise
        return result

    async def wait(self) -> None:
        """Wait until nothing is being done."""
        while self._flight is not None:
            await asyncio.wait({self._flight.task})

    async def stop(self, within_s: float) -> bool:
        """Stop what is being done, do nothing more, and say whether it let itself be stopped."""
        self._closed = True
        flight = self._flight
        if flight is None:
            return True
        flight.task.cancel()
        await asyncio.wait({flight.task}, timeout=within_s)
        return flight.task.done()

    async def _landing(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        finally:
            self._flight = None


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Look at the outcome, which nobody may be waiting for any more."""
    if not task.cancelled():
        task.exception()


def _closed() -> ServiceFault:
    return ServiceFault(404, "no_such_session", "the session was closed")
