"""What an endpoint's calls may cost together.

A budget that is looked at after the bill is overrun by whatever is in flight, and with thousands of
requests that is a lot. So every request first reserves the most it can cost: its prompt at the
input price and its output limit at the output price. What it didn't need comes back with the
answer, and a call that would fit in but for those in flight waits for that. Where nobody knows
whether a request was billed (the connection broke, the caller gave up), the reservation is kept as
spent: a budget may stop too early, never too late.

A run may have a budget, too, for all its endpoints. That is a `Purse`; the same reservation is made
there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentgym.client import Endpoint, Prices, public_url
from agentgym.clients.prompt_scale import PromptScale
from agentgym.clients.waiting import WaitingLine
from agentgym.deadline import queued
from agentgym.errors import BudgetExceeded
from agentgym.metering import Purse, open_purse
from agentgym.types import Usage


@dataclass(eq=False)
class Reservation:
    """Money held for one request."""

    most_usd: float
    """What it can cost at most; 0 without prices."""
    most_tokens: float = 0.0
    """How many tokens it can take at most, input and output."""
    spent_usd: float = 0.0
    """What it cost, once that is known."""
    spent_tokens: float = 0.0
    """What it took, once that is known."""
    refused: bool = False
    """Whether it could never be held."""
    purse: Purse | None = None
    """The run's budget, where it has one."""
    in_purse: Any = None
    """What that set aside."""


class Budget:
    """Dollars of one client, for all its loops and threads.

    Args:
        endpoint: Whose prices and budget count.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        # Reentrant: the garbage collector may end a call, and so free its money, in here.
        self._lock = threading.RLock()
        self._line = WaitingLine[Reservation](
            self._lock, take=self._take, give_back=self._give_back
        )
        self._in_flight = 0
        self._prompts = PromptScale()
        self.spent_usd = 0.0
        """Spent so far, requests of unknown outcome counted at their most."""
        self.reserved_usd = 0.0
        """Held for the requests in flight."""

    @asynccontextmanager
    async def reserved(
        self, ticket: int, prompt_tokens: int, max_tokens: float
    ) -> AsyncIterator[Reservation]:
        """Hold the most that a request can cost, as soon as there is so much.

        Args:
            ticket: The call's place in the queue.
            prompt_tokens: As estimated. Corrected by what prompts of its size turned out to be.
            max_tokens: The request's output limit; infinite if it has none.

        Raises:
            BudgetExceeded: If it might overrun the budget by itself, on top of what is spent.
        """
        held = await self.hold(ticket, prompt_tokens, max_tokens)
        try:
            yield held
        finally:
            self.let_go(held)

    async def hold(self, ticket: int, prompt_tokens: int, max_tokens: float) -> Reservation:
        """`reserved`, for those who call `let_go` themselves."""
        prices, purse = self._endpoint.prices, open_purse()
        prompt = self._prompts.at_most(prompt_tokens)
        most_usd = 0.0 if prices is None else _most_usd(prices, prompt, max_tokens)
        held = Reservation(most_usd, prompt + max_tokens)
        await self._take_own(ticket, held)
        if purse is None:
            return held
        try:
            usd = None if prices is None else most_usd
            held.in_purse = await purse.hold(self._endpoint.role, tokens=held.most_tokens, usd=usd)
        except BaseException:
            self.let_go(held)
            raise
        held.purse = purse
        return held

    async def _take_own(self, ticket: int, held: Reservation) -> None:
        """Hold it in the endpoint's own budget, if it has one.

        Raises:
            BudgetExceeded: If it can never be held.
        """
        limit = self._endpoint.budget_usd
        if limit is None:
            return
        if not self._line.takes_at_once(held):
            with queued():
                await self._line.wait(ticket, held)
        if held.refused:
            raise BudgetExceeded(self._refusal(held.most_usd, limit))

    def let_go(self, held: Reservation) -> None:
        """The request is over: what it cost is spent, the rest is there for others."""
        if held.purse is not None:
            held.purse.let_go(held.in_purse, tokens=held.spent_tokens, usd=held.spent_usd)
            held.purse = None
        if self._endpoint.budget_usd is None:
            return
        with self._lock:
            self._give_back(held)
            self.spent_usd += held.spent_usd
            self._line.serve()

    def spent_before(self, usd: float) -> None:
        """Count what was spent elsewhere, by an earlier process."""
        with self._lock:
            self.spent_usd += usd
            self._line.serve()

    def learn(self, estimated_tokens: int, usage: Usage) -> None:
        """Compare an estimate with what the server counted, for the prompts to come."""
        if not usage.estimated and estimated_tokens > 0:
            self._prompts.learn(estimated_tokens, usage.prompt_tokens)

    def _take(self, held: Reservation) -> bool:
        """Whether a request is decided: what it needs is held, or will never be there."""
        limit = self._endpoint.budget_usd or 0.0
        held.refused = self.spent_usd + held.most_usd > limit
        if not held.refused:
            if self._in_flight and self.spent_usd + self.reserved_usd + held.most_usd > limit:
                return False
            self._in_flight += 1
            self.reserved_usd += held.most_usd
        return True

    def _give_back(self, held: Reservation) -> None:
        if held.refused:
            return
        self._in_flight -= 1
        # Sums of fractions leave crumbs, and nobody may wait for those.
        self.reserved_usd = self.reserved_usd - held.most_usd if self._in_flight else 0.0

    def _refusal(self, most_usd: float, limit_usd: float) -> str:
        where = f"{public_url(self._endpoint.base_url)} (model {self._endpoint.model!r})"
        if math.isinf(most_usd):
            return (
                f"{where}: not sent, since a request without an output limit may cost anything; "
                "with budget_usd set, don't take max_tokens out by extra_body"
            )
        return (
            f"{where}: not sent, since it may cost ${most_usd:.6f}: of budget_usd=${limit_usd:g} "
            f"${self.spent_usd:.6f} are spent; raise budget_usd to go on"
        )


def _most_usd(prices: Prices, prompt_tokens: int, max_tokens: float) -> float:
    if math.isinf(max_tokens):
        return math.inf
    # The dearer of the two: a provider that charges more for cached tokens is not unheard of.
    dearest = max(prices.input, prices.cached or 0.0)
    return (prompt_tokens * dearest + max_tokens * prices.output) / 1e6
