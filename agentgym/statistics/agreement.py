"""How far two raters agree, and how far one agrees with itself.

Small samples are the rule here (a gold set has dozens of cases), so a correlation comes with an
interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agentgym.statistics.distributions import Z_95
from agentgym.types import Finite, Record


class Correlation(Record):
    """A correlation with its 95 % interval."""

    r: Finite
    low: Finite
    high: Finite
    n: int

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def cohen_kappa(judged: Sequence[float], expected: Sequence[float]) -> float | None:
    """Agreement beyond chance, with squared distances as weights.

    kappa = 1 - mean (a_i - b_i)^2 / mean_ij (a_i - b_j)^2: the disagreement there is, over the one
    that the same values would have in random pairing. For values 0 and 1 it is Cohen's unweighted
    kappa; in between, being off by a little costs little. 1 is perfect, 0 is chance.

    Args:
        judged: Shape ``(N,)``.
        expected: Shape ``(N,)``.

    Returns:
        Kappa; None if both sides are one and the same constant (or empty), where it is undefined.

    Source: Cohen (1960), Educational and Psychological Measurement 20, 37-46; with weights, Cohen
    (1968), Psychological Bulletin 70, 213-220.
    """
    a, b = np.asarray(judged, dtype=float), np.asarray(expected, dtype=float)
    if not a.size:
        return None
    by_chance = a.var() + b.var() + (a.mean() - b.mean()) ** 2
    if by_chance < 1e-12:
        return None
    return float(1 - np.mean((a - b) ** 2) / by_chance)


def correlation(x: Sequence[float], y: Sequence[float]) -> Correlation | None:
    """Pearson's correlation with its 95 % interval by Fisher's transformation.

    The interval is tanh(atanh(r) ± z / sqrt(n - 3)).

    Args:
        x: Shape ``(N,)``.
        y: Shape ``(N,)``.

    Returns:
        None with fewer than 4 pairs, or if either side is constant: there is no correlation then.

    Source: Fisher (1921), Metron 1, 3-32.
    """
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if a.size < 4 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    a, b = a - a.mean(), b - b.mean()
    r = float(a @ b / math.sqrt((a @ a) * (b @ b)))
    r = min(max(r, -1.0), 1.0)
    if abs(r) == 1.0:
        return Correlation(r=r, low=r, high=r, n=a.size)
    spread = Z_95 / math.sqrt(a.size - 3)
    low, high = (math.tanh(math.atanh(r) + sign * spread) for sign in (-1, 1))
    return Correlation(r=r, low=low, high=high, n=a.size)


def pooled_spread(groups: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation of repeated measurements of the same thing, over several things.

    sqrt(sum_g sum_i (x_gi - mean_g)^2 / sum_g (n_g - 1)): what one measurement scatters by,
    whatever the things themselves differ by.

    Args:
        groups: The repeats of each thing; groups of fewer than two say nothing and are left out.

    Returns:
        None if no group has two.

    Source: Bland and Altman (1996), BMJ 313, 744 ("within-subject standard deviation").
    """
    squares, freedom = 0.0, 0
    for group in groups:
        if len(group) > 1:
            values = np.asarray(group, dtype=float)
            squares += float(np.sum((values - values.mean()) ** 2))
            freedom += len(group) - 1
    return math.sqrt(squares / freedom) if freedom else None
