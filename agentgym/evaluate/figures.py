"""What the rows of an evaluation say, in numbers; nothing here is stored.

An episode that something other than the policy broke has no score. Left out silently it inflates
the figure (80 right of 100 with 10 broken becomes 88.9 %), counted as wrong it hides that nobody
knows. So every share comes with both denominators, and where more than a few episodes have no
score, there is no single accuracy to be had.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from agentgym.errors import ConfigError, DataError
from agentgym.evaluate.figure_records import (
    ColumnFigures,
    EvaluationFigures,
    Family,
    Passes,
    Share,
    TurnBin,
)
from agentgym.evaluate.result import Attempt, Column, EvaluationResult
from agentgym.metering import sum_by_role
from agentgym.statistics import (
    Estimate,
    bounded_estimate,
    mean_estimate,
    pass_at_k,
    pass_hat_k,
    share_estimate,
)

_TURN_BINS = 8
_REASONS = 5


def figures_of(result: EvaluationResult, *, ks: Sequence[int] | None = None) -> EvaluationFigures:
    """The figures of every column that has episodes.

    Args:
        result: The evaluation.
        ks: Numbers of attempts for pass@k and pass^k; default: 1, 2, 4, … and all samples.

    Raises:
        ConfigError: If a k is larger than the samples per task.
        DataError: If no column has any episode.
    """
    most = result.samples
    for k in ks or ():
        if not 1 <= k <= most:
            raise ConfigError(
                f"k must be from 1 to the {most} samples per task that this evaluation has, got {k}"
            )
    chosen = _default_ks(most) if ks is None else sorted(set(ks))
    columns = [column for column in result.columns if column.attempts]
    if not columns:
        raise DataError("the evaluation holds no episode")
    bins = _turn_bins({a.turns for column in columns for a in column.attempts if a.scored})
    return EvaluationFigures(
        env_id=result.env_id,
        split=result.split,
        external_score=result.external_score,
        n_tasks=len(result.tasks),
        samples=most,
        columns=tuple(_column_figures(result, column, chosen, bins) for column in columns),
        without_episodes=tuple(c.name for c in result.columns if not c.attempts),
    )


def share_of(attempts: Sequence[Attempt], holds: Callable[[Attempt], bool]) -> Share:
    """How many of the attempts something is true of; of those without a score it never is.

    Args:
        attempts: At least one.
        holds: Asked of the scored ones.
    """
    hits = [attempt.scored and holds(attempt) for attempt in attempts]
    tasks = [attempt.task_id for attempt in attempts]
    scored = [i for i, attempt in enumerate(attempts) if attempt.scored]
    return Share(
        count=sum(hits),
        n_scored=len(scored),
        n_total=len(attempts),
        of_all=share_estimate(hits, tasks),
        of_scored=share_estimate([hits[i] for i in scored], [tasks[i] for i in scored])
        if scored
        else None,
    )


def solved(attempt: Attempt) -> bool:
    """Whether the task was solved."""
    return attempt.correct is True


def _column_figures(
    result: EvaluationResult, column: Column, ks: Sequence[int], bins: Sequence[range]
) -> ColumnFigures:
    attempts = column.attempts
    scored = [attempt for attempt in attempts if attempt.scored]
    broken = [attempt for attempt in attempts if not attempt.scored]
    success = share_of(attempts, solved)
    spent = [_cost(column, attempt) for attempt in attempts]
    cost = None if None in spent else math.fsum(c for c in spent if c is not None)
    # No episode takes no time at all: where all say 0, whoever wrote the rows didn't time them.
    seconds = math.fsum(attempt.seconds for attempt in attempts) or None
    took = [attempt.seconds for attempt in scored] if seconds else []
    reasons = Counter(attempt.error or "no reason given" for attempt in broken)
    return ColumnFigures(
        name=column.name,
        kind=column.kind,
        model=column.model,
        n_planned=result.n_planned,
        n_total=len(attempts),
        n_scored=len(scored),
        n_tasks=len({attempt.task_id for attempt in attempts}),
        errors=dict(Counter(attempt.failure_class or "unknown" for attempt in broken)),
        error_reasons=dict(reasons.most_common(_REASONS)),
        success=success,
        score=_mean(scored, lambda attempt: attempt.external, unit=True),
        reward=_mean(attempts, lambda attempt: attempt.reward),
        completion=share_of(attempts, lambda attempt: attempt.completed),
        completed_wrong=sum(a.completed and not solved(a) for a in scored),
        unfinished=sum(not a.completed for a in scored),
        malformed=share_of(attempts, lambda attempt: attempt.malformed > 0),
        truncations=dict(Counter(a.truncation_reason for a in scored if a.truncation_reason)),
        passes=tuple(_passes(attempts, k) for k in ks),
        families=_families(result, attempts),
        by_turns=tuple(_by_turns(scored, bins)),
        gates=_gates(attempts),
        turns=_mean(scored, lambda attempt: float(attempt.turns)),
        usage=sum_by_role(*(attempt.usage for attempt in attempts)),
        cost_usd=cost,
        cost_per_solved_usd=None if cost is None or not success.count else cost / success.count,
        seconds=seconds,
        seconds_per_solved=seconds / success.count if seconds and success.count else None,
        median_seconds=float(np.median(took)) if took else None,
        p95_seconds=float(np.quantile(took, 0.95, method="higher")) if took else None,
    )


def _cost(column: Column, attempt: Attempt) -> float | None:
    """Dollars of an episode; a model that was asked and says no tokens was not free."""
    untold = all(usage.is_nothing for usage in attempt.usage.values())
    if column.kind != "scripted" and untold and (attempt.scored or attempt.turns):
        return None
    return attempt.cost_usd


def _default_ks(samples: int) -> list[int]:
    powers = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    return sorted({*powers, samples})


def _mean(
    attempts: Iterable[Attempt], value: Callable[[Attempt], float | None], *, unit: bool = False
) -> Estimate | None:
    """A mean over the attempts that have the value; `unit` if it is a share where it can be one."""
    pairs = [(found, a.task_id) for a in attempts if (found := value(a)) is not None]
    if not pairs:
        return None
    values, tasks = [found for found, _ in pairs], [task for _, task in pairs]
    if unit and all(0 <= found <= 1 for found in values):
        return bounded_estimate(values, tasks, most=len(values))
    return mean_estimate(values, tasks)


def _passes(attempts: Sequence[Attempt], k: int) -> Passes:
    scored, played = Counter[str](), Counter[str]()
    right = Counter[str]()
    for attempt in attempts:
        played[attempt.task_id] += 1
        scored[attempt.task_id] += attempt.scored
        right[attempt.task_id] += solved(attempt)
    of_scored = [(scored[task], right[task]) for task in played]
    of_all = [(n, right[task]) for task, n in played.items()]
    has_scored, has_any = (any(n >= k for n, _ in counts) for counts in (of_scored, of_all))
    return Passes(
        k=k,
        at=pass_at_k(of_scored, k) if has_scored else None,
        hat=pass_hat_k(of_scored, k) if has_scored else None,
        at_of_all=pass_at_k(of_all, k) if has_any else None,
        hat_of_all=pass_hat_k(of_all, k) if has_any else None,
        n_left_out=sum(n < k for n, _ in of_scored),
        n_not_played=sum(n < k for n, _ in of_all),
    )


def _gates(attempts: Sequence[Attempt]) -> dict[str, Share]:
    names = dict.fromkeys(name for attempt in attempts for name in attempt.gates)

    def tripped(name: str) -> Share:
        return share_of(attempts, lambda attempt: attempt.gates.get(name, False))

    return {name: tripped(name) for name in names}


def _families(result: EvaluationResult, attempts: Sequence[Attempt]) -> dict[str, Family]:
    sorted_out: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        family = result.tasks[attempt.task_id].family
        if family is not None:
            sorted_out[family].append(attempt)
    return {
        family: Family(
            n_tasks=len({attempt.task_id for attempt in theirs}),
            success=share_of(theirs, solved),
            completion=share_of(theirs, lambda attempt: attempt.completed),
        )
        for family, theirs in sorted(sorted_out.items())
    }


def _turn_bins(counts: Collection[int]) -> list[range]:
    """One bin per number of turns, or a few of equal width, the same for every column."""
    if len(counts) <= _TURN_BINS:
        return [range(count, count + 1) for count in sorted(counts)]
    first, last = min(counts), max(counts)
    width = math.ceil((last - first + 1) / _TURN_BINS)
    return [range(low, low + width) for low in range(first, last + 1, width)]


def _by_turns(scored: Sequence[Attempt], bins: Sequence[range]) -> Iterable[TurnBin]:
    for each in bins:
        theirs = [attempt for attempt in scored if attempt.turns in each]
        if theirs:
            yield TurnBin(low=each[0], high=each[-1], success=share_of(theirs, solved))
