"""Systems compared with one another, task by task.

Which of two systems is better is asked of the tasks that both attempted, as a paired difference.
Where several are compared with one, something is bound to look better by chance, so the p-values
are also given as they hold for all comparisons together.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from agentgym.errors import ConfigError
from agentgym.evaluate.comparable import Reason, System, common_tasks, reasons_between
from agentgym.evaluate.result import Attempt
from agentgym.evaluate.scatter import ByTask, Question, measured_scatter
from agentgym.statistics import (
    Difference,
    Estimate,
    Spread,
    bounded_estimate,
    fewest_tasks,
    holm_adjusted,
    paired_difference,
)
from agentgym.types import Record


class Comparison(Record):
    """How far one system is above another."""

    a: str
    """The system that is compared with."""
    b: str
    """The system whose lead over `a` this is."""
    reasons: tuple[Reason, ...]
    """In what the two evaluations were not alike."""
    common: tuple[str, ...]
    """Tasks with the same content that both attempted and that are compared."""
    only_a: tuple[str, ...] = ()
    """Tasks that only `a` attempted; in no figure."""
    only_b: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Tasks of one name with another content; in no figure."""
    unscored: tuple[str, ...] = ()
    """Common tasks in which one side has no scored episode; only in `success_of_all`."""
    success_a: Estimate | None = None
    """Success of `a` on the tasks with scored episodes on both sides, every task counting the same;
    that of `b` less this is the difference."""
    success_b: Estimate | None = None
    success: Difference | None = None
    """Success of `b` minus success of `a` over scored episodes; None where they can't be
    compared."""
    success_of_all: Difference | None = None
    """The same where an episode without a score counts as not solved; None where one side has no
    score at all."""
    completion: Difference | None = None
    score: Difference | None = None
    """Of the external scores."""
    p_together: float | None = None
    """The p-value of `success` as it holds for all comparisons made together (Holm)."""
    tasks_needed: int | None = None
    """Tasks that would show a true difference as large as the one seen in four of five evaluations,
    with the samples there are; None where none was seen."""
    detectable: float | None = None
    """The smallest true difference that the common tasks show in four of five evaluations; None
    where even the largest there can be is not."""

    @property
    def blocked(self) -> bool:
        """Whether the two speak of different things, so that there are no figures."""
        return any(reason.grade == "blocks" for reason in self.reasons)

    @property
    def comparable(self) -> bool:
        """Whether nothing but the systems themselves can have made the difference."""
        return not any(reason.grade in ("blocks", "confounds") for reason in self.reasons)


def compare(a: System, b: System) -> Comparison:
    """How far `b` is above `a`, and whether the two can be compared at all."""
    tasks = common_tasks(a, b)
    found = Comparison(
        a=a.label,
        b=b.label,
        reasons=tuple(reasons_between(a, b)),
        common=tasks.common,
        only_a=tasks.only_a,
        only_b=tasks.only_b,
        changed=tasks.changed,
    )
    if found.blocked:
        return found
    mine, other = (_by_task(each, tasks.common) for each in (a, b))
    return found.model_copy(update=_figures(mine, other))


def compare_all(systems: Sequence[System], *, all_pairs: bool = False) -> list[Comparison]:
    """Every system against the first, or every pair.

    Args:
        systems: At least two, with different labels.
        all_pairs: Compare each with each.

    Raises:
        ConfigError: If there are fewer than two.
    """
    if len(systems) < 2:
        raise ConfigError(f"a comparison needs two systems; there is only {_names(systems)}")
    pairs = (
        itertools.combinations(systems, 2)
        if all_pairs
        else ((systems[0], other) for other in systems[1:])
    )
    found = [compare(a, b) for a, b in pairs]
    tested = [(i, c.success.p) for i, c in enumerate(found) if c.success is not None]
    known = [(i, p) for i, p in tested if p is not None]
    for (i, _), p in zip(known, holm_adjusted([p for _, p in known]), strict=True):
        found[i] = found[i].model_copy(update={"p_together": p})
    return found


_ByTask = Mapping[str, Sequence[Attempt]]


def _by_task(system: System, tasks: Iterable[str]) -> dict[str, list[Attempt]]:
    wanted = set(tasks)
    found: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in system.column.attempts:
        if attempt.task_id in wanted:
            found[attempt.task_id].append(attempt)
    return found


def _figures(mine: _ByTask, other: _ByTask) -> dict[str, object]:
    def solved(attempt: Attempt) -> float | None:
        return None if attempt.correct is None else float(attempt.correct)

    def completed(attempt: Attempt) -> float | None:
        return float(attempt.completed) if attempt.scored else None

    success = _difference(mine, other, solved)
    both = [task for task in mine if any(_scored(mine[task])) and any(_scored(other[task]))]
    scored = set(both)
    return {
        "unscored": tuple(task for task in mine if task not in scored),
        "success_a": _success(mine, both),
        "success_b": _success(other, both),
        "success": success,
        "success_of_all": _difference(mine, other, lambda a: float(a.correct is True))
        if all(any(map(any, map(_scored, side.values()))) for side in (mine, other))
        else None,
        "completion": _difference(mine, other, completed),
        "score": _difference(mine, other, lambda a: a.external),
        **(_power(success, _solved(mine, both), _solved(other, both)) if success else {}),
    }


def _scored(attempts: Sequence[Attempt]) -> list[bool]:
    return [attempt.scored for attempt in attempts]


def _success(attempts: _ByTask, tasks: Sequence[str]) -> Estimate | None:
    if not tasks:
        return None
    scored = [[a.correct is True for a in attempts[task] if a.scored] for task in tasks]
    shares = [sum(hits) / len(hits) for hits in scored]
    return bounded_estimate(shares, tasks, most=sum(map(len, scored)))


def _difference(
    mine: _ByTask, other: _ByTask, value: Callable[[Attempt], float | None]
) -> Difference | None:
    def values(tasks: _ByTask) -> dict[str, list[float]]:
        return {
            task: [found for each in attempts if (found := value(each)) is not None]
            for task, attempts in tasks.items()
        }

    a, b = values(mine), values(other)
    if not any(a[task] and b.get(task) for task in a):
        return None
    is_share = all(0 <= x <= 1 for side in (a, b) for each in side.values() for x in each)
    return paired_difference(a, b, largest=1.0 if is_share else None)


def _solved(attempts: _ByTask, tasks: Sequence[str]) -> dict[str, list[float]]:
    return {t: [float(a.correct is True) for a in attempts[t] if a.scored] for t in tasks}


def _power(success: Difference, mine: ByTask, other: ByTask) -> dict[str, object]:
    if success.n_tasks < 2 or success.stderr < 1e-12:
        return {}
    # The scatter is that of these samples, all of it, however uneven they are over the tasks.
    as_seen = Spread(between=success.stderr**2 * success.n_tasks, within=0.0)
    scatter = measured_scatter(mine, other)._replace(spread=lambda _difference: as_seen)
    attempts = [len(values) for side in (mine, other) for values in side.values()]
    samples = round(sum(attempts) / len(attempts))
    found: dict[str, object] = {}
    if success.n_tasks >= fewest_tasks():
        found["detectable"] = scatter.least_shown(success.n_tasks, samples, Question())
    if not math.isclose(success.mean, 0, abs_tol=1e-9):
        with contextlib.suppress(ConfigError):  # more than anybody plays
            found["tasks_needed"] = scatter.tasks_needed(success.mean, samples, Question())
    return found


def _names(systems: Sequence[System]) -> str:
    return ", ".join(system.label for system in systems) or "none"
