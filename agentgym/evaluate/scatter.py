"""What the difference of two systems scatters by, and how many tasks show it then.

Of up to `FEW_TASKS` tasks the chance is played out, since the exact test has a say there; of more,
the formula of the t test has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from agentgym.statistics import (
    FEW_TASKS,
    Moves,
    Spread,
    chance_shown,
    detectable_difference,
    fewest_that_show,
    most_covariance,
    moves_of_rates,
    moves_of_single,
    spread_of,
    spread_of_success,
    tasks_needed,
    variance_between,
)
from agentgym.types import Record

ByTask: TypeAlias = Mapping[str, Sequence[float]]
"""Task to whether its scored attempts were right, 1 or 0."""


class Question(Record):
    """What is asked: either differences or numbers of tasks."""

    differences: tuple[float, ...] = ()
    """True differences of the success rates: how many tasks show them?"""
    tasks: tuple[int, ...] = ()
    """Numbers of tasks: which difference do they show?"""
    samples: tuple[int, ...] = (1,)
    """Attempts per task and system."""
    power: float = 0.8
    """Chance to see the difference."""
    level: float = 0.95
    """Of the interval that has to leave out 0."""


_HALVINGS = 10
"""Of the room for a difference, where each takes thousands of comparisons: to 0.1 points."""


class Scatter(NamedTuple):
    """What the difference of two systems scatters by, given how large it is."""

    assumption: str
    spread: Callable[[float], Spread]
    moves: Callable[[float, int], Moves]
    """How a task's difference is distributed, given the difference and the attempts per system."""
    room: float
    """The largest difference there can be."""

    def tasks_needed(self, difference: float, samples: int, question: Question) -> int:
        """Tasks that show a difference with the chance that is asked for."""
        chance = {"power": question.power, "level": question.level}
        by_formula = tasks_needed(
            difference, spread=self.spread(difference), samples=samples, **chance
        )
        if by_formula > FEW_TASKS:
            return by_formula
        played = fewest_that_show(self.moves(difference, samples), **chance)
        return FEW_TASKS + 1 if played is None else played

    def is_shown(self, difference: float, n_tasks: int, samples: int, question: Question) -> bool:
        """Whether so many tasks show a difference with the chance that is asked for."""
        by_formula = detectable_difference(
            n_tasks,
            spread=self.spread(difference),
            samples=samples,
            power=question.power,
            level=question.level,
        )
        if n_tasks > FEW_TASKS:
            return difference >= by_formula
        moves = self.moves(difference, samples)
        return chance_shown(moves, n_tasks, level=question.level) >= question.power

    def least_shown(self, n_tasks: int, samples: int, question: Question) -> float | None:
        """The least difference that so many tasks show; None where even the largest isn't.

        The scatter depends on it, so it is searched: systems that differ much scatter otherwise
        than ones that don't. Of 5 % and 5 %, a difference has half the variance that it has of 5 %
        and 22 %.
        """
        # Just below all of it: a rate of exactly 1 has no scatter.
        low, high = 0.0, self.room * (1 - 1e-9)
        if high <= 0 or not self.is_shown(high, n_tasks, samples, question):
            return None
        for _ in range(_HALVINGS if n_tasks <= FEW_TASKS else 40):
            middle = (low + high) / 2
            shown = self.is_shown(middle, n_tasks, samples, question)
            low, high = (low, middle) if shown else (middle, high)
        return high


def measured_scatter(a: ByTask, b: ByTask) -> Scatter:
    """What the difference of two systems scatters by that were played on the same tasks.

    Args:
        a: The attempts of the first system.
        b: Of the second, at the same tasks.

    Raises:
        ConfigError: If there are fewer than two tasks.
    """
    spread = spread_of(a, b)
    success, other = (mean_of(side) for side in (a, b))
    share, other_share = (_share(side) for side in (a, b))
    own = [of * p * (1 - p) for of, p in ((share, success), (other_share, other))]
    most = most_covariance(success, other, share=(share, other_share))
    # The difference may be either's lead: that of the better one over the other.
    lower, shares = min((success, (share, other_share)), (other, (other_share, share)))
    # Var(B - A) over the tasks is Var(A) + Var(B) - 2 Cov(A, B).
    correlation = (sum(own) - spread.between) / (2 * most) if most > 0 else 1.0

    def moves(difference: float, samples: int) -> Moves:
        if samples == 1:
            return moves_of_single(difference, spread.of_difference(1))
        return moves_of_rates(
            lower,
            min(1.0, lower + abs(difference)),
            share=shares,
            correlation=correlation,
            attempts=samples,
        )

    return Scatter("as measured", lambda _difference: spread, moves, 1 - lower)


def bounds(success: float, between: float | None) -> list[Scatter]:
    """For two systems of about the same success rate: both ends, where they are known.

    Args:
        success: Of the first.
        between: Variance of the tasks' own success rates; None where nobody knows it.
    """

    def scatter(correlation: float) -> Callable[[float], Spread]:
        def spread(difference: float) -> Spread:
            found = spread_of_success(
                success, between=between or 0.0, correlation=correlation, difference=difference
            )
            if between is not None:
                return found
            # Unrelated, the parts add up to the same, whatever the tasks' share is.
            return Spread(between=found.between + (found.within or 0.0))

        return spread

    most = success * (1 - success)
    share = (between or 0.0) / most if most else 0.0

    def moves(correlation: float) -> Callable[[float, int], Moves]:
        return lambda difference, samples: moves_of_rates(
            success,
            success + difference,
            share=(share, share),
            correlation=correlation,
            attempts=samples,
        )

    room = 1 - success
    unrelated = Scatter("most: unrelated difficulties", scatter(0.0), moves(0.0), room)
    if between is None:
        return [unrelated]
    return [Scatter("least: same tasks hard for both", scatter(1.0), moves(1.0), room), unrelated]


def mean_of(by_task: ByTask) -> float:
    """Mean over all attempts."""
    values = [value for each in by_task.values() for value in each]
    return sum(values) / len(values)


def _share(by_task: ByTask) -> float:
    """Variance between tasks as a share of the most there can be; 0 where nobody can tell."""
    success = mean_of(by_task)
    most = success * (1 - success)
    return min(1.0, (variance_between(by_task) or 0.0) / most) if most else 0.0
