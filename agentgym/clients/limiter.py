"""How hard an endpoint is leaned on: slots, pace, and backing off when it says so.

One limiter belongs to one endpoint and serves every event loop and thread of the process, since
the server counts requests and not loops. When the server is overloaded (429, 503), the number of
requests allowed at once is halved and everybody waits until the time that it asks for; each answer
raises the number again. This is what TCP does about congestion, and for the same reason: nobody
tells a client how much room there is, and callers who retry on their own make it worse.

Waiting here is not waiting for the server: callers leave it out of their deadlines.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentgym.client import RateLimits
from agentgym.clients.waiting import WaitingLine
from agentgym.deadline import queued

_ROUNDS_TO_RECOVER = 16
"""Rounds of answers after which a limiter that fell to 1 is back at its most."""
_LONGEST_PAUSE_S = 120.0
_WINDOW_S = 60.0


@dataclass
class Permit:
    """Leave to send one request."""

    epoch: int
    """How often the limiter had backed off when the request was sent."""
    tokens: _Entry | None = None


@dataclass
class _Entry:
    sent_at: float
    units: int
    is_past: bool = False


class Limiter:
    """Slots and pace of one endpoint.

    Args:
        most: Requests in flight at once, at most.
        rate: Requests and tokens per minute.
        clock: Seconds, rising.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        most: int,
        rate: RateLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        rate = rate or RateLimits()
        self.most = most
        self._allowed = float(most)
        self._in_flight = 0
        self._epoch = 0
        self._paused_until = 0.0
        self._requests = _Window(rate.requests_per_minute)
        self._tokens = _Window(rate.tokens_per_minute)
        self._clock = clock
        self._sleep = sleep
        self._count = itertools.count()
        # Reentrant: the garbage collector may end a call, and so free its slot, in here.
        self._lock = threading.RLock()
        self._line = WaitingLine[None](self._lock, take=self._take, give_back=self._give_back)

    @property
    def allowed(self) -> int:
        """Requests allowed at once now: `most`, less after the server was overloaded."""
        return int(self._allowed)

    @property
    def in_flight(self) -> int:
        """Slots in use."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return len(self._line)

    @property
    def paused_s(self) -> float:
        """Seconds until anything is sent again; 0 where nothing is paused."""
        return max(0.0, self._paused_until - self._clock())

    def resize(self, most: int) -> None:
        """Allow so many requests at once from now on; those in flight go on.

        Args:
            most: At least 1.
        """
        with self._lock:
            self._allowed = self._allowed * most / self.most if self._allowed < self.most else most
            self._allowed = max(1.0, self._allowed)
            self.most = most
            self._line.serve()

    def ticket(self) -> int:
        """A place in the queue; kept over a call's attempts, so its retries go before new calls."""
        return next(self._count)

    @asynccontextmanager
    async def slot(self, ticket: int, *, tokens: int = 0) -> AsyncIterator[Permit]:
        """Wait for leave to send one request, and hold its slot.

        Args:
            ticket: The call's place in the queue.
            tokens: What the request will cost at most, input and output.
        """
        permit = await self.enter(ticket, tokens=tokens)
        try:
            yield permit
        finally:
            self.leave()

    async def enter(self, ticket: int, *, tokens: int = 0) -> Permit:
        """`slot`, for those who call `leave` themselves."""
        if not self._line.takes_at_once(None):
            with queued():
                await self._line.wait(ticket, None)
        try:
            return await self.paced(tokens)
        except BaseException:
            self.leave()
            raise

    @property
    def has_room(self) -> bool:
        """Whether a request could be sent now, as far as slots and pauses go."""
        return self._in_flight < self.allowed and self._paused_until <= self._clock()

    def take(self) -> bool:
        """Take a slot if there is room; `paced` comes next, and `leave` in the end."""
        with self._lock:
            return self.has_room and self._take(None)

    def leave(self) -> None:
        """Give a slot back."""
        with self._lock:
            self._give_back(None)
            self._line.serve()

    async def paced(self, tokens: int = 0) -> Permit:
        """Wait, with a slot, until nothing is paused and the minute has room."""
        permit = self._leave_to_send(tokens)
        if isinstance(permit, Permit):
            return permit
        with queued():
            while not isinstance(permit, Permit):
                await self._sleep(permit)
                permit = self._leave_to_send(tokens)
        return permit

    def permit(self, tokens: int = 0) -> Permit | None:
        """Leave to send at once, with a slot; without it, nothing is sent until there is some.

        For those who don't wait with a slot: they may be served elsewhere.

        Args:
            tokens: What the request will cost at most, input and output.
        """
        with self._lock:
            permit = self._leave_to_send(tokens)
            if isinstance(permit, Permit):
                return permit
            self._paused_until = self._clock() + permit
            return None

    def answered(self, permit: Permit, *, tokens: int | None = None) -> None:
        """The server answered: allow a little more.

        Args:
            permit: The request's.
            tokens: What it cost in fact; None if nobody knows.
        """
        with self._lock:
            step = max(1.0, self.most / _ROUNDS_TO_RECOVER)
            self._allowed = min(float(self.most), self._allowed + step / self._allowed)
            if permit.tokens is not None and tokens is not None:
                self._tokens.settle(permit.tokens, tokens)
            self._line.serve()

    def overloaded(self, permit: Permit, *, retry_after_s: float | None = None) -> None:
        """The server is overloaded: allow half of what was in flight, and pause if it says so.

        Requests that were in flight together fail together; that counts once.

        Args:
            permit: The request's.
            retry_after_s: How long the server asks everybody to wait, seconds.
        """
        with self._lock:
            pause_s = min(retry_after_s or 0.0, _LONGEST_PAUSE_S)
            self._paused_until = max(self._paused_until, self._clock() + pause_s)
            if permit.epoch == self._epoch:
                self._epoch += 1
                self._allowed = max(1.0, min(self._allowed, self._in_flight) / 2)

    def begins_again(self) -> None:
        """The server was away: allow one request, and more with each answer."""
        with self._lock:
            self._epoch += 1
            self._allowed = 1.0

    # --- inside -------------------------------------------------------------------------------

    def _take(self, _: None) -> bool:
        if self._in_flight >= self.allowed:
            return False
        self._in_flight += 1
        return True

    def _give_back(self, _: None) -> None:
        self._in_flight -= 1

    def _leave_to_send(self, tokens: int) -> Permit | float:
        """A permit, or the seconds until there may be one."""
        with self._lock:
            now = self._clock()
            delay = max(
                self._paused_until - now,
                self._requests.delay(now, 1),
                self._tokens.delay(now, tokens),
            )
            if delay > 0:
                return delay
            self._requests.add(now, 1)
            return Permit(self._epoch, self._tokens.add(now, tokens))


class _Window:
    """At most so many units in any minute.

    Args:
        most: Units; None is no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._entries: deque[_Entry] = deque()
        self._total = 0

    def delay(self, now: float, units: int) -> float:
        """Seconds until there is room; more than the limit by itself goes when all is empty."""
        if self._most is None:
            return 0.0
        while self._entries and self._entries[0].sent_at <= now - _WINDOW_S:
            gone = self._entries.popleft()
            gone.is_past = True
            self._total -= gone.units
        excess = self._total + units - self._most
        delay = 0.0
        for entry in self._entries:
            if excess <= 0:
                break
            excess -= entry.units
            delay = entry.sent_at + _WINDOW_S - now
        return delay

    def add(self, now: float, units: int) -> _Entry | None:
        if self._most is None:
            return None
        entry = _Entry(now, units)
        self._entries.append(entry)
        self._total += units
        return entry

    def settle(self, entry: _Entry, units: int) -> None:
        """Put what was used in place of what was expected."""
        if not entry.is_past:
            self._total += units - entry.units
            entry.units = units
