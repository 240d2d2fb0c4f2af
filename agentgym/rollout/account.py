"""One limit of a budget, what counts against it, and what further episodes may take of it.

What an episode needs is learned from those that are over. A forecast for m further ones is the
upper end of a prediction interval for the sum of m draws,

    m·mean + t·s·sqrt(m + m²/n),

where n are over with standard deviation s, and t is Student's quantile of n-1 degrees of freedom,
one-sided at 95 %; but never more than m times the dearest so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentgym.client import Role
from agentgym.rollout.budget import CapStatus, Unit
from agentgym.statistics.distributions import t_quantile
from agentgym.types import Usage

CRUMB = 1e-9
"""Relative: sums of fractions of a cent are not exact."""

PILOT_REQUESTS = 32
"""So many requests at their most should be there for each episode that begins before it is known
what one takes; where they aren't, fewer begin at once, lest all are begun and none is finished."""


@dataclass(eq=False)
class Account:
    """One limit, and all that counts against it."""

    role: Role | None
    unit: Unit
    limit: float
    charged: dict[str, float] = field(default_factory=dict)
    """Billed, by role."""
    settled: dict[str, float] = field(default_factory=dict)
    """What requests that were held for have taken, by role; bills nobody knows at their most."""
    held: float = 0.0
    """Set aside for requests in flight."""
    in_flight: int = 0
    over: int = 0
    """Episodes that are over."""
    mean: float = 0.0
    """What they took."""
    squares: float = 0.0
    """Sum of their squared deviations."""
    dearest: float = 0.0
    dearest_request: float = 0.0
    """The most that one request was held for, or one call was billed."""

    @property
    def spent(self) -> float:
        """The larger of both counts, by role: some clients hold, others only charge."""
        roles = self.charged.keys() | self.settled.keys()
        return math.fsum(
            max(self.charged.get(role, 0.0), self.settled.get(role, 0.0)) for role in roles
        )

    @property
    def status(self) -> CapStatus:
        """The limit and what is spent of it."""
        return CapStatus(role=self.role, unit=self.unit, limit=self.limit, spent=self.spent)

    def counts(self, role: str) -> bool:
        """Whether a role spends out of this."""
        return self.role is None or self.role == role

    def exceeds(self, amount: float) -> bool:
        """Whether an amount is beyond the limit."""
        return amount > self.limit * (1 + CRUMB)

    def of(self, spent: Mapping[str, Usage]) -> float:
        """What some usage takes of this."""
        return math.fsum(
            amount_of(usage, self.unit) for role, usage in spent.items() if self.counts(role)
        )

    def learn(self, amount: float) -> None:
        """An episode is over and took so much (Welford's update)."""
        self.over += 1
        before = amount - self.mean
        self.mean += before / self.over
        self.squares += before * (amount - self.mean)
        self.dearest = max(self.dearest, amount)

    def room_for_pilots(self, most: int) -> int:
        """How many episodes of unknown length may try at once; 1 if a few requests are all."""
        needed = PILOT_REQUESTS * self.dearest_request
        left = max(0.0, self.limit - self.spent)
        return most if most * needed <= left else max(1, int(left / needed))

    def margin(self, episodes: int) -> float:
        """How much more than their mean so many further episodes may take together."""
        if self.over < 2:
            return 0.0
        deviation = math.sqrt(self.squares / (self.over - 1))
        t = t_quantile(self.over - 1, 0.10)
        spread = t * deviation * math.sqrt(episodes + episodes**2 / self.over)
        return min(spread, episodes * (self.dearest - self.mean))


def amount_of(usage: Usage, unit: Unit) -> float:
    """What some usage takes of a limit in that unit; an unknown price is told elsewhere."""
    if unit == "usd":
        return usage.cost_usd or 0.0
    return float(usage.prompt_tokens + usage.completion_tokens)
