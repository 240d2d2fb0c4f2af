"""Is a judge fit to measure with? Agreement, bias, repeatability, failures and cost on a gold set.

A judge that is wrong half the time still gives numbers, and a trainer follows them. These figures
say how far its numbers can be trusted, before a run and, on the same gold set, after the provider
changed something.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from pydantic import Field

from agentgym.errors import ConfigError
from agentgym.judge import Judge, Scoring
from agentgym.judges.gold import GoldCase, GoldSet
from agentgym.metering import sum_by_role
from agentgym.statistics import (
    Correlation,
    Proportion,
    cohen_kappa,
    correlation,
    pooled_spread,
)
from agentgym.types import Episode, Finite, Record, Usage, Verdict

CORRECT = "correct"
"""How whether the task was solved is called among the criteria."""


class Judgement(Record):
    """One verdict on one case of a gold set."""

    case_id: str
    repeat: int
    """Which of the judgements of the case, from 0."""
    verdict: Verdict
    latency_s: Finite = Field(ge=0)
    """Seconds from the question to the verdict, re-asking included."""
    reordered: bool = False
    """Whether the criteria were asked for in another order."""

    def value(self, criterion: str) -> float | None:
        """What a criterion got; None if the judgement failed or lacks it."""
        if self.verdict.masked:
            return None
        if criterion in self.verdict.components:
            return self.verdict.components[criterion]
        if criterion == CORRECT and self.verdict.correct is not None:
            return float(self.verdict.correct)
        return None


class CriterionHealth(Record):
    """How a judge does on one criterion."""

    accuracy: Proportion
    """Cases whose value is within the tolerance of their label; a case judged three times and right
    twice counts two thirds, so that repeats don't pass for more cases in the interval."""
    kappa: Finite | None
    """Agreement beyond chance; see `cohen_kappa`."""
    mean_error: Finite | None
    """Judged less expected: above 0 is lenient, below is harsh."""
    length_bias: Correlation | None
    """Correlation over the cases of that error with the logarithm of the transcript's length. Above
    0, long transcripts are favoured. None where error or length never varies."""
    spread: Finite | None
    """Standard deviation between judgements of one case; see `pooled_spread`."""
    flips: Proportion
    """Cases judged several times whose value differed by more than the tolerance."""
    moved: Proportion
    """Cases whose value changed by more than the tolerance with the criteria in another order;
    more than `flips` says that the order matters."""
    constant: bool
    """Whether every judgement gave the same value though the labels differ: a broken judge."""


class Thresholds(Record):
    """How good is good enough; None asks for nothing."""

    min_accuracy: Finite | None = Field(default=None, ge=0, le=1)
    """Least accuracy, on each criterion."""
    min_kappa: Finite | None = Field(default=None, ge=-1, le=1)
    """Least agreement beyond chance, on each criterion."""
    max_length_bias: Finite | None = Field(default=None, ge=0, le=1)
    """Highest correlation of error and length, either way; asked only where it is not chance."""
    max_spread: Finite | None = Field(default=None, ge=0)
    """Highest standard deviation between judgements of one case."""
    max_failed: Finite | None = Field(default=None, ge=0, le=1)
    """Highest share of judgements that failed."""
    max_reasked: Finite | None = Field(default=None, ge=0, le=1)
    """Highest share of judgements in which the judge had to be asked again."""


class HealthReport(Record):
    """What a judge did on a gold set."""

    n_cases: int
    repeats: int
    criteria: dict[str, CriterionHealth]
    """By name; whether the task was solved is called `correct`."""
    failed: Proportion
    """Judgements without a verdict."""
    reasked: Proportion
    """Judgements that took more calls than the judge's least: replies that couldn't be read."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """Why judgements failed, and how often."""
    median_latency_s: Finite | None
    p95_latency_s: Finite | None
    spent: dict[str, Usage] = Field(default_factory=dict)
    """What it cost by role."""

    def faults(self, thresholds: Thresholds) -> tuple[str, ...]:
        """Everything about the judge that is not good enough, a line each.

        A constant criterion is one whatever the thresholds, and so is a judge that never answers.
        """
        constant = [name for name, health in self.criteria.items() if health.constant]
        found = [f"{name}: every judgement is the same" for name in constant]
        if self.failed.count == self.failed.n:
            found.append("no judgement succeeded")
        for name, health in self.criteria.items():
            found += _below(f"{name}: accuracy", health.accuracy.share, thresholds.min_accuracy)
            found += _below(f"{name}: kappa", health.kappa, thresholds.min_kappa)
            found += _above(f"{name}: spread", health.spread, thresholds.max_spread)
            bias = health.length_bias
            if bias is not None and bias.is_significant:
                found += _above(f"{name}: length bias", abs(bias.r), thresholds.max_length_bias)
        found += _above("failed judgements", self.failed.share, thresholds.max_failed)
        found += _above("judgements asked again", self.reasked.share, thresholds.max_reasked)
        return tuple(found)


def _below(what: str, value: float | None, least: float | None) -> list[str]:
    if least is None:
        return []
    if value is None:
        return [f"{what} can't be told; at least {least:g} is asked for"]
    return [f"{what} is {value:.3f}, below {least:g}"] if value < least else []


def _above(what: str, value: float | None, most: float | None) -> list[str]:
    if most is None or value is None or value <= most:
        return []
    return [f"{what} is {value:.3f}, above {most:g}"]


class HealthCheck:
    """Judges a gold set several times over, and knows at any moment how far it is.

    Args:
        judge: The one to check.
        gold: Transcripts with known verdicts.
        repeats: Judgements per case; two or more show the spread.
        concurrency: Judgements at once.
        tolerance: How far a value may be from its label and still count as right.
        reordered: The same judge with its criteria in another order, asked once for each case.
        on_judgement: Called after each judgement.
        clock: Seconds, from any origin.

    Raises:
        ConfigError: If a number is out of range.
    """

    def __init__(
        self,
        judge: Judge,
        gold: GoldSet,
        *,
        repeats: int = 3,
        concurrency: int = 16,
        tolerance: float = 0.25,
        reordered: Judge | None = None,
        on_judgement: Callable[[Judgement], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if repeats < 1 or concurrency < 1 or not tolerance >= 0:
            raise ConfigError(
                "repeats and concurrency must be at least 1 and tolerance at least 0, got "
                f"{repeats}, {concurrency}, {tolerance}"
            )
        scorings = [Scoring(judge=judge)] * repeats
        scorings += [Scoring(judge=reordered)] if reordered is not None else []
        self._scorings = scorings
        self._gold = gold
        self._repeats = repeats
        self._tolerance = tolerance
        self._slots = asyncio.Semaphore(concurrency)
        self._on_judgement = on_judgement
        self._clock = clock
        self.judgements: list[Judgement] = []
        """Those made so far."""

    @property
    def report(self) -> HealthReport:
        """What is known so far."""
        return health_report(self._gold, self.judgements, tolerance=self._tolerance)

    async def run(self) -> HealthReport:
        """Judge everything."""
        async with asyncio.TaskGroup() as group:
            for repeat in range(len(self._scorings)):
                for case in self._gold.cases:
                    group.create_task(self._judge(case, repeat))
        return self.report

    @property
    def total(self) -> int:
        """Judgements to make."""
        return len(self._scorings) * len(self._gold)

    async def _judge(self, case: GoldCase, repeat: int) -> None:
        async with self._slots:
            started = self._clock()
            verdict = await self._scorings[repeat].verdict(case.episode)
            latency_s = self._clock() - started
        judgement = Judgement(
            case_id=case.case_id,
            repeat=repeat,
            verdict=verdict,
            latency_s=latency_s,
            reordered=repeat >= self._repeats,
        )
        self.judgements.append(judgement)
        if self._on_judgement is not None:
            self._on_judgement(judgement)


async def check_judge(
    judge: Judge,
    gold: GoldSet,
    *,
    repeats: int = 3,
    concurrency: int = 16,
    tolerance: float = 0.25,
) -> HealthReport:
    """Judge a gold set and report; see `HealthCheck`."""
    check = HealthCheck(judge, gold, repeats=repeats, concurrency=concurrency, tolerance=tolerance)
    return await check.run()


# --- the figures --------------------------------------------------------------------------------


def health_report(
    gold: GoldSet, judgements: Sequence[Judgement], *, tolerance: float = 0.25
) -> HealthReport:
    """The figures of judgements made before.

    Args:
        gold: The cases that were judged.
        judgements: Any number for each case.
        tolerance: How far a value may be from its label and still count as right.
    """
    names = list(gold.criteria)
    if CORRECT not in names and any(case.correct is not None for case in gold.cases):
        names.append(CORRECT)
    # A rubric may have fewer criteria than the set has labels for.
    given = [n for n in names if any(j.value(n) is not None for j in judgements)]
    failed = [j for j in judgements if j.verdict.masked]
    calls = [sum(u.calls - u.retries for u in j.verdict.spent.values()) for j in judgements]
    fewest = min((n for n, j in zip(calls, judgements, strict=True) if n), default=0)
    latencies = sorted(j.latency_s for j in judgements)
    return HealthReport(
        n_cases=len({j.case_id for j in judgements}),
        repeats=max((j.repeat for j in judgements if not j.reordered), default=-1) + 1,
        criteria={name: _criterion(name, gold, judgements, tolerance) for name in given or names},
        failed=Proportion(count=len(failed), n=len(judgements)),
        reasked=Proportion(count=sum(n > fewest for n in calls), n=len(judgements)),
        reasons=dict(Counter(j.verdict.reason or "no reason given" for j in failed).most_common()),
        median_latency_s=_quantile(latencies, 0.5),
        p95_latency_s=_quantile(latencies, 0.95),
        spent=sum_by_role(*(j.verdict.spent for j in judgements)),
    )


def _criterion(
    name: str, gold: GoldSet, judgements: Sequence[Judgement], tolerance: float
) -> CriterionHealth:
    by_case: dict[str, list[float]] = {}
    otherwise: dict[str, float] = {}
    for judgement in judgements:
        value = judgement.value(name)
        if value is not None and judgement.reordered:
            otherwise[judgement.case_id] = value
        elif value is not None:
            by_case.setdefault(judgement.case_id, []).append(value)
    in_both = [case_id for case_id in otherwise if case_id in by_case]
    moved = [abs(otherwise[case_id] - by_case[case_id][0]) > tolerance for case_id in in_both]
    labelled = [
        (length_of(case.episode), label, by_case[case.case_id])
        for case in gold.cases
        if (label := _label(case, name)) is not None and case.case_id in by_case
    ]
    right = [[abs(v - label) <= tolerance for v in values] for _, label, values in labelled]
    errors = [sum(values) / len(values) - label for _, label, values in labelled]
    pairs = [(value, label) for _, label, values in labelled for value in values]
    judged, expected = [value for value, _ in pairs], [label for _, label in pairs]
    repeated = [values for values in by_case.values() if len(values) > 1]
    flips = sum(max(values) - min(values) > tolerance for values in repeated)
    return CriterionHealth(
        accuracy=Proportion(count=sum(sum(r) / len(r) for r in right), n=len(right)),
        kappa=cohen_kappa(judged, expected),
        mean_error=sum(errors) / len(errors) if errors else None,
        length_bias=correlation([math.log(length) for length, _, _ in labelled], errors),
        spread=pooled_spread(repeated),
        flips=Proportion(count=flips, n=len(repeated)),
        moved=Proportion(count=sum(moved), n=len(moved)),
        constant=len(set(judged)) == 1 and len(set(expected)) > 1,
    )


def _label(case: GoldCase, name: str) -> float | None:
    if name == CORRECT and name not in case.expected:
        return None if case.correct is None else float(case.correct)
    return case.expected.get(name)


def length_of(episode: Episode) -> int:
    """Characters of an episode's conversation, calls included; at least 1."""
    return len(json.dumps(episode.messages, ensure_ascii=False, default=str))


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values don't exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
