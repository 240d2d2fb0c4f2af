"""What one role reads, writes and costs: amounts that add up.

Input tokens include the cached ones, as everywhere in agentgym, and cached ones are billed once: at
their own price, and not at the full one again.
"""

from __future__ import annotations

from agentgym.client import Prices
from agentgym.types import Finite, Record


class Volume(Record):
    """Calls and tokens; expectations, so not whole numbers."""

    calls: Finite = 0.0
    input_tokens: Finite = 0.0
    """Cached ones included."""
    cacheable_tokens: Finite = 0.0
    """Input tokens that a prefix cache could hold at best."""
    cached_tokens: Finite = 0.0
    """Input tokens that one does hold."""
    output_tokens: Finite = 0.0

    def times(self, factor: float) -> Volume:
        """So many times as much."""
        return Volume(**{name: value * factor for name, value in self})

    def __add__(self, other: Volume) -> Volume:
        return Volume(**{name: value + getattr(other, name) for name, value in self})

    def with_hits(self, hit: float) -> Volume:
        """The same with so large a share of the cacheable tokens cached."""
        return self.model_copy(update={"cached_tokens": hit * self.cacheable_tokens})

    def usd(self, prices: Prices) -> Dollars:
        """What it costs."""
        cached = prices.input if prices.cached is None else prices.cached
        return Dollars(
            fresh_input=(self.input_tokens - self.cached_tokens) * prices.input / 1e6,
            cached_input=self.cached_tokens * cached / 1e6,
            output=self.output_tokens * prices.output / 1e6,
        )


class Dollars(Record):
    """A bill by what is billed, US dollars."""

    fresh_input: Finite = 0.0
    cached_input: Finite = 0.0
    output: Finite = 0.0

    @property
    def input(self) -> float:
        """Of all input."""
        return self.fresh_input + self.cached_input

    @property
    def total(self) -> float:
        """Of everything."""
        return self.input + self.output

    def times(self, factor: float) -> Dollars:
        """So many times as much."""
        return Dollars(**{name: value * factor for name, value in self})

    def __add__(self, other: Dollars) -> Dollars:
        return Dollars(**{name: value + getattr(other, name) for name, value in self})
