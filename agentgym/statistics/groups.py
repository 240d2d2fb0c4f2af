"""How many groups of rollouts have something to learn from, given how often each task is solved.

A group whose rollouts all succeed or all fail has no gradient. A task that is solved with chance p
leaves 1 - p^G - (1-p)^G of its groups informative. That must be averaged over the tasks and not
taken at the mean: with a mean success of 50 %, 99 % of groups of 8 are informative if every task is
at 50 %, and none if half of the tasks are always solved and half never.

A task's own p is known from a few episodes only. To plug in 0 of 2 as p = 0 calls a task hopeless
that may be solved a third of the time, so p is taken as drawn from a Beta distribution, whose mean
and concentration are averaged over by how well they explain the counts. Where tasks were played
once, nothing tells the two cases above apart, and the interval is as wide as that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from agentgym.errors import ConfigError
from agentgym.statistics.means import Estimate, mean_estimate, wilson_interval
from agentgym.types import Finite, Record

FloatArray = npt.NDArray[np.float64]

_MEANS = 160
"""Points of the grid over the mean: equal steps of arcsin √m, so that both ends are fine."""
_CONCENTRATIONS = 48
_FEWEST, _MOST = 0.05, 500.0
"""Ends of the grid over a + b: from "always or never" to "all tasks alike"."""
_MANY = 200
"""Factors above which log Γ is quicker than their product; its own rounding is below 1e-9."""


class GroupForecast(Record):
    """The share of informative groups that counts of solved episodes let expect."""

    group_size: int
    """G, episodes per group."""
    share: Finite
    """Posterior mean, for tasks like those that were played."""
    low: Finite
    high: Finite
    """Ends of the central credible interval."""
    at_mean: Finite
    """1 - p^G - (1-p)^G at the mean of what was seen, as if all tasks were alike and p known; with
    tasks that differ it is less, by Jensen's inequality."""
    n_tasks: int
    n_episodes: int
    repeated: int
    """Tasks with two episodes or more; only these show how tasks differ."""
    by_count: tuple[CountForecast, ...]
    """Tasks by how often they were solved."""


class CountForecast(Record):
    """What is expected of the tasks with one count of solved episodes."""

    n: int
    """Episodes of each."""
    solved: int
    tasks: int
    share: Finite
    """Informative groups expected of such a task."""


def informative_share(p: float, group_size: float) -> float:
    """Share of a task's groups that are informative: 1 - p^G - (1-p)^G.

    Args:
        p: Its success rate, 0 to 1.
        group_size: G, rollouts per group.
    """
    return float(1 - p**group_size - (1 - p) ** group_size)


def all_equal(a: float, b: float, size: int) -> float:
    """Chance that a group succeeds or fails as one, its task's rate being Beta(a, b).

    [B(a+G, b) + B(a, b+G)] / B(a, b), the beta-binomial's two ends.
    """
    whole = _log_beta(a, b)
    return math.exp(_log_beta(a + size, b) - whole) + math.exp(_log_beta(a, b + size) - whole)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def forecast_groups(
    counts: Sequence[tuple[int, int]], group_size: int, *, level: float = 0.95
) -> GroupForecast:
    """Forecast the share of informative groups among tasks like those that were played.

    The prior is uniform in the mean and in the logarithm of the concentration; the posterior is
    summed on a grid, so the same counts give the same figures.

    Args:
        counts: Episodes and solved episodes of each task, `(n, c)`.
        group_size: G, 2 or more.
        level: Chance that the interval holds the share.

    Raises:
        ConfigError: If there are no counts, or one can't be.

    Source: the beta-binomial hierarchy of Gelman et al., Bayesian Data Analysis, section 5.3.
    """
    played = Counter((n, c) for n, c in counts if n)
    if group_size < 2 or any(not 0 <= c <= n for n, c in counts):
        raise ConfigError(
            f"a group has 2 episodes or more and a task 0 <= solved <= n, got {group_size} and "
            f"{list(counts)!r:.80}"
        )
    if not played:
        raise ConfigError("no episodes whose success is known; play some first")
    a, b, prior = _grid()
    log_weight = np.log(prior)
    for (n, c), tasks in played.items():
        log_weight += tasks * (_log_rising(a, c) + _log_rising(b, n - c) - _log_rising(a + b, n))
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    shares = 1 - _all_equal_on(a, b, group_size)
    low, high = _weighted_quantiles(shares, weight, [(1 - level) / 2, (1 + level) / 2])
    episodes = sum(n * tasks for (n, _), tasks in played.items())
    solved = sum(c * tasks for (_, c), tasks in played.items())
    return GroupForecast(
        group_size=group_size,
        share=float(shares @ weight),
        low=low,
        high=high,
        at_mean=informative_share(solved / episodes, group_size),
        n_tasks=played.total(),
        n_episodes=episodes,
        repeated=sum(tasks for (n, _), tasks in played.items() if n > 1),
        by_count=tuple(
            CountForecast(
                n=n,
                solved=c,
                tasks=tasks,
                share=float((1 - _all_equal_on(a + c, b + n - c, group_size)) @ weight),
            )
            for (n, c), tasks in sorted(played.items(), key=lambda item: (item[0][1], item[0][0]))
        ),
    )


def informative_groups_seen(
    values: Iterable[Sequence[Hashable]], group_size: int
) -> Estimate | None:
    """Share of the groups that could be drawn from each task's episodes and are not all equal.

    1 - Σ_v C(c_v, G) / C(n, G), the mean over all subsets of G of a task's n episodes: unbiased,
    without any assumption about the tasks, and there only where G episodes were played. The t
    interval would be empty where all tasks agree, so it is widened to Wilson's of as many tasks.

    Args:
        values: What is compared within a group (the reward, or whether it was solved), per task.
        group_size: G, 2 or more.

    Returns:
        None if no task has that many episodes.
    """
    shares = [
        1 - sum(math.comb(c, group_size) for c in Counter(each).values()) / subsets
        for each in values
        if (subsets := math.comb(len(each), group_size))
    ]
    if not shares:
        return None
    found = mean_estimate(shares, range(len(shares)))
    low, high = wilson_interval(found.mean * found.n, found.n)
    widened = {"low": max(0.0, min(found.low, low)), "high": min(1.0, max(found.high, high))}
    return found.model_copy(update=widened)


# --- the grid -------------------------------------------------------------------------------------


def _grid() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Beta parameters and prior weights, each of shape `(means * concentrations,)`."""
    angle = (np.arange(_MEANS) + 0.5) / _MEANS * math.pi / 2
    mean, spacing = np.sin(angle) ** 2, np.sin(2 * angle)
    concentration = np.geomspace(_FEWEST, _MOST, _CONCENTRATIONS)
    a = np.outer(mean, concentration).ravel()
    b = np.outer(1 - mean, concentration).ravel()
    return a, b, np.repeat(spacing, _CONCENTRATIONS)


def _log_rising(x: FloatArray, count: int) -> FloatArray:
    """log x(x+1)…(x+count-1), which is log Γ(x+count)/Γ(x)."""
    if count > _MANY:
        return np.array([math.lgamma(each + count) - math.lgamma(each) for each in x])
    total = np.zeros_like(x)
    for i in range(count):
        total += np.log(x + i)
    return total


def _all_equal_on(a: FloatArray, b: FloatArray, size: int) -> FloatArray:
    """`all_equal` at each point."""
    whole = _log_rising(a + b, size)
    equal = np.exp(_log_rising(a, size) - whole) + np.exp(_log_rising(b, size) - whole)
    return np.asarray(equal)


def _weighted_quantiles(
    values: FloatArray, weight: FloatArray, at: Sequence[float]
) -> tuple[float, ...]:
    order = np.argsort(values)
    reached = np.cumsum(weight[order])
    found = np.minimum(np.searchsorted(reached, at), len(values) - 1)
    return tuple(float(v) for v in values[order][found])
