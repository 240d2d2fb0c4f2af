"""What episodes in flight and further ones may still take of a budget, learned from those before.

What m draws take together is, at the upper end of a prediction interval,

    m·mean + t·s·sqrt(m + m²/n),

where n are known with standard deviation s, and t is Student's quantile of n-1 degrees of freedom,
one-sided at 95 %. Where it is too much, the next one waits for others to be over, and once none is
in flight, it is enough that there is as much left as the dearest so far took.

Whoever finishes first is short, and whoever is still in flight is long. So the mean is not that of
all that are over: with hundreds in flight it would be that of the cheap ones, hundreds more would
begin, and many be cut off. It is taken over the episodes that began first, up to one that is not
over yet; and all that began after those, over or not, are expected to take the mean on average:
what the short ones among them have left over, the long ones will take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgym.statistics.distributions import t_quantile

RAMP = 4
"""So many episodes may be in flight for each that is known, as long as money is not ample: a few
that happen to be short say little of hundreds."""
AMPLE = 16
"""Money is ample where so many times what is expected would still fit."""


@dataclass
class Sample:
    """Mean and scatter of what was seen (Welford's algorithm)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations."""

    def add(self, amount: float) -> None:
        """See one more."""
        self.n += 1
        before = amount - self.mean
        self.mean += before / self.n
        self.squares += before * (amount - self.mean)

    @property
    def total(self) -> float:
        """Sum of all."""
        return self.n * self.mean


@dataclass
class Forecast:
    """What episodes take of one limit."""

    over: Sample = field(default_factory=Sample)
    """All that are over."""
    first: Sample = field(default_factory=Sample)
    """Those that began before all that are in flight."""
    dearest: float = 0.0
    _next: int = 0
    """Number of the oldest episode that isn't over."""
    _ahead: dict[int, float | None] = field(default_factory=dict)
    """What later ones took that are over before it; None for those that tell nothing."""

    def learn(self, number: int, amount: float | None) -> None:
        """An episode is over.

        Args:
            number: How many began before it.
            amount: What it took; None if it wasn't played to its end.
        """
        if amount is not None:
            self.over.add(amount)
            self.dearest = max(self.dearest, amount)
        self._ahead[number] = amount
        while self._next in self._ahead:
            done = self._ahead.pop(self._next)
            self._next += 1
            if done is not None:
                self.first.add(done)

    @property
    def mean(self) -> float:
        """What an episode takes on average."""
        return max(self.over.mean, self._sample.mean)

    @property
    def _sample(self) -> Sample:
        return self.first if self.first.n >= 2 else self.over

    @property
    def is_known(self) -> bool:
        """Whether enough is known for more than a few pilots to begin.

        That the two that began first are over; or, where one of them is slow, many others.
        """
        return self.first.n >= 2 or self.over.n >= 8

    @property
    def known(self) -> float:
        """How many episodes the mean is known from; of those that overtook others, less is."""
        return max(self.first.n, self.over.n / 4)

    def needed(self, in_flight: Sequence[float], more: int) -> float:
        """What those in flight, and so many more, take in all; some of it they have taken.

        Args:
            in_flight: What each has taken so far.
            more: How many have not begun.
        """
        expected = math.fsum(max(taken, self.mean) for taken in in_flight)
        return self._with_margin(expected, len(in_flight), more)

    def still_needed_at_most(self, in_flight: int, more: int) -> float:
        """The same beside what those in flight have taken, whatever that is."""
        return self._with_margin(in_flight * self.mean, in_flight, more)

    def _with_margin(self, expected: float, in_flight: int, more: int) -> float:
        ahead = self.over.n - self.first.n
        left_over = (ahead + in_flight) * self.mean - (self.over.total - self.first.total)
        return max(expected, left_over) + more * self.mean + self._margin(in_flight, more)

    def _margin(self, in_flight: int, more: int) -> float:
        """How much more than their mean so many episodes may take together."""
        sample, episodes = self._sample, in_flight + more
        if sample.n < 2:
            return 0.0
        deviation = math.sqrt(sample.squares / (sample.n - 1))
        t = t_quantile(sample.n - 1, 0.10)
        spread = t * deviation * math.sqrt(episodes + episodes**2 / sample.n)
        # With none in flight it is this one or the end of the run, and not whether to wait.
        return spread if in_flight else min(spread, more * max(0.0, self.dearest - self.mean))
