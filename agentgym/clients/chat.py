"""Any OpenAI-compatible chat-completions endpoint.

What a long run depends on is done here, where it can be seen: which failures are tried again and
for how long, what every call cost, and what happens to it when it is cut short. The parts are
beside it: the wire format (`wire`, `reply`, `stream`), HTTP (`transport`), what a server turns out
not to know (`dialect`), slots and pace (`limiter`), money (`budget`), failures and their words
(`failures`). One `ChatClient` works from any number of event loops and threads; each loop gets its
own connections, and all share one limiter and one budget.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from agentgym.client import Completion, Endpoint, SamplingParams, public_url
from agentgym.clients.budget import Budget, Reservation
from agentgym.clients.dialect import SpokenDialect
from agentgym.clients.failures import as_error, checked_url, is_overflow, scrubbed
from agentgym.clients.limiter import Limiter, Permit
from agentgym.clients.reasoning import KeptReasoning
from agentgym.clients.reply import (
    BadReply,
    estimated_tokens,
    output_limit,
    read_reply,
    read_usage,
)
from agentgym.clients.stream import StreamedReply
from agentgym.clients.transport import LoopSession, Transport
from agentgym.clients.wire import check_answered, encoded, request_body
from agentgym.deadline import queued
from agentgym.errors import EndpointError
from agentgym.metering import charge, report_refusal
from agentgym.types import Message, ToolSpec, Usage

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_WARN_EVERY_S = 30.0
_OVERLOADED = (429, 503, 529)  # 529 is Anthropic's and its gateways'
_ALWAYS_TRIED_AGAIN = (429, 500, 502, 503, 504)


@dataclass
class _Call:
    """One call: what is asked, until when, and what it has cost so far."""

    body: dict[str, Any]
    ticket: int
    deadline: float
    sent: dict[str, Any] = field(default_factory=dict)
    """The request as it was last sent, in the server's dialect."""
    attempts: int = 0
    failures: int = 0
    failed: bool = False
    usage: Usage = field(default_factory=lambda: Usage(calls=0))

    @property
    def bill(self) -> Usage:
        """All attempts together."""
        retries = max(0, self.attempts - 1)
        counted = {"retries": retries, "failed_calls": int(self.failed)}
        return self.usage.model_copy(update=counted)


class ChatClient:
    """A `ModelClient` for a hosted or local OpenAI-compatible server.

    Args:
        endpoint: Where, which model, how many requests at once, time-outs, prices, dialect.
        rng: Jitter of the pauses between attempts.
        sleep: Waits between attempts and for the endpoint's pace.
        clock: Seconds, rising.

    Raises:
        ConfigError: If no request can be sent to the endpoint's URL.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        checked_url(endpoint.base_url)
        self.endpoint = endpoint
        self.usage = Usage(calls=0)
        """Tokens and dollars of all calls so far, failed ones included."""
        self._reasoning = KeptReasoning(endpoint.dialect)
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._clock = clock
        self._answered = False
        self._warned_at = -_WARN_EVERY_S
        self._begin()

    def _begin(self) -> None:
        """Start with nothing in flight."""
        endpoint = self.endpoint
        self.limiter = Limiter(
            endpoint.max_concurrency, endpoint.rate, clock=self._clock, sleep=self._sleep
        )
        """Slots and pace, of all loops together."""
        self.budget = Budget(endpoint)
        """Dollars spent and held."""
        self.dialect = SpokenDialect(endpoint)
        """What the server takes, as far as it is known."""
        self._transport = Transport(endpoint)
        # Reentrant: the garbage collector may end a call, and so bill it, in here.
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"ChatClient({public_url(self.endpoint.base_url)}, model={self.endpoint.model!r})"

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
        prompt = self._reasoning.put_back(session, messages)
        completion = await self._charged(self._call(prompt, tools, sampling))
        self._reasoning.keep(session, messages, completion)
        return completion

    async def preflight(self, tools: Sequence[ToolSpec] = ()) -> None:
        """Make one tiny request to see that endpoint, key and model are right.

        A server that is there but busy is asked again; anything else is told at once.

        Args:
            tools: Sent along, to see that the server takes tools.

        Raises:
            EndpointError: If they are not; one line that says why.
        """
        # Some hosted models refuse fewer tokens, and temperature 0.
        call = self._call([{"role": "user", "content": "Hi"}], tools, SamplingParams(max_tokens=16))
        await self._charged(call, only=_ALWAYS_TRIED_AGAIN)

    async def release(self, session: str) -> None:
        """Forget a session's reasoning."""
        self._reasoning.forget(session)

    async def aclose(self) -> None:
        """Close the running loop's connections; calls in flight there end with an error.

        Other loops' connections close with their loops. A closed client can be used again.
        """
        await self._transport.aclose()

    # --- one call -----------------------------------------------------------------------------

    def _call(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: SamplingParams
    ) -> _Call:
        if self._pid != os.getpid():  # forked: the parent's calls will never end in here
            spent_usd = self.budget.spent_usd
            self._begin()
            self.budget.spent_usd = spent_usd
        try:
            check_answered(messages)
        except BadReply as fault:
            raise as_error(fault, self.endpoint, attempts=0) from None
        endpoint = self.endpoint
        return _Call(
            body=request_body(endpoint.model, messages, tools, sampling, endpoint.dialect),
            ticket=self.limiter.ticket(),
            deadline=self._clock() + endpoint.deadline_s,
        )

    async def _charged(
        self, call: _Call, *, only: Collection[int | None] | None = None
    ) -> Completion:
        """Make a call, and charge it once, however it ends."""
        try:
            session = await self._transport.session()
            async with session.call():
                completion = await self._answer(session, call, only)
        except EndpointError as error:
            call.failed = True
            error.usage = call.bill
            if error.refuses_caller:
                report_refusal(self.endpoint.role, str(error))
            raise
        finally:
            # A cancelled call counts if it was billed.
            if call.attempts and (call.failed or call.usage.calls):
                with self._lock:
                    self.usage += call.bill
                charge(self.endpoint.role, call.bill)
        self._answered = True
        return completion.model_copy(update={"usage": call.bill, "attempts": call.attempts})

    async def _answer(
        self, session: LoopSession, call: _Call, only: Collection[int | None] | None
    ) -> Completion:
        """Ask until there is an answer, the retries are used up, or the deadline passes.

        Args:
            session: The running loop's connections.
            call: What is asked.
            only: The statuses that are tried again, if not all that may pass.
        """
        while True:
            try:
                return await self._attempt(session, call)
            except BadReply as bad:
                failure = bad
            # Only what changes the request is worth sending it again.
            learnt = self.dialect.learn(failure, call.sent)
            if learnt and self.dialect.as_sent(call.body) != call.sent:
                continue
            call.failures += 1
            pause_s = self._pause_s(failure, call.failures)
            too_late = self._clock() + pause_s >= call.deadline
            hopeless = not failure.retryable or is_overflow(failure)
            hopeless = hopeless or (only is not None and failure.status not in only)
            if hopeless or call.failures > self.endpoint.max_retries or too_late:
                raise as_error(
                    failure, self.endpoint, attempts=call.attempts, answered=self._answered
                ) from None
            if call.failures > 1:
                self._warn(failure, pause_s)
            await self._sleep(pause_s)

    def _pause_s(self, failure: BadReply, failures: int) -> float:
        """Exponential with jitter, at least what the server asks for."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (failures - 1))
        return max(self._rng.uniform(longest / 2, longest), failure.retry_after_s or 0.0)

    def _warn(self, failure: BadReply, pause_s: float) -> None:
        """Say that requests keep failing; once in a while, since thousands may wait at once."""
        if self._clock() - self._warned_at < _WARN_EVERY_S:
            return
        self._warned_at = self._clock()
        text = " ".join(scrubbed(str(failure), self.endpoint).split())[:200]
        logger.warning("%r: %s; trying again in %.0f s", self, text, pause_s)

    # --- one attempt --------------------------------------------------------------------------

    async def _attempt(self, session: LoopSession, call: _Call) -> Completion:
        """Send the request once, when there is money and a slot for it.

        Raises:
            BadReply: If there is no answer.
            BudgetExceeded: If it might cost too much; nothing was sent.
        """
        async with AsyncExitStack() as held:
            await self._scout(held, call)
            call.sent = self.dialect.as_sent(call.body)
            data = encoded(call.sent)
            prompt_tokens, limit = estimated_tokens(data), output_limit(call.sent)
            tokens = prompt_tokens + (int(limit) if math.isfinite(limit) else 0)
            queued_at = self._clock()
            with queued():
                money = self.budget.reserved(call.ticket, prompt_tokens, limit)
                reserved = await held.enter_async_context(money)
                slot = self.limiter.slot(call.ticket, tokens=tokens)
                permit = await held.enter_async_context(slot)
            call.deadline += self._clock() - queued_at  # waiting for one's turn is free
            call.attempts += 1
            attempt = _Attempt(data, StreamedReply(), reserved)
            try:
                completion = await self._sent(session, call, attempt)
            except BadReply as failure:
                attempt.usage, attempt.is_settled = failure.usage, not failure.unknown_bill
                if failure.status in _OVERLOADED and not failure.out_of_money:
                    self.limiter.overloaded(permit, retry_after_s=failure.retry_after_s)
                raise
            else:
                attempt.usage, attempt.is_settled = completion.usage, True
                self._succeeded(call, permit, prompt_tokens, completion)
                return completion
            finally:  # cancelled ones, too
                self._settle(call, attempt)

    async def _scout(self, held: AsyncExitStack, call: _Call) -> None:
        """Wait while another call finds out how the server takes structured answers.

        Unlike the wait for a slot this one counts, or a server that is silent would hold up every
        call for as long as there are others. With half of the time gone the call goes ahead itself:
        the other one may be waiting for its turn at a server that is busy.
        """
        if "response_format" not in call.body:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, call.deadline - self._clock()) / 2):
                await held.enter_async_context(self.dialect.scouting(call.ticket))

    async def _sent(self, session: LoopSession, call: _Call, attempt: _Attempt) -> Completion:
        left_s = call.deadline - self._clock()
        patience_s = min(left_s, self.endpoint.timeout_s)
        try:
            async with asyncio.timeout(patience_s):
                reply = await session.post(attempt.data, attempt.streamed)
        except TimeoutError as error:
            which = "before the deadline" if patience_s == left_s else "within the time-out"
            raise BadReply(
                f"no answer {which}", retryable=True, status=408, unknown_bill=True
            ) from error
        return read_reply(reply, {**call.sent, "messages": call.body["messages"]})

    def _succeeded(
        self, call: _Call, permit: Permit, prompt_tokens: int, completion: Completion
    ) -> None:
        self.dialect.accepted(call.sent)
        usage = completion.usage
        if usage is None:
            self.limiter.answered(permit)
            return
        self.budget.learn(prompt_tokens, usage)
        self.limiter.answered(permit, tokens=usage.prompt_tokens + usage.completion_tokens)

    def _settle(self, call: _Call, attempt: _Attempt) -> None:
        """Put an attempt on the call's bill, and tell the budget what it cost."""
        usage = attempt.usage
        if usage is None and attempt.streamed.started:  # what has come was generated, and is billed
            (choice,) = attempt.streamed.body()["choices"]
            usage = read_usage({}, call.body, choice["message"])
        cost_usd = 0.0
        if usage is not None:
            prices = self.endpoint.prices
            if prices is not None:
                cost_usd = prices.cost_usd(usage)
                usage = usage.model_copy(update={"cost_usd": cost_usd})
            call.usage += usage
        if not attempt.is_settled:
            cost_usd = max(cost_usd, attempt.reserved.most_usd)
        attempt.reserved.spent_usd = cost_usd


@dataclass
class _Attempt:
    """One request: what was sent, what has come of it, what it costs."""

    data: bytes
    streamed: StreamedReply
    reserved: Reservation
    usage: Usage | None = None
    is_settled: bool = False
    """Whether what it was billed is known; it isn't while it is in flight."""
