"""Any OpenAI-compatible chat-completions endpoint.

What a long run depends on is done here, where it can be seen: which failures are tried again and
for how long, what every call cost, and what happens to it when it is cut short. The parts are
beside it: a call and its bill (`calling`), the wire format (`wire`, `reply`, `stream`), HTTP
(`transport`), what a server turns out not to know (`dialect`), slots and pace (`limiter`), money
(`budget`), failures and their words (`failures`). One `ChatClient` works from any number of event
loops and threads; each loop gets its own connections, and all share one limiter and one budget.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from agentgym.client import Completion, Endpoint, public_url
from agentgym.clients.call import Call
from agentgym.clients.calling import CallingClient
from agentgym.clients.failures import as_error, checked_url
from agentgym.clients.limiter import Limiter, Permit
from agentgym.clients.reply import BadReply
from agentgym.clients.transport import Transport


class ChatClient(CallingClient[Permit]):
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
        self._has_answered = False
        super().__init__(endpoint, rng=rng, sleep=sleep, clock=clock)

    def _begin(self) -> None:
        super()._begin()
        endpoint = self.endpoint
        self.limiter = Limiter(
            endpoint.max_concurrency, endpoint.rate, clock=self._clock, sleep=self._sleep
        )
        """Slots and pace, of all loops together."""
        self._transport = Transport(endpoint, self._scopes, path=self._wire.path)

    def __repr__(self) -> str:
        return f"ChatClient({public_url(self.endpoint.base_url)}, model={self.endpoint.model!r})"

    async def aclose(self) -> None:
        """Close the running loop's connections; calls in flight there end with an error.

        Other loops' connections close with their loops. A closed client can be used again.
        """
        self._renewed()
        await self._scopes.aclose()
        await self._transport.aclose()

    # --- the one server -----------------------------------------------------------------------

    def _ticket(self) -> int:
        return self.limiter.ticket()

    async def _enter(self, call: Call, prompt_tokens: int, limit: float) -> Permit:
        tokens = prompt_tokens + (int(limit) if math.isfinite(limit) else 0)
        return await self.limiter.enter(call.ticket, tokens=tokens)

    def _leave(self, seat: Permit) -> None:
        self.limiter.leave()

    def _server(self, seat: Permit) -> Transport:
        return self._transport

    def _answered(self, seat: Permit, completion: Completion) -> Completion:
        self._has_answered = True
        usage = completion.usage
        tokens = usage.prompt_tokens + usage.completion_tokens if usage else None
        self.limiter.answered(seat, tokens=tokens)
        return completion

    def _failed(self, seat: Permit, failure: BadReply) -> None:
        if failure.is_overload:
            self.limiter.overloaded(seat, retry_after_s=failure.retry_after_s)

    async def _go_on(self, call: Call, failure: BadReply) -> None:
        call.failures += 1
        left = call.failures <= self.endpoint.max_retries
        try:
            await self._pause(call, failure, attempts_left=left)
        except BadReply:
            raise as_error(
                failure, self.endpoint, attempts=call.attempts, answered=self._has_answered
            ) from None
