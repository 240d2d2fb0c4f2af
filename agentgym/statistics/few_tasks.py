"""The chance that a comparison of few tasks shows a difference, played out.

A comparison calls a difference shown where the t interval leaves out 0 and, where at most
`MOST_FLIPPED` tasks differ, the exact p-value agrees. No formula has both. A task's difference is a
number of k-ths, with k attempts per system, so its distribution is a short list of chances; from it
some thousand comparisons are drawn and put to that very rule. The draws are the same in every call:
the answer is reproducible, and within about a percentage point.

What the distribution looks like is not settled by its variance once there are several attempts:
where tasks are easy or hopeless for both systems, most differ by nothing. So success rates of the
tasks follow Beta distributions here, with the variance that was measured or given.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentgym.errors import ConfigError
from agentgym.statistics.distributions import normal_quantile, t_quantile
from agentgym.statistics.means import wilson_interval
from agentgym.statistics.paired import MOST_FLIPPED
from agentgym.statistics.power import fewest_tasks

FloatArray: TypeAlias = NDArray[np.float64]

FEW_TASKS = 60
"""Tasks up to which the chance is played out. Of more, the formula says the same."""
_COMPARISONS = 4_000
_TASKS_DRAWN = 10_000
_FINEST = 16  # attempts per system: means of more are drawn as means of 16 of that variance
_TEETH = 6
"""Tasks after the first that are enough in which the chance may fall again: it has teeth, since
counts are whole numbers."""


class Moves(NamedTuple):
    """How a task's difference is distributed, as whole numbers of 1/`attempts`."""

    attempts: int
    """Attempts per system, k."""
    chances: FloatArray
    """Shape `(2k + 1,)`: of a difference of -k/k, …, 0, …, k/k."""

    @property
    def mean(self) -> float:
        """The true difference."""
        k = self.attempts
        return float(self.chances @ np.arange(-k, k + 1)) / k


def moves_of_single(difference: float, variance: float) -> Moves:
    """Of single attempts, which differ by -1, 0 or 1: mean and variance settle the three chances.

    Args:
        difference: Mean, -1 to 1.
        variance: Taken as near as there can be one: P(1) + P(-1) is variance + difference².
    """
    differ = min(1.0, max(abs(difference), variance + difference**2))
    up, down = (differ + difference) / 2, (differ - difference) / 2
    return Moves(1, np.array([down, 1 - differ, up]))


def moves_of_rates(
    first: float, second: float, *, share: tuple[float, float], correlation: float, attempts: int
) -> Moves:
    """Of several attempts at tasks whose success rates follow Beta distributions.

    Args:
        first: Mean success rate of the first system, 0 to 1.
        second: Of the second.
        share: For each, the variance of the tasks' rates as a share of the most there can be,
            p(1-p): 0 if all tasks are as hard, 1 if each is always or never solved.
        correlation: 1 if the same tasks are hard for both, 0 if their difficulties are unrelated;
            in between, that share of the tasks is of the first kind. Below 0 counts as 0.
        attempts: Per task and system, k.
    """
    k = min(attempts, _FINEST)
    if attempts > k:  # the same variance of a system's mean, from fewer attempts
        shrink = (1 + (attempts - 1) * np.array(share)) / attempts
        share = tuple(np.clip((k * shrink - 1) / (k - 1), 0.0, 1.0))
    hits = [_hits(p, rho, k) for p, rho in zip((first, second), share, strict=True)]
    alike = hits[0].T @ hits[1] / _TASKS_DRAWN
    apart = np.outer(hits[0].mean(axis=0), hits[1].mean(axis=0))
    weight = min(1.0, max(0.0, correlation))
    both = weight * alike + (1 - weight) * apart
    chances = np.array([np.trace(both, offset=j) for j in range(-k, k + 1)])
    return Moves(k, chances / chances.sum())


def most_covariance(first: float, second: float, *, share: tuple[float, float]) -> float:
    """Covariance of two systems' success rates over tasks, if the same tasks are hard for both.

    It is what a correlation of 1 has in `moves_of_rates`, and less than the product of the standard
    deviations where the two distributions have another form.
    """
    a, b = (_rates(p, of) for p, of in zip((first, second), share, strict=True))
    return float(np.mean((a - a.mean()) * (b - b.mean())))


def _hits(mean: float, share: float, k: int) -> FloatArray:
    """Chances of 0 to k hits by task, the hardest task first; shape `(_TASKS_DRAWN, k + 1)`."""
    rates, counts = _rates(mean, share), np.arange(k + 1)
    ways = np.array([math.comb(k, int(j)) for j in counts])
    chances: FloatArray = ways * rates[:, None] ** counts * (1 - rates[:, None]) ** (k - counts)
    return chances


def _rates(mean: float, share: float) -> FloatArray:
    """Success rates of tasks, the hardest first; shape `(_TASKS_DRAWN,)`."""
    place = (np.arange(_TASKS_DRAWN) + 0.5) / _TASKS_DRAWN
    if share < 1e-9 or mean in (0.0, 1.0):
        return np.full(_TASKS_DRAWN, mean)
    if share > 1 - 1e-3:  # a Beta of next to no parameters is all at its ends
        return (place > 1 - mean).astype(float)
    size = 1 / share - 1
    drawn = np.random.default_rng(0).beta(mean * size, (1 - mean) * size, size=_TASKS_DRAWN)
    return np.sort(drawn)


def chance_shown(moves: Moves, n_tasks: int, *, level: float = 0.95) -> float:
    """The chance that so many tasks show the difference, in its own direction.

    Args:
        moves: How a task's difference is distributed.
        n_tasks: 2 to `FEW_TASKS`.
        level: Of the interval that has to leave out 0.

    Raises:
        ConfigError: If there are more tasks than are played out.
    """
    if not 2 <= n_tasks <= FEW_TASKS:
        raise ConfigError(f"the chance is played out of 2 to {FEW_TASKS} tasks, got {n_tasks}")
    k, forward = moves.attempts, 1 if moves.mean >= 0 else -1
    places = np.searchsorted(np.cumsum(moves.chances), _uniform()[:, :n_tasks])
    drawn = forward * (np.minimum(places, 2 * k) - k)
    sums = drawn.sum(axis=1)
    mean = sums / (k * n_tasks)
    stderr = drawn.std(axis=1, ddof=1) / (k * math.sqrt(n_tasks))
    # As `paired_difference` has it: where all differ alike, their scatter says nothing.
    doubt = wilson_interval(0, n_tasks, z=normal_quantile(level))[1]
    reach = t_quantile(n_tasks - 1, 1 - level) * stderr
    shown = (sums > 0) & (mean > np.where(stderr < 1e-12, doubt * (1 + mean), reach))
    tested = np.flatnonzero(shown & (np.count_nonzero(drawn, axis=1) <= MOST_FLIPPED))
    if tested.size:
        shown[tested] = _exact_p(drawn[tested], sums[tested], k) < 1 - level
    return float(shown.mean())


def fewest_that_show(moves: Moves, *, power: float, level: float = 0.95) -> int | None:
    """The number of tasks from which on the difference is seen with the given chance.

    Returns:
        None where that takes more than `FEW_TASKS`.
    """
    low, high = fewest_tasks(level) - 1, FEW_TASKS
    if chance_shown(moves, high, level=level) < power:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = chance_shown(moves, middle, level=level) >= power
        low, high = (low, middle) if enough else (middle, high)
    for more in range(min(high + _TEETH, FEW_TASKS), high, -1):
        if chance_shown(moves, more, level=level) < power:
            return more + 1 if more < FEW_TASKS else None
    return high


def _exact_p(drawn: NDArray[np.int64], sums: NDArray[np.int64], k: int) -> FloatArray:
    """`sign_flip_p_value` of each row, whose sums are above 0.

    The sum over all flips has the characteristic function Π cos(|x|·θ). Its values are whole
    numbers of at most `MOST_FLIPPED`·k, so one period of as many angles has all its chances.
    """
    most = MOST_FLIPPED * k
    angles = 2 * np.pi / (2 * most + 1) * np.arange(most + 1)  # the others are their mirror images
    waves = np.full((len(drawn), most + 1), 2.0)
    waves[:, 0] = 1.0
    sizes = np.abs(drawn)
    for size in range(1, k + 1):
        powers = np.cos(size * angles) ** np.arange(MOST_FLIPPED + 1)[:, None]
        waves *= powers[np.count_nonzero(sizes == size, axis=1)]
    by_sum = np.cos(np.arange(most + 1)[:, None] * angles)
    beyond = by_sum[::-1].cumsum(axis=0)[::-1]  # summed over all that are as far from 0
    found: FloatArray = 2 / (2 * most + 1) * np.einsum("ij,ij->i", waves, beyond[sums])
    return found


@lru_cache(maxsize=1)
def _uniform() -> FloatArray:
    return np.random.default_rng(0).random((_COMPARISONS, FEW_TASKS))
