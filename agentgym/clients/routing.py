"""The servers of one policy, the calls in flight there, and those that wait for a slot.

A server is sent no more than it can work on at once (`max_concurrency`); the others wait here,
where they can still go anywhere, rather than in its queue. Which server gets which call is decided
in `placing`; here it is given the slot, and what comes of the request is noted on the server. One
that is away loses its episodes at once.

Everything here is plain code under one lock; no step depends on how many calls wait, other than by
the logarithm that a place in a line costs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator

from agentgym.clients.lines import Line, Waiter
from agentgym.clients.placing import Placing
from agentgym.clients.replicas import (
    FIRST_PROBE_S,
    LAST_PROBE_S,
    MOST_STRIKES,
    Replica,
    Seat,
    fault_of,
)
from agentgym.clients.reply import BadReply
from agentgym.clients.sessions import Session, Sessions
from agentgym.clients.waiting import Wake
from agentgym.deadline import queued
from agentgym.types import Usage

logger = logging.getLogger(__name__)


class Router:
    """The servers of one policy, the calls in flight there, and those that wait.

    Args:
        clock: Seconds, rising.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.away: tuple[Replica, ...] = ()
        """Servers that are ejected, suspect or asked for a pause; somebody has to see to them."""
        self._replicas: dict[str, Replica] = {}
        self._sessions = Sessions()
        self._unbound = Line()
        self._waiting = 0
        """Calls in lines, and those that have been called up and don't know yet."""
        self._placing = Placing(self._replicas)
        self._revival: set[Wake] = set()
        # Reentrant: the garbage collector may end a call, and so free its seat, in here.
        self.lock = threading.RLock()

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._replicas.values()))

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        with self.lock:
            return len(self._unbound) + sum(len(replica.line) for replica in self)

    @property
    def is_hopeless(self) -> bool:
        """Whether no server is there, or will be without a probe; paused ones will."""
        return not any(r.is_up or r.state == "paused" for r in self._replicas.values())

    @property
    def is_paused(self) -> bool:
        """Whether no server is given requests, and some of them only since they are paused."""
        replicas = self._replicas.values()
        return not any(r.is_up for r in replicas) and any(r.state == "paused" for r in replicas)

    # --- servers ------------------------------------------------------------------------------

    def add(self, replica: Replica) -> None:
        """Give it requests from now on."""
        with self.lock:
            self._replicas[replica.name] = replica
            self._back(replica)

    def get(self, name: str) -> Replica | None:
        """The server of that name."""
        return self._replicas.get(name)

    def pause(self, replica: Replica) -> None:
        """Give it no further request; what is in flight goes on."""
        with self.lock:
            replica.paused = True
            self._serve_all()

    def resume(self, replicas: Collection[Replica]) -> None:
        """Give them requests again; all at once, so that each finds the calls that wait for it."""
        with self.lock:
            for replica in replicas:
                replica.paused = False
            for replica in replicas:
                self._back(replica)

    def retire(self, replica: Replica) -> None:
        """Give it no further request, for good."""
        with self.lock:
            replica.leaving = True
            self._sessions.evict(replica)  # or their next calls would get in its line
            for waiter in list(replica.line):
                replica.line.leave(waiter)
                self._unbound.push(waiter)
            self._serve_all()
            self._fail_if_hopeless()

    def drop(self, replica: Replica) -> None:
        """Forget it; nothing is in flight there."""
        with self.lock:
            if self._replicas.get(replica.name) is replica:  # rather than one that came since
                del self._replicas[replica.name]

    async def idle(self, replica: Replica) -> None:
        """Wait until nothing is in flight at a server."""
        with self.lock:
            if not replica.seats:
                return
            wake = Wake()
            replica.idle_wakes.append(wake)
        await wake.wait()

    def cut_all(self, replica: Replica, because: str) -> None:
        """End what is in flight at a server; its calls go elsewhere."""
        with self.lock:
            for seat in list(replica.seats):
                seat.cut(because)

    def eject(self, replica: Replica) -> None:
        """Give a server no request until it has answered a probe."""
        with self.lock:
            if replica.ejected:
                return
            replica.ejected, replica.is_proven = True, False
            logger.warning(
                "replica %s is left out until it answers: %s", replica.name, replica.last_error
            )
            self._is_away(replica)
            self._sessions.evict(replica)  # their prefixes died with it, most likely
            self._serve_all()
            self._fail_if_hopeless()

    def doubt(self, replica: Replica) -> None:
        """It did what a server that is well doesn't do often; a few times in a row are too many."""
        with self.lock:
            replica.strikes += 1
            if replica.strikes >= MOST_STRIKES:
                self.eject(replica)

    def lives(self, replica: Replica) -> None:
        """It has answered a probe; if it was ejected, one request shows first whether it works."""
        with self.lock:
            replica.suspect = False
            if not replica.ejected:
                return
            replica.ejected = False
            logger.info("replica %s is back", replica.name)
            replica.strikes = MOST_STRIKES - 1
            replica.probe_s = min(LAST_PROBE_S, replica.probe_s * 2)
            replica.limiter.begins_again()
            self._back(replica)

    async def revived(self) -> None:
        """Wait until some server is back."""
        wake = Wake()
        with self.lock:
            if not self.is_hopeless:
                return
            self._revival.add(wake)
        try:
            await wake.wait()
        finally:
            with self.lock:
                self._revival.discard(wake)

    def _back(self, replica: Replica) -> None:
        if replica.is_up:
            while self._revival:
                self._revival.pop().up()
            self._serve(replica)

    # --- calls --------------------------------------------------------------------------------

    async def enter(
        self,
        ticket: int,
        name: str | None,
        *,
        prompt_tokens: int,
        most_tokens: float,
        avoid: Collection[str] = (),
        only: str | None = None,
    ) -> Seat:
        """Wait for a server's slot.

        Args:
            ticket: The call's place in the queue.
            name: Its session; None if it has none.
            prompt_tokens: As estimated from the request's length.
            most_tokens: Output tokens allowed.
            avoid: Names of servers that this call would rather not try again.
            only: The server to take if it has room, whatever its state.

        Raises:
            BadReply: If there is no server to wait for.
        """
        with self.lock:
            session = None
            if name is not None:
                session = self._sessions.get(name, now=self._clock())
            replica = self._replicas.get(only) if only is not None else None
            if replica is None or not replica.limiter.has_room:
                replica = self._placing.choice(session, avoid)
            if replica is not None:
                return self._seat(replica, session, prompt_tokens, most_tokens)
            if self.is_hopeless:
                raise _nobody()
            self._waiting += 1
            waiter = Waiter(ticket, session, prompt_tokens=prompt_tokens, most_tokens=most_tokens)
            home = session.home if session is not None else None
            if home is None or home.name in avoid:
                self._unbound.push(waiter)
            else:
                home.line.push(waiter)
                idlest = self._placing.least(())
                if idlest is not None:  # there is room elsewhere; perhaps it is worth while
                    self._serve(idlest)
        return await self._waited(waiter)

    async def _waited(self, waiter: Waiter) -> Seat:
        try:
            with queued():
                await waiter.wake.wait()
        except BaseException:
            with self.lock:
                waiter.has_left = True
                if waiter.line is not None:
                    waiter.line.leave(waiter)
                if waiter.seat is not None:
                    self.leave(waiter.seat)
            raise
        finally:
            with self.lock:
                self._waiting -= 1
        if waiter.failure is not None:
            raise waiter.failure
        assert waiter.seat is not None
        return waiter.seat

    def may_send(self, seat: Seat, tokens: int, *, whatever_its_state: bool = False) -> bool:
        """Whether a call may use its seat now; if not, it is to look for another one.

        A server that was paused or ejected meanwhile gets nothing, and one whose minute is full
        gets nothing until it has room.

        Args:
            seat: The call's; given back if it can't be used.
            tokens: What the request will cost at most, input and output.
            whatever_its_state: Whether the server may be paused or ejected.
        """
        replica = seat.replica
        with self.lock:
            if replica.is_up or whatever_its_state:
                seat.permit = replica.limiter.permit(tokens)
                if seat.permit is not None:
                    return True
                self._is_away(replica)
            self.leave(seat)
            return False

    def leave(self, seat: Seat) -> None:
        """A request is over, however it ended."""
        with self.lock:
            self._free(seat)
            self._serve(seat.replica)

    def _free(self, seat: Seat) -> None:
        replica = seat.replica
        if seat not in replica.seats:
            return
        replica.seats.discard(seat)
        replica.outstanding_tokens -= seat.tokens
        if seat.session is not None:
            seat.session.count(-1)
        replica.limiter.leave()
        if not replica.seats:
            for wake in replica.idle_wakes:
                wake.up()
            replica.idle_wakes.clear()

    def answered(self, seat: Seat, usage: Usage | None) -> None:
        """A server has answered, and counted so many tokens."""
        with self.lock:
            replica = seat.replica
            replica.answered += 1
            replica.is_proven = True
            replica.strikes = 0
            replica.probe_s = FIRST_PROBE_S
            seconds = self._clock() - seat.sent_at
            known = replica.answer_s
            replica.answer_s = seconds if known is None else known + (seconds - known) / 16
            total = None
            if usage is not None:
                total = usage.prompt_tokens + usage.completion_tokens
                replica.prompt_tokens += usage.prompt_tokens
                replica.cached_tokens += usage.cached_tokens
                self._placing.learn(seat, usage, seconds)
                if seat.session is not None and seat.session.home is replica:
                    seat.session.known_tokens = total
            if seat.permit is not None:
                replica.limiter.answered(seat.permit, tokens=total)
            self._serve(replica)

    def failed(self, seat: Seat, failure: BadReply, error: str) -> None:
        """A server has not answered.

        Args:
            seat: The request's.
            failure: What happened.
            error: The same, without secrets.
        """
        with self.lock:
            replica = seat.replica
            replica.failed += 1
            replica.last_failure, replica.last_error = failure, error
            fault = fault_of(failure)
            if fault == "busy" and seat.permit is not None:
                replica.limiter.overloaded(seat.permit, retry_after_s=failure.retry_after_s)
                if replica.limiter.paused_s:
                    self._is_away(replica)
            elif fault in ("gone", "refused"):
                self.eject(replica)
            elif fault == "shaky" and seat.cut_because is None and not replica.ejected:
                self.doubt(replica)
                if not replica.ejected:
                    replica.suspect = True
                    self._is_away(replica)

    def is_dead(self, replica: Replica, failure: BadReply, error: str) -> None:
        """It has not answered a probe; what is in flight there will not be answered either.

        Args:
            replica: The server.
            failure: What the probe came to.
            error: The same, without secrets.
        """
        with self.lock:
            replica.last_failure, replica.last_error = failure, error
            replica.suspect = False
            replica.probe_s = min(LAST_PROBE_S, replica.probe_s * 2)
            self.eject(replica)
            self.cut_all(replica, f"the replica died: {error}")

    def is_back(self, replica: Replica) -> None:
        """A pause is over, or a server that was ejected is back."""
        with self.lock:
            self.away = tuple(other for other in self.away if other is not replica)
            self._serve(replica)

    def release(self, name: str) -> None:
        """Forget a session."""
        with self.lock:
            self._sessions.forget(name)

    # --- inside -------------------------------------------------------------------------------

    def _is_away(self, replica: Replica) -> None:
        if replica not in self.away:
            self.away = (*self.away, replica)

    def _seat(
        self, replica: Replica, session: Session | None, prompt_tokens: int, most_tokens: float
    ) -> Seat:
        """Take a slot of a server that has room."""
        taken = replica.limiter.take()
        assert taken
        tokens = self._placing.pace.output_tokens(most_tokens)
        prompt = self._placing.pace.prompt_tokens(prompt_tokens)
        if session is not None:
            session.move(replica)
            session.count(1)
            tokens += max(0, prompt - session.known_tokens)
        else:
            tokens += prompt
        seat = Seat(replica, session, prompt_tokens=prompt_tokens, tokens=tokens)
        replica.outstanding_tokens += tokens
        replica.seats.add(seat)
        return seat

    def _serve_all(self) -> None:
        for replica in self._replicas.values():
            self._serve(replica)

    def _serve(self, replica: Replica) -> None:
        """Fill a server's free slots with calls that wait."""
        while self._waiting and replica.is_up and replica.limiter.has_room:
            waiter = self._placing.next_for(replica, self._unbound)
            if waiter is None:
                return
            if waiter.line is not None:
                waiter.line.leave(waiter)
            waiter.seat = self._seat(
                replica, waiter.session, waiter.prompt_tokens, waiter.most_tokens
            )
            # It may have given up in the middle of this, or its loop be closed.
            if waiter.has_left or not waiter.wake.up():
                self._free(waiter.seat)

    def _fail_if_hopeless(self) -> None:
        """Tell everybody who waits that there is nobody left to wait for."""
        if not self.is_hopeless:
            return
        for line in (self._unbound, *(replica.line for replica in self._replicas.values())):
            for waiter in list(line):
                line.leave(waiter)
                waiter.failure = _nobody()
                waiter.wake.up()


def _nobody() -> BadReply:
    return BadReply("no replica is there", retryable=True, unreachable=True)


async def sleep_until_revived(router: Router, sleeping: asyncio.Future[None]) -> None:
    """Sleep, but no longer than until a server is back."""
    revived = asyncio.ensure_future(router.revived())
    try:
        await asyncio.wait((revived, sleeping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (revived, sleeping):
            task.cancel()
        await asyncio.gather(revived, sleeping, return_exceptions=True)
