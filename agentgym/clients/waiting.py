"""A line of calls that wait for something there is too little of, from any loop and thread.

Slots and money are handed out alike: who came first is served first, a retry keeps its call's
place, whoever gives up leaves without a trace, and nobody is passed over because somebody behind
him needs less.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Need = TypeVar("Need")


class _Waiter(Generic[Need]):
    __slots__ = ("gone", "has_it", "need", "wake")

    def __init__(self, need: Need) -> None:
        self.need = need
        self.wake = Wake()
        self.has_it = False
        self.gone = False


class Wake:
    """Waits in the loop that it is made in, and is woken from any."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        """Wait until `up` was called."""
        await self._future

    def up(self) -> bool:
        """Wake the waiter; False if its loop is closed."""
        try:
            if asyncio._get_running_loop() is self._loop:
                self._resolve()
            else:
                self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            return False
        return True

    def _resolve(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class WaitingLine(Generic[Need]):
    """Calls in the order of their tickets.

    Args:
        lock: The owner's, reentrant; it is held whenever `take` or `give_back` is called.
        take: Takes what a call needs, if it is there; says whether it was.
        give_back: Undoes that for a call that was cancelled before it knew.
    """

    def __init__(
        self,
        lock: threading.RLock,
        *,
        take: Callable[[Need], bool],
        give_back: Callable[[Need], None],
    ) -> None:
        self._lock = lock
        self._take = take
        self._give_back = give_back
        self._order = itertools.count()
        self._waiters: list[tuple[int, int, _Waiter[Need]]] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def takes_at_once(self, need: Need) -> bool:
        """Take what a call needs if it is there and nobody waits for it."""
        with self._lock:
            return not self._waiters and self._take(need)

    async def wait(self, ticket: int, need: Need) -> None:
        """Wait until it is one's turn and what one needs was taken.

        Args:
            ticket: The place in the line; smaller ones go first.
            need: What to take.
        """
        with self._lock:
            if self.takes_at_once(need):
                return
            waiter = _Waiter(need)
            heapq.heappush(self._waiters, (ticket, next(self._order), waiter))
            self._waiting += 1
            self.serve()
        try:
            await waiter.wake.wait()
        except BaseException:
            with self._lock:
                if waiter.has_it:
                    self._give_back(need)
                elif not waiter.gone:
                    self._waiting -= 1
                waiter.gone = True
                self.serve()
            raise

    def serve(self) -> None:
        """Let go ahead who can; to be called, with the lock held, whenever there is more."""
        while self._waiters:
            first = self._waiters[0][-1]
            if not first.gone and not self._take(first.need):
                return
            heapq.heappop(self._waiters)
            if first.gone:
                continue
            self._waiting -= 1
            first.has_it = True
            if not first.wake.up():
                first.gone, first.has_it = True, False
                self._give_back(first.need)
