"""How sure a figure of the last steps is: means, shares, changes and slopes with their intervals.

An alarm rests on the end of an interval and never on a point value. The unit is the training step:
episodes of a step share tasks and weights, so they are not independent, and the scatter between
steps holds all of that. Intervals are wide, three standard errors and not two, because a run is
looked at after every step, some twenty ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from agentgym.statistics import t_quantile, wilson_interval

Z = 3.0
"""Half width of an interval in standard errors, were there any number of steps."""
LEVEL = math.erfc(Z / math.sqrt(2))
"""Chance that an interval leaves out what it should hold: 0.27 %."""


class Interval(NamedTuple):
    """An estimate and how far off it may be."""

    mean: float
    low: float
    high: float
    n: int
    """Steps it rests on."""

    def scaled(self, factor: float) -> Interval:
        """The same in another unit; `factor` is positive."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor, self.n)

    def minus(self, other: Interval) -> Interval:
        """The difference of two independent estimates; half widths add up as squares."""
        mean = self.mean - other.mean
        down = math.hypot(self.mean - self.low, other.high - other.mean)
        up = math.hypot(self.high - self.mean, other.mean - other.low)
        return Interval(mean, mean - down, mean + up, min(self.n, other.n))


NOTHING = Interval(math.nan, -math.inf, math.inf, 0)
"""What is known without data. No comparison with its mean is true."""


def mean_of(values: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The mean and its t interval: mean ± t·s/√n.

    Args:
        values: Shape `(n,)`, one per step.
        level: Chance that the interval leaves out the mean.
    """
    n = len(values)
    if n < 2:
        return NOTHING
    mean = math.fsum(values) / n
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    half = t_quantile(n - 1, level) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, n)


def share_of(shares: Sequence[float], units: float) -> Interval:
    """A share of something over several steps.

    The t interval over the steps would be empty where all agree (0 %, 100 %) and too narrow where
    few happen to, so it is widened to Wilson's interval of that many independent units.

    Args:
        shares: Shape `(n,)`, 0 to 1, one per step.
        units: Independent things that each step's share is of; its groups, not its episodes.

    Source: Wilson, JASA 22 (1927).
    """
    steps = mean_of(shares)
    if steps.n == 0:
        return NOTHING
    total = max(1.0, units * steps.n)
    p = min(max(steps.mean, 0.0), 1.0)
    least, most = wilson_interval(p * total, total, z=Z)
    low, high = min(steps.low, least), max(steps.high, most)
    return Interval(steps.mean, max(low, 0.0), min(high, 1.0), steps.n)


def change(before: Sequence[float], after: Sequence[float], *, level: float = LEVEL) -> Interval:
    """How far the mean moved, by Welch's interval.

    Args:
        before: Shape `(m,)`.
        after: Shape `(n,)`.
        level: Chance that the interval leaves out the move.

    Source: Welch, Biometrika 34 (1947).
    """
    a, b = mean_of(before), mean_of(after)
    if not (a.n and b.n):
        return NOTHING
    parts = [(_stderr(each) ** 2, each.n) for each in (a, b)]
    variance = sum(v for v, _ in parts)
    mean = b.mean - a.mean
    if variance == 0:
        return Interval(mean, mean, mean, min(a.n, b.n))
    freedom = variance**2 / sum(v**2 / (n - 1) for v, n in parts)
    half = t_quantile(max(1, math.floor(freedom)), level) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half, min(a.n, b.n))


def rise_of(values: Sequence[float], *, level: float = LEVEL) -> Interval:
    """How far the values rose from the first to the last, by the least-squares line.

    Args:
        values: Shape `(n,)`, one per step.
        level: Chance that the interval leaves out the rise.
    """
    n = len(values)
    if n < 3:
        return NOTHING
    center = (n - 1) / 2
    mean = math.fsum(values) / n
    spread = n * (n * n - 1) / 12  # Σ (i - center)²
    slope = math.fsum((i - center) * v for i, v in enumerate(values)) / spread
    rest = math.fsum((v - mean - slope * (i - center)) ** 2 for i, v in enumerate(values))
    half = t_quantile(n - 2, level) * math.sqrt(rest / (n - 2) / spread) * (n - 1)
    rise = slope * (n - 1)
    return Interval(rise, rise - half, rise + half, n)


def _stderr(interval: Interval) -> float:
    return (interval.high - interval.mean) / t_quantile(interval.n - 1, LEVEL)
