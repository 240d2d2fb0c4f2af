"""What an endpoint's calls may cost together.

A budget that is looked at after the bill is overrun by whatever is in flight, and with thousands of
requests that is a lot. So every request first reserves the most it can cost: its prompt at the
input price and its output limit at the output price. What it didn't need comes back with the
answer. Where nobody knows whether a request was billed (the connection broke, the caller gave up),
the reservation is kept as spent: a budget may stop too early, never too late.
"""

from __future__ import annotations

import math
import threading

from agentgym.client import Endpoint, Prices, public_url
from agentgym.errors import BudgetExceeded
from agentgym.types import Usage


class Budget:
    """Dollars of one client, for all its loops and threads.

    Args:
        endpoint: Whose prices and budget count.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._tokens_per_estimate = 1.0
        self.spent_usd = 0.0
        """Spent so far, requests of unknown outcome counted at their most."""
        self.reserved_usd = 0.0
        """Held for the requests in flight."""

    def reserve(self, prompt_tokens: int, max_tokens: float) -> float:
        """Hold the most that a request can cost.

        Args:
            prompt_tokens: As estimated. Corrected by what earlier estimates turned out to be.
            max_tokens: The request's output limit; infinite if it has none.

        Returns:
            Dollars held, to be given to `settle`; 0 without a budget.

        Raises:
            BudgetExceeded: If that might overrun the budget.
        """
        limit, prices = self._endpoint.budget_usd, self._endpoint.prices
        if limit is None or prices is None:
            return 0.0
        with self._lock:
            prompt = math.ceil(prompt_tokens * self._tokens_per_estimate)
            most = _most_usd(prices, prompt, max_tokens)
            if self.spent_usd + self.reserved_usd + most > limit:
                raise BudgetExceeded(self._refusal(most, limit))
            self.reserved_usd += most
            return most

    def settle(self, reserved_usd: float, spent_usd: float) -> None:
        """Give back a reservation.

        Args:
            reserved_usd: What `reserve` returned.
            spent_usd: What the request cost in the end.
        """
        with self._lock:
            self.reserved_usd = max(0.0, self.reserved_usd - reserved_usd)
            self.spent_usd += spent_usd

    def learn(self, estimated_tokens: int, usage: Usage) -> None:
        """Compare an estimate with what the server counted; the worst ratio is used from now on."""
        if not usage.estimated and estimated_tokens > 0:
            ratio = usage.prompt_tokens / estimated_tokens
            self._tokens_per_estimate = max(self._tokens_per_estimate, ratio)

    def _refusal(self, most_usd: float, limit_usd: float) -> str:
        where = f"{public_url(self._endpoint.base_url)} (model {self._endpoint.model!r})"
        if math.isinf(most_usd):
            return (
                f"{where}: not sent, since a request without an output limit may cost anything; "
                "with budget_usd set, don't take max_tokens out by extra_body"
            )
        return (
            f"{where}: not sent, since it may cost ${most_usd:.6f}: of budget_usd=${limit_usd:g} "
            f"${self.spent_usd:.6f} are spent and ${self.reserved_usd:.6f} held for calls in "
            "flight; raise budget_usd to go on"
        )


def _most_usd(prices: Prices, prompt_tokens: int, max_tokens: float) -> float:
    if math.isinf(max_tokens):
        return math.inf
    # The dearer of the two: a provider that charges more for cached tokens is not unheard of.
    dearest = max(prices.input, prices.cached or 0.0)
    return (prompt_tokens * dearest + max_tokens * prices.output) / 1e6
