"""How many tasks it takes to see a difference, before anybody pays for playing them.

What scatters in a paired comparison has two parts. Tasks move by different amounts from one system
to the other (`between`), which only more tasks average out; and attempts at one task come out
differently (`within`), which more attempts per task average out as well.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from pydantic import Field

from agentgym.errors import ConfigError
from agentgym.statistics.distributions import t_quantile
from agentgym.statistics.paired import task_differences
from agentgym.types import Finite, Record

K = TypeVar("K", bound=Hashable)
MOST_TASKS = 10_000_000
_NO_VARIANCE = 1e-12


class Spread(Record):
    """The variance of a per-task difference between two systems, in its parts."""

    between: Finite = Field(ge=0)
    """Variance over tasks of the true difference, ω²."""
    within: Finite | None = Field(default=None, ge=0)
    """Variance of one attempt around its task's mean, added over both systems, σ_A² + σ_B². None
    where tasks were attempted once: it is then a part of `between`, nobody knows how large."""

    def of_difference(self, samples: int) -> float:
        """Variance of the difference at one task, with that many attempts per system.

        Raises:
            ConfigError: If the parts are not known and `samples` is not 1, or there is no variance
                at all: what was seen says nothing then of what wasn't.
        """
        if samples < 1:
            raise ConfigError(f"samples per task must be at least 1, got {samples}")
        if self.within is None and samples != 1:
            raise ConfigError(
                "from one attempt per task nobody can say what more attempts would help; play "
                "two or more, or ask for 1"
            )
        variance = self.between + (self.within or 0.0) / samples
        if variance < _NO_VARIANCE:
            raise ConfigError(
                "the difference is the same in every task, which says nothing of other tasks; "
                "play more tasks, or plan from a success rate between 0 and 1"
            )
        return variance


def spread_of(a: Mapping[K, Sequence[float]], b: Mapping[K, Sequence[float]]) -> Spread:
    """The parts of the variance, from attempts of both systems at the same tasks.

    ω² = Var_t(b̄_t - ā_t) - mean_t(σ_A² / n_A,t + σ_B² / n_B,t), never below 0, with σ² the mean
    variance within the tasks that a system attempted more than once. Where one of them did so with
    none, the variance is that of the first attempts.

    Args:
        a: Task to its values, one per scored attempt.
        b: The same for the other system.

    Raises:
        ConfigError: If fewer than two tasks have values on both sides.

    Source: Miller, Adding Error Bars to Evals, arXiv:2411.00640, sections 3.1 and 5.
    """
    moves = task_differences(a, b)
    if len(moves) < 2:
        raise ConfigError("one task has no variance over tasks; compare at least two")
    common = [task for task, values in a.items() if len(values) and len(b.get(task, ()))]
    within = [
        [float(np.var(side[t], ddof=1)) for t in common if len(side[t]) > 1] for side in (a, b)
    ]
    if not all(within):
        firsts = [float(b[t][0]) - float(a[t][0]) for t in common]
        return Spread(between=float(np.var(firsts, ddof=1)))
    of_a, of_b = (float(np.mean(each)) for each in within)
    noise = float(np.mean([of_a / len(a[t]) + of_b / len(b[t]) for t in common]))
    total = float(np.var(moves, ddof=1))
    return Spread(between=max(0.0, total - noise), within=of_a + of_b)


def variance_between(values: Mapping[K, Sequence[float]]) -> float | None:
    """Variance over tasks of their true means, without what the attempts scatter by.

    τ² = Var_t(x̄_t) - mean_t(s²_t / n_t), never below 0.

    Args:
        values: Task to its values, one per scored attempt.

    Returns:
        None with fewer than two tasks that were attempted more than once: what varies between tasks
        and what varies within them can't be told apart then.

    Source: the method of moments for a random effect; Searle, Casella and McCulloch, Variance
    Components (1992), section 3.6.
    """
    repeated = [np.asarray(each, dtype=float) for each in values.values() if len(each) > 1]
    if len(repeated) < 2:
        return None
    noise = float(np.mean([each.var(ddof=1) / each.size for each in repeated]))
    return max(0.0, float(np.var([each.mean() for each in repeated], ddof=1)) - noise)


def spread_of_success(
    success: float, *, between: float, correlation: float, difference: float = 0.0
) -> Spread:
    """The parts of the variance for two systems of about the same success rate.

    An attempt at a task that is solved with chance q has variance q(1-q), and the mean of that over
    tasks is p(1-p) - τ² with τ² = Var_t(q). The true difference varies by τ²·2(1-ρ), where ρ is
    how far the two systems agree on which tasks are hard.

    Args:
        success: Mean success rate p of the first system, 0 to 1.
        between: Variance of the tasks' own success rates τ², 0 to p(1-p).
        correlation: Of the two systems' success rates over tasks, ρ; 1 if the same tasks are hard.
        difference: How far the second system is above the first.

    Raises:
        ConfigError: If a value is out of range.

    Source: the same; law of total variance.
    """
    other = success + difference
    if not (0 <= success <= 1 and 0 <= other <= 1):
        raise ConfigError(
            f"success must be from 0 to 1, got {success:g} and, with the difference, {other:g}"
        )
    if not -1 <= correlation <= 1:
        raise ConfigError(f"the correlation must be from -1 to 1, got {correlation:g}")
    most = success * (1 - success)
    if not 0 <= between <= most + 1e-12:
        raise ConfigError(
            f"the variance between tasks must be from 0 to p(1-p) = {most:g}, got {between:g}"
        )
    # The second system's tasks vary by the same share of what its rate allows.
    share = between / most if most else 0.0
    other_between = share * other * (1 - other)
    apart = between + other_between - 2 * correlation * math.sqrt(between * other_between)
    within = most - between + other * (1 - other) - other_between
    return Spread(between=max(0.0, apart), within=max(0.0, within))


def fewest_tasks(level: float = 0.95) -> int:
    """Tasks with which a difference can be shown at all, were it the largest in every one of them.

    With m tasks that differ, no p-value over all ways to flip their signs is below 2 / 2^m.

    Args:
        level: The p-value has to be below 1 less this.

    Raises:
        ConfigError: If the level is out of range.
    """
    if not 0 < level < 1:
        raise ConfigError(f"the level must be between 0 and 1, got {level:g}")
    return max(2, math.floor(1 - math.log2(1 - level)) + 1)


def tasks_needed(
    difference: float,
    *,
    spread: Spread,
    samples: int = 1,
    power: float = 0.8,
    level: float = 0.95,
) -> int:
    """Tasks with which a true difference of that size is seen with the given chance.

    The least T with T ≥ (t_{T-1, 1-α/2} + t_{T-1, power})² · Var / difference², the normal formula
    with Student's quantiles, which matter where few tasks do; and never fewer than `fewest_tasks`.
    It knows the t interval only: where few tasks differ, `fewest_that_show` asks for more.

    Args:
        difference: True difference of the means; its sign doesn't matter.
        spread: Variance of the difference at one task.
        samples: Attempts per task and system.
        power: Chance to see it, 0.5 to 1.
        level: Level of the interval that has to leave out 0.

    Raises:
        ConfigError: If the difference is 0, a chance is out of range, or no number is enough.

    Source: Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 5.
    """
    if difference == 0:
        raise ConfigError("a difference of 0 can't be seen with any number of tasks")
    variance = spread.of_difference(samples)

    def enough(tasks: int) -> bool:
        reach = _quantiles(tasks, power, level) ** 2 * variance
        return reach <= tasks * difference**2

    low = fewest_tasks(level) - 1
    high = low + 1
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST_TASKS:
            raise ConfigError(f"a difference of {difference:g} needs over {MOST_TASKS:,} tasks")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def detectable_difference(
    n_tasks: int,
    *,
    spread: Spread,
    samples: int = 1,
    power: float = 0.8,
    level: float = 0.95,
) -> float:
    """The smallest true difference that so many tasks show with the given chance.

    It may be larger than any that there can be: the formula knows no bounds of the values. Of few
    tasks it is too small; `chance_shown` plays those out.

    Args:
        n_tasks: Tasks, at least `fewest_tasks`.
        spread: Variance of the difference at one task.
        samples: Attempts per task and system.
        power: Chance to see it, 0.5 to 1.
        level: Level of the interval that has to leave out 0.

    Raises:
        ConfigError: If there are too few tasks to show anything or a chance is out of range.
    """
    if n_tasks < fewest_tasks(level):
        raise ConfigError(
            f"a comparison needs at least {fewest_tasks(level)} tasks to show any difference, got "
            f"{n_tasks}"
        )
    variance = spread.of_difference(samples)
    return _quantiles(n_tasks, power, level) * math.sqrt(variance / n_tasks)


def _quantiles(tasks: int, power: float, level: float) -> float:
    if not 0.5 <= power < 1:
        raise ConfigError(f"power must be from 0.5 to below 1, got {power:g}")
    if not 0 < level < 1:
        raise ConfigError(f"the level must be between 0 and 1, got {level:g}")
    return t_quantile(tasks - 1, 1 - level) + t_quantile(tasks - 1, 2 * (1 - power))
