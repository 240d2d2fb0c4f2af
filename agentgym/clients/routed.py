"""A call of which each request goes to the server that is best for it.

Requests go where the episode's prefix is cached and a slot is free (`routing`), and what a server
does wrong is mended by another one within the same call. Retries are made here and nowhere else;
the call's deadline holds over all servers, its money is one budget's, and it is charged once. Which
servers there are is for `BalancedClient`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentgym.client import Completion, Endpoint
from agentgym.clients.call import Call
from agentgym.clients.calling import CallingClient
from agentgym.clients.failures import NEVER_ASKED, as_error, as_error_of_all, words_of
from agentgym.clients.probing import Prober
from agentgym.clients.replicas import Replica, Seat, fault_of
from agentgym.clients.reply import BadReply
from agentgym.clients.routing import Router, sleep_until_revived
from agentgym.clients.transport import Transport
from agentgym.errors import EndpointError

logger = logging.getLogger(__name__)

_LONG_PAUSE_S = 60.0
"""After which a fleet that is paused while calls wait may have been forgotten."""


class RoutedClient(CallingClient[Seat]):
    """The calls of a `BalancedClient`.

    Args:
        endpoint: What the servers have in common.
        rng: Jitter of the pauses.
        sleep: Waits between attempts, and between probes.
        clock: Seconds, rising.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tickets = itertools.count()
        self._reminded_at = -math.inf
        super().__init__(endpoint, rng=rng, sleep=sleep, clock=clock)

    def _begin(self) -> None:
        super()._begin()
        self._router = Router(clock=self._clock)
        self._prober = Prober(self._router, rng=self._rng, sleep=self._sleep)

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot of any server."""
        return self._router.waiting

    async def release(self, session: str) -> None:
        """Forget a session: where it is, and its reasoning."""
        self._renewed()
        self._router.release(session)
        await super().release(session)

    async def aclose(self) -> None:
        """Close the running loop's connections; calls in flight there end with an error.

        Other loops' connections close with their loops. A closed client can be used again.
        """
        self._renewed()
        await self._scopes.aclose()
        await self._prober.aclose()
        for replica in self._router:
            await replica.transport.aclose()

    # --- what `CallingClient` asks for --------------------------------------------------------

    def _ticket(self) -> int:
        return next(self._tickets)

    async def _enter(self, call: Call, prompt_tokens: int, limit: float) -> Seat:
        if self._router.away:
            self._prober.tend()
        most = prompt_tokens + (int(limit) if math.isfinite(limit) else 0)
        call.seat = None
        while True:
            paused = self._router.is_paused
            loop = asyncio.get_running_loop()
            reminder = loop.call_later(_LONG_PAUSE_S, self._remind) if paused else None
            try:
                seat = call.seat = await self._router.enter(
                    call.ticket,
                    call.session,
                    prompt_tokens=prompt_tokens,
                    most_tokens=limit,
                    avoid=call.tried,
                    only=call.only_at,
                )
            finally:
                if reminder is not None:
                    reminder.cancel()
            if self._router.may_send(seat, most, whatever_its_state=call.only_at is not None):
                break
            if self._router.away:
                self._prober.tend()
        seat.sent_at = self._clock()
        seat.weight_version = seat.replica.weight_version
        return seat

    def _remind(self) -> None:
        """Say that calls wait for a pause to end; they would for ever, without a time-out."""
        if self._router.is_paused and self._clock() - self._reminded_at >= _LONG_PAUSE_S:
            self._reminded_at = self._clock()
            text = "%r is paused, and %d calls wait until resume() lets them go on"
            logger.warning(text, self, self.waiting)

    def _leave(self, seat: Seat) -> None:
        self._router.leave(seat)

    def _server(self, seat: Seat) -> Transport:
        return seat.replica.transport

    def _sending(self, seat: Seat, scope: asyncio.Timeout) -> None:
        seat.can_be_cut(scope)

    def _cut_because(self, seat: Seat) -> str | None:
        return seat.cut_because

    def _answered(self, seat: Seat, completion: Completion) -> Completion:
        self._router.answered(seat, completion.usage)
        sent, now = seat.weight_version, seat.replica.weight_version
        version = sent if sent == now else f"{sent or '?'}->{now or '?'}"
        seen = {"replica": seat.replica.name, "weight_version": version}
        return completion.model_copy(update=seen)

    def _failed(self, seat: Seat, failure: BadReply) -> None:
        self._router.failed(seat, failure, words_of(failure, seat.replica.endpoint))
        if self._router.away:
            self._prober.tend()

    async def _go_on(self, call: Call, failure: BadReply) -> None:
        replica = call.seat.replica if call.seat is not None else None
        if replica is not None:
            call.said = {**(call.said or {}), replica.name: failure}
        if replica is not None and self._goes_elsewhere(call, failure, replica):
            call.tried = (*call.tried, replica.name)
            return
        call.failures += 1
        call.tried = ()
        left = call.failures <= self.endpoint.max_retries
        try:
            await self._pause(call, failure, attempts_left=left)
        except BadReply:
            raise self._error(call, failure, replica) from None

    def _goes_elsewhere(self, call: Call, failure: BadReply, replica: Replica) -> bool:
        """Whether the call is sent to another server at once; notes it if it counts as a retry.

        One that is gone, or refuses, took nothing of the call, so the next one is not another try.
        """
        fault = fault_of(failure)
        if call.only_at is not None or fault == "passing" or self._clock() >= call.deadline:
            return False
        tried = {*call.tried, replica.name}
        others = [other for other in self._router if other.is_up and other.name not in tried]
        if fault == "request":
            # Either the request is wrong, or the server: it may have another model, or lack a flag.
            if replica.is_proven or not any(other.is_proven for other in others):
                return False
            self._router.doubt(replica)
            return True
        if not others:
            return False
        if fault in ("gone", "refused") or call.seat.cut_because is not None:
            return True
        call.failures += 1
        return call.failures <= self.endpoint.max_retries

    async def _nap(self, pause_s: float) -> None:
        if not self._router.is_hopeless:
            await self._sleep(pause_s)
            return
        await sleep_until_revived(self._router, asyncio.ensure_future(self._sleep(pause_s)))

    def _error(self, call: Call, failure: BadReply, replica: Replica | None) -> EndpointError:
        """What the caller is told, in the end: what all servers concerned said, or the only one."""
        said = call.said or {}
        concerned = {r.name for r in self._router if r.name in said or r.ejected}
        wrong = fault_of(failure) in ("request", "passing")
        if replica is None and wrong and not failure.unreachable:  # it can't be sent at all
            return as_error(failure, self.endpoint, attempts=call.attempts)
        if replica is not None and (wrong or call.only_at or concerned == {replica.name}):
            answered = replica.answered > 0
            error = as_error(failure, replica.endpoint, attempts=call.attempts, answered=answered)
            if error.refuses_caller and len(list(self._router)) > 1:  # others may take the caller
                error.status = None
            return error
        return self._none_answers(call.attempts, said)

    def _none_answers(self, attempts: int, said: Mapping[str, BadReply]) -> EndpointError:
        """Names every server with what it said: to this call if it was asked, or last."""
        failures = {
            replica.name: said.get(replica.name) or replica.last_failure or NEVER_ASKED
            for replica in self._router
        }
        words = {r.name: words_of(failures[r.name], r.endpoint) for r in self._router}
        return as_error_of_all(self.endpoint.model, failures, words, attempts=attempts)
