"""Quantiles and tails of the normal and of Student's distribution, in plain Python."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal distribution."""
_MANY = 1000
"""Degrees of freedom above which a quantile is expanded around the normal one: off by 1e-8 at most,
where the sum would take as many steps as there are episodes."""


def normal_quantile(level: float) -> float:
    """Half width of a central interval in standard errors, for a normal distribution.

    Args:
        level: Chance that the interval holds the value, 0 to 1; 0.95 gives `Z_95`.
    """
    return Z_95 if level == 0.95 else NormalDist().inv_cdf((1 + level) / 2)


@functools.cache
def t_quantile(freedom: int, beyond: float) -> float:
    """The two-sided quantile of Student's t: |T| exceeds it with chance `beyond`.

    Args:
        freedom: Degrees of freedom, 1 or more.
        beyond: 0 to 1; 0.05 for a 95 % interval.

    Source: of many degrees of freedom, Abramowitz and Stegun, 26.7.5.
    """
    if freedom > _MANY:
        z = -NormalDist().inv_cdf(beyond / 2)
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        return z + first / freedom + second / freedom**2
    low, high = 0.0, 1.0
    while t_p_value(high, freedom) > beyond:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_p_value(middle, freedom) > beyond else (low, middle)
    return high


def t_p_value(t: float, freedom: int) -> float:
    """P(|T| > t) for a whole number of degrees of freedom.

    Args:
        t: 0 or more.
        freedom: Degrees of freedom, 1 or more.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    theta = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(theta), math.sin(theta)
    term, total = (cosine if freedom % 2 else 1.0), 0.0
    for k in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    within = sine * total
    if freedom % 2:
        within = 2 / math.pi * (theta + within)
    return max(0.0, 1 - within)
