"""One limit of a budget, what counts against it, and what further episodes may take of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentgym.client import Role
from agentgym.rollout.budget import CapStatus, Unit
from agentgym.rollout.forecast import Forecast
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
    forecast: Forecast = field(default_factory=Forecast)
    """What episodes take of it."""
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

    def room_for_pilots(self, most: int) -> int:
        """How many episodes of unknown length may try at once; 1 if a few requests are all."""
        needed = PILOT_REQUESTS * self.dearest_request
        left = max(0.0, self.limit - self.spent)
        return most if most * needed <= left else max(1, int(left / needed))


def amount_of(usage: Usage, unit: Unit) -> float:
    """What some usage takes of a limit in that unit; an unknown price is told elsewhere."""
    if unit == "usd":
        return usage.cost_usd or 0.0
    return float(usage.prompt_tokens + usage.completion_tokens)
