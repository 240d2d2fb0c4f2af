"""The exact interval of a binomial proportion, for decisions by very few draws.

Wilson's interval is the better figure to read, and too narrow to decide by where there are only a
few draws: one hit of one gives it 21 % to 100 %, which would pass a limit of 10 % one time in ten.
The exact one passes a limit by mistake no more often than it says, whatever the number of draws.
"""

from __future__ import annotations

import math

_ENOUGH = 1e-12


def exact_interval(count: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Clopper's and Pearson's interval.

    Args:
        count: Successes, 0 to n; not whole where n is an effective number.
        n: Independent trials, or their effective number; 0 gives (0, 1): nothing is known.
        level: Chance, at the least, that the interval holds the proportion.

    Returns:
        Lower and upper bound within [0, 1].

    Source: Clopper and Pearson (1934), Biometrika 26, 404-413, as quantiles of the beta
    distribution; Korn and Graubard, Survey Methodology 24 (1998), for effective numbers.
    """
    count, tail = min(max(count, 0.0), n), (1 - level) / 2
    low = 0.0 if count == 0 else _beta_quantile(tail, count, n - count + 1)
    high = 1.0 if count == n else _beta_quantile(1 - tail, count + 1, n - count)
    return low, high


def exact_side(count: float, n: float, limit: float, *, level: float = 0.95) -> int:
    """Where the exact interval lies: 1 at or above a limit, -1 below it, 0 where it holds it.

    The same as to ask `exact_interval`, without searching for its ends.
    """
    tail = (1 - level) / 2
    if count > 0 and beta_cdf(limit, count, n - count + 1) <= tail:
        return 1
    return -1 if count < n and beta_cdf(limit, count + 1, n - count) >= 1 - tail else 0


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.8.
    """
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other side converges
        return 1 - beta_cdf(1 - x, b, a)
    front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))  # Lentz's method
    fraction = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + step * d), 1 + step / c
            fraction *= c * d
        if abs(c * d - 1) < _ENOUGH:
            break
    return math.exp(front) * fraction


def _beta_quantile(share: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beta_cdf(middle, a, b) < share else (low, middle)
    return (low + high) / 2
