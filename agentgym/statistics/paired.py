"""Two systems on the same tasks: the difference, and whether it is more than chance.

Tasks differ far more from each other than systems do, so two means with intervals that overlap may
well differ. Taking the difference task by task removes what the tasks' own difficulty adds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from agentgym.errors import ConfigError
from agentgym.statistics.distributions import normal_quantile, t_p_value
from agentgym.statistics.means import mean_estimate, wilson_interval
from agentgym.types import Finite, Record

K = TypeVar("K", bound=Hashable)
MOST_FLIPPED = 20
"""Tasks that differ up to which every combination of signs is tried: a million of them."""


class Difference(Record):
    """How far the second system is above the first, on the tasks that both have."""

    mean: Finite
    """Mean over the tasks of second minus first; every task counts the same."""
    low: float
    """Lower end of the interval; minus infinity with a single task."""
    high: float
    """Upper end of the interval; infinity with a single task."""
    stderr: float
    """Standard error; infinity with a single task."""
    p_value: float | None
    """Two-sided, of the t test; None with a single task or where all differences are equal."""
    p_exact: float | None
    """Two-sided, over all ways to flip the differences' signs; None where more than `MOST_FLIPPED`
    tasks differ, and the t test is good enough."""
    level: float
    """Chance that the interval holds the difference."""
    n_tasks: int
    """Tasks compared."""
    n_better: int
    """Tasks in which the second is above the first."""
    n_worse: int

    @property
    def p(self) -> float | None:
        """The exact p-value where there is one, else that of the t test."""
        return self.p_exact if self.p_exact is not None else self.p_value

    @property
    def shown(self) -> bool:
        """Whether both the interval leaves out 0 and the p-value is below what goes with it.

        Where few tasks differ, the t interval promises too much, and the exact p-value decides.
        """
        rare = self.p is None or self.p < 1 - self.level
        return rare and self.leaves_out_zero

    @property
    def leaves_out_zero(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired_difference(
    a: Mapping[K, Sequence[float]],
    b: Mapping[K, Sequence[float]],
    *,
    level: float = 0.95,
    largest: float | None = 1.0,
) -> Difference:
    """How far `b` is above `a`, by the differences of their means per task.

    d = mean_t (b̄_t - ā_t), with the t interval of those differences and T-1 degrees of freedom.
    Where all differences are equal their scatter says nothing; the interval is then what is left
    possible for tasks not seen: as many as 0 hits in T allow may be as far off as there can be, the
    largest difference up or down. No interval reaches beyond that.

    Args:
        a: Task to its values, one per scored attempt; tasks without any are no tasks.
        b: The same for the other system.
        level: Chance that the interval holds the difference.
        largest: The largest difference that values can have; 1 for values from 0 to 1, None where
            there is no largest.

    Raises:
        ConfigError: If no task has values on both sides.

    Source: Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 4.2.
    """
    moves = task_differences(a, b)
    found = mean_estimate(moves, range(len(moves)), level=level)
    low, high = found.low, found.high
    p_value = None
    if len(moves) > 1 and found.stderr < 1e-12:
        doubt = wilson_interval(0, len(moves), z=normal_quantile(level))[1]
        most = math.inf if largest is None else largest
        low = found.mean - doubt * (most + found.mean)
        high = found.mean + doubt * (most - found.mean)
    elif len(moves) > 1:
        p_value = t_p_value(abs(found.mean) / found.stderr, len(moves) - 1)
    if largest is not None and len(moves) > 1:
        low, high = max(low, -largest), min(high, largest)
    return Difference(
        mean=found.mean,
        low=low,
        high=high,
        level=level,
        stderr=found.stderr,
        p_value=p_value,
        p_exact=sign_flip_p_value(moves),
        n_tasks=len(moves),
        n_better=sum(move > 0 for move in moves),
        n_worse=sum(move < 0 for move in moves),
    )


def task_differences(a: Mapping[K, Sequence[float]], b: Mapping[K, Sequence[float]]) -> list[float]:
    """Mean of `b` minus mean of `a` for each task that has values on both sides.

    Raises:
        ConfigError: If there is none.
    """
    common = [task for task, values in a.items() if len(values) and len(b.get(task, ()))]
    if not common:
        raise ConfigError("no task was scored on both sides; there is nothing to compare")
    return [_mean(b[task]) - _mean(a[task]) for task in common]


def sign_flip_p_value(differences: Sequence[float]) -> float | None:
    """Chance of a mean so far from 0 if each difference could as well have had the other sign.

    Exact, with no assumption about their distribution but that: all 2^m sign combinations of the m
    differences other than 0 are counted. With m tasks it can't be below 2 / 2^m.

    Args:
        differences: Shape `(T,)`.

    Returns:
        None where more than `MOST_FLIPPED` are not 0.

    Source: Fisher, The Design of Experiments (1935), section 21.
    """
    nonzero = [move for move in differences if move != 0]
    if len(nonzero) > MOST_FLIPPED:
        return None
    sums = np.zeros(1)
    for move in nonzero:
        sums = np.concatenate([sums + move, sums - move])
    # Sums of the same numbers in another order differ in their last bits.
    slack = 1e-9 * math.fsum(map(abs, nonzero))
    return float(np.mean(np.abs(sums) >= abs(math.fsum(nonzero)) - slack))


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """p-values that hold for all of several comparisons together.

    The smallest is multiplied by the number of comparisons, the next by one less, and so on, none
    below the one before it. An adjusted value under 5 % is shown whatever else was looked at.

    Args:
        p_values: Shape `(m,)`.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979), 65-70.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
