"""What every client of completions does around its requests, whichever server takes them.

A call is one question of the caller. It is put into one request body, waits for money and for a
server's slot, is sent, perhaps several times, and is charged once, however it ends. Where requests
go and what a failure means for the next one is for those who inherit: `ChatClient` has one server,
`BalancedClient` has several. What a request looks like, messages or token ids, is its `Wire`'s.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Generic, TypeVar

from agentgym.client import Completion, Endpoint, SamplingParams
from agentgym.clients.budget import Budget
from agentgym.clients.call import Attempt, Call
from agentgym.clients.dialect import SpokenDialect
from agentgym.clients.failures import as_error
from agentgym.clients.pauses import Pauses
from agentgym.clients.question import Question, Wire
from agentgym.clients.reply import BadReply, estimated_tokens, output_limit
from agentgym.clients.scopes import Scopes
from agentgym.clients.transport import Transport
from agentgym.clients.wire import pieces_of
from agentgym.clients.wires import wire_of
from agentgym.errors import EndpointError
from agentgym.metering import charge, report_refusal
from agentgym.types import Message, ToolSpec, Usage

Seat = TypeVar("Seat")
"""Leave to send one request to some server."""
Put = TypeVar("Put")


class CallingClient(ABC, Generic[Seat]):
    """A `ModelClient` without its servers.

    Args:
        endpoint: Model, role, prices, budget, deadline, retries and dialect of every call.
        rng: Jitter of the pauses between attempts.
        sleep: Waits between attempts and for the endpoint's pace.
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
        self.endpoint = endpoint
        self.usage = Usage(calls=0)
        """Tokens and dollars of all calls so far, failed ones included."""
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._clock = clock
        self._pauses = Pauses(repr(self), endpoint, rng=self._rng, clock=clock)
        self._begin()

    def _begin(self) -> None:
        """Start with nothing in flight."""
        self.budget = Budget(self.endpoint)
        """Dollars spent and held."""
        self.dialect = SpokenDialect(self.endpoint)
        """What the server takes, as far as it is known."""
        self._wire: Wire = wire_of(self.endpoint, getattr(self, "_wire", None))
        self._scopes = Scopes(repr(self))
        # Reentrant: the garbage collector may end a call, and so bill it, in here.
        self._lock = threading.RLock()
        self._pid = os.getpid()

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer the conversation; see `ModelClient.complete`.

        `usage` of the completion includes attempts that failed. It is charged to the endpoint's
        role, once, also where the call fails or is cancelled.

        Raises:
            EndpointError: If no answer can be had within the endpoint's retries and deadline.
            ContextOverflow: If the conversation no longer fits the model's context.
            EmptyReply: If the server keeps answering without an answer.
            BudgetExceeded: If the call might overrun the endpoint's budget.
        """
        self._renewed()
        question = self._put(lambda: self._wire.ask(messages, tools, sampling, session))
        completion = await self._charged(self._call(question))
        self._wire.keep(question, completion)
        return completion

    async def preflight(self, tools: Sequence[ToolSpec] = ()) -> None:
        """Make one tiny request to see that endpoint, key and model are right.

        A server that is there but busy is asked again, and so, a few times, is one that cut the
        connection; anything else is told at once.

        Args:
            tools: Sent along, to see that the server takes tools.

        Raises:
            EndpointError: If they are not; one line that says why.
        """
        await self._greeted(tools)

    def spent_before(self, usd: float) -> None:
        """Count on the budget what was spent elsewhere, in dollars."""
        self.budget.spent_before(usd)

    async def release(self, session: str) -> None:
        """Forget a session."""
        self._renewed()
        self._wire.forget(session)

    # --- what the servers are -----------------------------------------------------------------

    @abstractmethod
    def _ticket(self) -> int:
        """A place in the queue of calls, kept over a call's attempts."""

    @abstractmethod
    async def _enter(self, call: Call, prompt_tokens: int, limit: float) -> Seat:
        """Wait for leave to send a request.

        Args:
            call: Whose request.
            prompt_tokens: As estimated.
            limit: The most tokens of output; infinite if there is no limit.
        """

    @abstractmethod
    def _leave(self, seat: Seat) -> None:
        """The request is over, however it ended."""

    @abstractmethod
    def _server(self, seat: Seat) -> Transport:
        """Where the request goes."""

    def _sending(self, seat: Seat, scope: asyncio.Timeout) -> None:
        """The request is about to be sent; `scope` ends it."""

    def _cut_because(self, seat: Seat) -> str | None:
        """Why the request was ended by its scope, if not by its time-out."""
        return None

    @abstractmethod
    def _answered(self, seat: Seat, completion: Completion) -> Completion:
        """Take note of an answer; returns it, perhaps with more about where it is from."""

    @abstractmethod
    def _failed(self, seat: Seat, failure: BadReply) -> None:
        """Take note of a request that wasn't answered."""

    @abstractmethod
    async def _go_on(self, call: Call, failure: BadReply) -> None:
        """Wait until a call that failed is to be tried again.

        Raises:
            EndpointError: If it isn't.
        """

    # --- one call -----------------------------------------------------------------------------

    def _renewed(self) -> None:
        """Start anew in a forked process: the parent's calls and locks are never let go of here."""
        if self._pid != os.getpid():
            spent_usd = self.budget.spent_usd
            self._begin()
            self.budget.spent_usd = spent_usd

    async def _greeted(self, tools: Sequence[ToolSpec], *, only_at: str | None = None) -> None:
        """Make tiny requests, and see what comes of them."""
        questions = self._put(lambda: self._wire.hellos(tools))
        for question in questions:
            await self._charged(self._call(question, only_at=only_at))
        self._put(lambda: self._wire.greeted(questions))

    def _put(self, asked: Callable[[], Put]) -> Put:
        """What is put together or looked at here, its faults as the caller's errors."""
        self._renewed()
        try:
            return asked()
        except BadReply as fault:
            raise as_error(fault, self.endpoint, attempts=0) from None

    def _call(self, question: Question, *, only_at: str | None = None) -> Call:
        return Call(
            question=question,
            ticket=self._ticket(),
            deadline=self._clock() + self.endpoint.deadline_s,
            only_at=only_at,
        )

    async def _charged(self, call: Call) -> Completion:
        """Make a call, and charge it once, however it ends."""
        try:
            async with self._scopes.one():
                completion = await self._answer(call)
        except EndpointError as error:
            call.failed = True
            error.usage = call.bill
            if error.refuses_caller:
                report_refusal(self.endpoint.role, str(error))
            raise
        finally:
            # A cancelled call counts if it was billed.
            if call.attempts and (call.failed or call.usage.calls):
                bill = call.bill
                with self._lock:
                    self.usage += bill
                charge(self.endpoint.role, bill)
        if call.attempts == 1 and completion.usage is call.usage:
            return completion
        return completion.model_copy(update={"usage": call.bill, "attempts": call.attempts})

    async def _answer(self, call: Call) -> Completion:
        """Ask until there is an answer, the retries are used up, or the deadline passes."""
        is_structured = "response_format" in call.question.body
        attempt = self._scouted_attempt if is_structured else self._attempt
        while True:
            try:
                return await attempt(call)
            except BadReply as bad:
                failure = bad
            # Only what changes the request is worth sending it again.
            body = call.question.body
            sent = call.sent or body
            if self.dialect.learn(failure, sent) and self.dialect.as_sent(body) != sent:
                continue
            await self._go_on(call, failure)

    async def _pause(self, call: Call, failure: BadReply, *, attempts_left: bool) -> None:
        """Wait before the next attempt.

        Args:
            call: Which call.
            failure: Its last attempt's.
            attempts_left: Whether there may be another one.

        Raises:
            BadReply: The failure, if there will be none.
        """
        pause_s = self._pauses.before_next(call, failure)
        if pause_s is None or not attempts_left:
            raise failure
        if call.failures > 1:
            self._pauses.warn(failure, pause_s)
        await self._nap(pause_s)

    async def _nap(self, pause_s: float) -> None:
        """Sleep, or until it is known that there is no need to."""
        await self._sleep(pause_s)

    # --- one attempt --------------------------------------------------------------------------

    async def _attempt(self, call: Call) -> Completion:
        """Send the request once, when there is money and a slot for it.

        Raises:
            BadReply: If there is no answer.
            BudgetExceeded: If it might cost too much; nothing was sent.
        """
        sent = call.sent = self.dialect.as_sent(call.question.body)
        pieces = pieces_of(sent)
        prompt_tokens, limit = call.question.prompt_tokens, output_limit(sent)
        if prompt_tokens is None:
            prompt_tokens = estimated_tokens(sum(map(len, pieces)))
        queued_at = self._clock()
        reserved = await self.budget.hold(call.ticket, prompt_tokens, limit)
        try:
            seat = await self._enter(call, prompt_tokens, limit)
            try:
                call.deadline += self._clock() - queued_at  # waiting for one's turn is free
                fitted = await self._fitted(call, seat, sent)
                if fitted is not sent:
                    pieces = pieces_of(fitted)
                attempt = Attempt(fitted, b"".join(pieces), prompt_tokens, reserved)
                return await self._sent(call, seat, attempt)
            finally:
                self._leave(seat)
        finally:
            self.budget.let_go(reserved)

    async def _fitted(self, call: Call, seat: Seat, sent: Mapping[str, Any]) -> Mapping[str, Any]:
        """The request as its server has room for it.

        Raises:
            BadReply: If that can't be found out; the failure is noted as the server's.
        """
        server = self._server(seat)
        fitted = self._wire.fit(call.question, sent, server)
        if fitted is not None:
            return fitted
        try:
            async with asyncio.timeout(self._patience_s(call, seat)):
                await self._wire.learn(call.question, server)
        except TimeoutError as error:
            failure = BadReply("no answer within the time-out", retryable=True, status=408)
            self._failed(seat, failure)
            raise failure from error
        except BadReply as failure:
            self._failed(seat, failure)
            raise
        return self._wire.fit(call.question, sent, server) or sent

    async def _scouted_attempt(self, call: Call) -> Completion:
        """An attempt at a structured answer, after whoever finds out how the server takes them.

        Unlike the wait for a slot this one counts, or a server that is silent would hold up every
        call for as long as there are others. With half of the time gone the call goes ahead itself:
        the other one may be waiting for its turn at a server that is busy.
        """
        async with AsyncExitStack() as held:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, call.deadline - self._clock()) / 2):
                    await held.enter_async_context(self.dialect.scouting(call.ticket))
            return await self._attempt(call)

    async def _sent(self, call: Call, seat: Seat, attempt: Attempt) -> Completion:
        """Send the request, and put what it cost on the bill."""
        call.attempts += 1
        try:
            reply = await self._posted(call, seat, attempt)
            completion = self._wire.read(reply, attempt.body, call.question)
        except BadReply as failure:
            attempt.usage, attempt.is_settled = failure.usage, not failure.unknown_bill
            self._failed(seat, failure)
            raise
        else:
            attempt.usage, attempt.is_settled = completion.usage, True
            self.dialect.accepted(attempt.body)
            if completion.usage is not None:
                self.budget.learn(attempt.prompt_tokens, completion.usage)
            return self._answered(seat, completion)
        finally:  # cancelled ones, too
            self._settle(call, attempt)

    async def _posted(self, call: Call, seat: Seat, attempt: Attempt) -> Any:
        """The server's reply."""
        server = self._server(seat)
        patience_s = self._patience_s(call, seat)
        try:
            async with asyncio.timeout(patience_s) as scope:
                self._sending(seat, scope)
                session = server.here() or await server.session()
                return await session.post(
                    attempt.data,
                    attempt.begin_stream,
                    lambda data: self._wire.trimmed(data, call.question),
                )
        except TimeoutError as error:
            why = self._cut_because(seat)
            shorter = patience_s < server.endpoint.timeout_s
            which = "before the deadline" if shorter else "within the time-out"
            raise BadReply(
                why or f"no answer {which}", retryable=True, status=408, unknown_bill=True
            ) from error

    def _patience_s(self, call: Call, seat: Seat) -> float:
        """How long a server may take to answer."""
        return min(call.deadline - self._clock(), self._server(seat).endpoint.timeout_s)

    def _settle(self, call: Call, attempt: Attempt) -> None:
        """Put an attempt on the call's bill, and tell the budget what it cost."""
        usage = attempt.usage
        if usage is None and attempt.streamed is not None and attempt.streamed.started:
            # What has come was generated, and is billed.
            (choice,) = attempt.streamed.body()["choices"]
            usage = self._wire.usage_of_part(call.question, choice["message"])
        cost_usd, tokens = 0.0, 0.0
        if usage is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
            prices = self.endpoint.prices
            if prices is not None:
                cost_usd = prices.cost_usd(usage)
                usage = usage.model_copy(update={"cost_usd": cost_usd})
            call.usage = call.usage + usage if call.usage.calls else usage
        if not attempt.is_settled:
            cost_usd = max(cost_usd, attempt.reserved.most_usd)
            tokens = max(tokens, attempt.reserved.most_tokens)
        attempt.reserved.spent_usd, attempt.reserved.spent_tokens = cost_usd, tokens
