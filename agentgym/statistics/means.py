"""Means and shares over episodes, with intervals that know that episodes of a task are alike.

The unit that is drawn is the task. Ten episodes of one task say more than one and much less than
ten tasks, so every standard error here is clustered by task, and an interval has as many degrees of
freedom as there are tasks, less one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from agentgym.errors import ConfigError
from agentgym.statistics.distributions import Z_95, normal_quantile, t_quantile
from agentgym.statistics.exact import exact_interval
from agentgym.types import Finite, Record

MAX_UNSCORED = 0.05
"""Share of the episodes without a score up to which one figure may stand for all of them. More than
that is seldom a random part, so both denominators have to be read."""


class Estimate(Record):
    """A mean with its interval."""

    mean: Finite
    low: float
    """Lower end of the interval; minus infinity where nothing is known of the spread."""
    high: float
    """Upper end of the interval; infinity where nothing is known of the spread."""
    stderr: float
    """Standard error, clustered: values of one cluster are not independent. Infinity with fewer
    than two clusters."""
    n: int
    """Values averaged."""
    n_clusters: int
    """Independent groups they come in: tasks."""

    def above(self, other: Estimate) -> bool:
        """Whether this interval lies wholly above the other."""
        return self.low > other.high

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two intervals share a value."""
        return self.low <= other.high and other.low <= self.high


class Proportion(Record):
    """A share with its 95 % interval."""

    count: Finite
    """Successes; a part of one where a thing was tried several times."""
    n: int

    @property
    def share(self) -> float | None:
        """The share; None of nothing."""
        return self.count / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float]:
        """See `wilson_interval`."""
        return wilson_interval(self.count, self.n)


def wilson_interval(count: float, n: float, *, z: float = Z_95) -> tuple[float, float]:
    """The score interval of a binomial proportion.

    Unlike the textbook p ± z·sqrt(p(1-p)/n), it is right for rates near 0 and small n: 0 of 50 is
    not "0 ± 0" but at most 7.1 %.

    Args:
        count: Successes, 0 to n.
        n: Independent trials, or their effective number; 0 gives (0, 1): nothing is known.
        z: Normal quantile; the default gives 95 %.

    Returns:
        Lower and upper bound within [0, 1].

    Source: Wilson (1927), JASA 22, 209-212; recommended by Brown, Cai and DasGupta (2001),
    Statistical Science 16, 101-133.
    """
    if n == 0:
        return 0.0, 1.0
    p = count / n
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    middle = p + z * z / (2 * n)
    # Exact at the ends, where rounding would leave 1e-17.
    low = 0.0 if count == 0 else (middle - spread) / scale
    high = 1.0 if count == n else (middle + spread) / scale
    return low, high


def clustered_stderr(values: Sequence[float], clusters: Sequence[Hashable]) -> float | None:
    """Standard error of a mean whose values come in correlated groups.

    sqrt(Σ_c (Σ_{i∈c} (s_i - s̄))²) / n, its square times C/(C-1) for few clusters.

    Args:
        values: Shape `(n,)`.
        clusters: Shape `(n,)`, the group of each value.

    Returns:
        None with fewer than two clusters.

    Source: Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 2.2.
    """
    mean = float(np.mean(values)) if len(values) else 0.0
    sums: dict[Hashable, float] = defaultdict(float)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value - mean
    count = len(sums)
    if count < 2:
        return None
    scatter = math.sqrt(sum(s * s for s in sums.values()) * count / (count - 1))
    # Equal values differ from their mean by its last bits, and that is no scatter.
    noise = 1e-12 * math.fsum(map(abs, values))
    return scatter / len(values) if scatter > noise else 0.0


def mean_estimate(
    values: Sequence[float], clusters: Sequence[Hashable], *, level: float = 0.95
) -> Estimate:
    """A mean and its t interval with C-1 degrees of freedom.

    Args:
        values: Shape `(n,)`, at least one.
        clusters: Shape `(n,)`, the task of each value.
        level: Chance that the interval holds the mean.

    Raises:
        ConfigError: If there are no values.

    Source: Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 2.2.
    """
    if not values:
        raise ConfigError("no values to average; nothing was scored")
    mean, count = math.fsum(values) / len(values), len(set(clusters))
    stderr = clustered_stderr(values, clusters)
    if stderr is None:
        stderr = half = math.inf
    else:
        half = t_quantile(count - 1, 1 - level) * stderr
    return Estimate(
        mean=mean, low=mean - half, high=mean + half, stderr=stderr,
        n=len(values), n_clusters=count,
    )  # fmt: skip


def share_estimate(
    hits: Sequence[bool],
    clusters: Sequence[Hashable],
    *,
    level: float = 0.95,
    exact: bool = False,
) -> Estimate:
    """A share of hits and Wilson's interval; see `bounded_estimate`.

    Args:
        hits: Shape `(n,)`, at least one.
        clusters: Shape `(n,)`, the task of each.
        level: Chance that the interval holds the share.
        exact: Take the exact interval, to decide something by.

    Raises:
        ConfigError: If there are none.
    """
    values = [float(hit) for hit in hits]
    return bounded_estimate(values, clusters, most=len(hits), level=level, exact=exact)


def bounded_estimate(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    most: int,
    level: float = 0.95,
    exact: bool = False,
) -> Estimate:
    """A mean of values in [0, 1] and Wilson's interval, which stays there and open at the ends.

    Wilson's formula counts independent draws, so it gets their effective number: as many as would
    have the clustered standard error, or one per task where all values agree and that error is 0.
    A standard error from few tasks is itself uncertain, however many attempts they had: the number
    shrinks by (t_{most-1} / t_{tasks-1})², the squared ratio of Student's quantiles.

    Args:
        values: Shape `(n,)`, at least one, each from 0 to 1.
        clusters: Shape `(n,)`, the task of each value.
        most: Draws behind the values, which their effective number can't exceed.
        level: Chance that the interval holds the mean.
        exact: Take the exact interval of that number instead; see `exact_interval`.

    Raises:
        ConfigError: If there are no values.

    Source: Wilson, JASA 22 (1927); effective sample size as in Korn and Graubard, Survey
    Methodology 24 (1998).
    """
    plain = mean_estimate(values, clusters, level=level)
    share, n = plain.mean, float(plain.n_clusters)
    if plain.n_clusters > 1 and plain.stderr > 0:
        few = t_quantile(plain.n_clusters - 1, 1 - level)
        trust = (t_quantile(max(most - 1, 1), 1 - level) / few) ** 2
        n = min(share * (1 - share) / plain.stderr**2 * trust, float(most))
    low, high = (
        exact_interval(share * n, n, level=level)
        if exact
        else wilson_interval(share * n, n, z=normal_quantile(level))
    )
    return plain.model_copy(update={"low": max(0.0, low), "high": min(1.0, high)})
