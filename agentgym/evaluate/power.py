"""How many tasks an evaluation needs, from one that was played or from a guess.

What a comparison scatters by is known only when both systems have been played. Before that it is
bounded: it is least where the two find the same tasks hard and most where their difficulties have
nothing to do with each other. Both ends are given, and no number in between is made up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pydantic import Field

from agentgym.errors import ConfigError
from agentgym.evaluate.comparable import System, common_tasks
from agentgym.evaluate.scatter import Question, Scatter, bounds, mean_of, measured_scatter
from agentgym.evaluate.tables import Table
from agentgym.statistics import variance_between
from agentgym.types import Record


class PowerRow(Record):
    """One answer."""

    assumption: str
    """What the scatter of the difference was taken to be."""
    samples: int
    difference: float | None
    """Where it is the answer, of a second system that is better; None where there is no room for
    one so large."""
    tasks: int


class PowerReport(Record):
    """The answers, and what they rest on."""

    rests_on: str
    question: Question
    rows: tuple[PowerRow, ...]
    caveats: tuple[str, ...] = Field(default=())


def power_of_systems(systems: Sequence[System], question: Question) -> PowerReport:
    """What one or two systems that were played say.

    Args:
        systems: Two: the scatter of their own difference. One: the bounds for another like it.
        question: What is asked.

    Raises:
        ConfigError: If there are more systems, too few tasks, or a number is out of range.
    """
    if len(systems) > 2:
        names = ", ".join(system.label for system in systems)
        raise ConfigError(f"name one or two systems as FILE:COLUMN; these are {names}")
    first, *others = (_solved_by_task(system) for system in systems)
    if others:
        same = set(common_tasks(*systems).common)
        a, b = ({t: v for t, v in each.items() if t in same} for each in (first, *others))
        return _report(
            [measured_scatter(a, b)],
            f"{systems[1].label} and {systems[0].label}, {len(same)} common tasks",
            question,
        )
    if not first:
        raise ConfigError(f"no episode of {systems[0].label} has a score")
    success = mean_of(first)
    between = variance_between(first)
    if between is not None:
        # The estimate over a few tasks may be above what any tasks can have.
        between = min(between, success * (1 - success))
    where = f"{systems[0].label}: success {success:.1%} over {len(first)} tasks"
    return _report(bounds(success, between), where, question)


def power_of_rate(success: float, between: float | None, question: Question) -> PowerReport:
    """What a guess of the success rate says.

    Args:
        success: Success rate of both systems, but for the difference.
        between: Variance of the tasks' own success rates; None: nobody knows.
        question: What is asked.

    Raises:
        ConfigError: If a number is out of range.
    """
    if between is None and any(k > 1 for k in question.samples):
        raise ConfigError(
            "--samples above 1 needs --between: what more attempts per task help depends on how "
            "much of the variance is within tasks"
        )
    return _report(bounds(success, between), f"a success rate of {success:.1%}", question)


def power_table(report: PowerReport) -> Table:
    """The answers as a table."""
    by_difference = bool(report.question.differences)
    rows = []
    for row in report.rows:
        difference = "none" if row.difference is None else f"{100 * row.difference:.1f} points"
        tasks = f"{row.tasks:,}"
        asked, answer = (difference, tasks) if by_difference else (tasks, difference)
        rows.append((row.assumption, f"{row.samples}", asked, answer))
    asked_for, answered = "difference", "tasks needed"
    if not by_difference:
        asked_for, answered = "tasks", "difference they show"
    return Table(
        title=f"From {report.rests_on}",
        header=("scatter of the difference", "samples", asked_for, answered),
        rows=tuple(rows),
        note=(
            f"Paired by task; the {report.question.level:.0%} interval leaves out 0 with a chance "
            f"of {report.question.power:.0%}."
        ),
    )


def _report(scatters: Sequence[Scatter], rests_on: str, question: Question) -> PowerReport:
    for d in question.differences:
        if abs(d) > 1:
            raise ConfigError(f"a difference is from 0 to 1 (0.05 is five points), got {d:g}")
    rows: list[tuple[str, int, float | None, int]] = []
    for scatter in scatters:
        for k in question.samples:
            rows += [
                (scatter.assumption, k, d, scatter.tasks_needed(d, k, question))
                for d in question.differences
            ]
            rows += [
                (scatter.assumption, k, scatter.least_shown(n, k, question), n)
                for n in question.tasks
            ]
    caveats = []
    if len(scatters) == 1 and scatters[0].assumption != "as measured":
        caveats.append(
            "how much the tasks' own difficulty varies is not known (one attempt per task, or no "
            "--between), so only the upper bound is given: it takes no more tasks than this, "
            "unless one system finds hard what the other finds easy"
        )
    if any(difference is None for *_, difference, _ in rows):
        caveats.append("none: no difference that a better system can have is large enough")
    return PowerReport(
        rests_on=rests_on,
        question=question,
        rows=tuple(PowerRow(assumption=a, samples=k, difference=d, tasks=n) for a, k, d, n in rows),
        caveats=tuple(caveats),
    )


def _solved_by_task(system: System) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for attempt in system.column.attempts:
        if attempt.correct is not None:
            found[attempt.task_id].append(float(attempt.correct))
    return found
