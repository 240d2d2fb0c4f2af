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
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Need = TypeVar("Need")


@dataclass(order=True)
class _Waiter(Generic[Need]):
    ticket: int
    order: int
    need: Need = field(compare=False)
    loop: asyncio.AbstractEventLoop = field(compare=False)
    served: asyncio.Future[None] = field(compare=False)
    has_it: bool = field(default=False, compare=False)
    gone: bool = field(default=False, compare=False)


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
        self._waiters: list[_Waiter[Need]] = []

    def __len__(self) -> int:
        return sum(not waiter.gone for waiter in self._waiters)

    async def wait(self, ticket: int, need: Need) -> None:
        """Wait until it is one's turn and what one needs was taken.

        Args:
            ticket: The place in the line; smaller ones go first.
            need: What to take.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if not self._waiters and self._take(need):
                return
            waiter = _Waiter(ticket, next(self._order), need, loop, loop.create_future())
            heapq.heappush(self._waiters, waiter)
            self.serve()
        try:
            await waiter.served
        except BaseException:
            with self._lock:
                waiter.gone = True
                if waiter.has_it:
                    self._give_back(need)
                self.serve()
            raise

    def serve(self) -> None:
        """Let go ahead who can; to be called, with the lock held, whenever there is more."""
        while self._waiters:
            first = self._waiters[0]
            if not first.gone and not self._take(first.need):
                return
            heapq.heappop(self._waiters)
            if first.gone:
                continue
            first.has_it = True
            if not _wake(first):
                first.gone, first.has_it = True, False
                self._give_back(first.need)


def _wake(waiter: _Waiter[Need]) -> bool:
    """Tell a waiter in its own loop; False if that loop is closed."""
    try:
        if asyncio._get_running_loop() is waiter.loop:
            _resolve(waiter.served)
        else:
            waiter.loop.call_soon_threadsafe(_resolve, waiter.served)
    except RuntimeError:
        return False
    return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
