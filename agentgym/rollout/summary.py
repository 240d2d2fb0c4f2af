"""What a set of traces says, in numbers.

Episodes without a score are not zeros: means are over the scored ones, and the number of the others
stands beside every figure. Rates are given over both, because a rate over the scored episodes alone
looks the better the more of them failed.

Money is another matter: what was spent on an attempt that was repeated is spent. So attempts that a
later one supersedes have no part in any figure but the cost.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from pydantic import Field, computed_field

from agentgym.metering import add_by_role
from agentgym.rollout.budget import BudgetStatus
from agentgym.rollout.failure import last_line
from agentgym.simulator import FAULTS
from agentgym.statistics import clustered_stderr
from agentgym.trace import Trace
from agentgym.traces.jsonl import TraceFile
from agentgym.types import Record, Usage

_REASONS = 5  # of masked episodes, the commonest
_REASON_CHARS = 400


class Mean(Record):
    """A mean with its standard error."""

    mean: float | None
    """None where there is nothing to average."""
    stderr: float | None
    """Clustered by task; None with fewer than two tasks."""
    n: int
    """Values averaged."""


class Rate(Record):
    """How many of the episodes something is true of."""

    count: int
    n_scored: int
    n_total: int

    # mypy refuses any decorator on a property (python/mypy#1362); pydantic documents the ignore.
    @computed_field  # type: ignore[prop-decorator]
    @property
    def of_scored(self) -> float | None:
        """Share of the scored episodes."""
        return self.count / self.n_scored if self.n_scored else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def of_total(self) -> float | None:
        """Share of all episodes; a failed episode counts as not."""
        return self.count / self.n_total if self.n_total else None


class Duration(Record):
    """How long something took, seconds."""

    mean_s: float
    p95_s: float
    """19 of 20 took no longer."""
    n: int
    """Episodes that came so far."""


class Summary(Record):
    """The figures of a set of traces. Rates and means are over scored episodes."""

    n_total: int
    n_scored: int
    n_failed: int
    """Masked episodes: something other than the policy broke."""
    n_tasks: int
    """Distinct tasks among the scored episodes."""
    reward: Mean
    success: Rate
    """Episodes whose task was solved."""
    completion: Rate
    """Episodes in which a final answer (a purchase, …) came."""
    truncation: Rate
    """Episodes cut by a limit."""
    malformed: Rate
    """Episodes with at least one unreadable call."""
    cut_off: Rate
    """Episodes with at least one message ended by the output limit."""
    truncation_reasons: dict[str, int] = Field(default_factory=dict)
    failures: dict[str, int] = Field(default_factory=dict)
    """Masked episodes by failure class."""
    failure_reasons: dict[str, int] = Field(default_factory=dict)
    """What the commonest of the failures said, and how often."""
    components: dict[str, Mean] = Field(default_factory=dict)
    gates: dict[str, Rate] = Field(default_factory=dict)
    turns: Mean
    """Turns per episode."""
    calls: int
    """Tool calls, over all episodes."""
    malformed_calls: int
    usage: dict[str, Usage] = Field(default_factory=dict)
    """Tokens and dollars by role, over all episodes and attempts, failed ones included."""
    reruns: int = 0
    """Attempts that count no more, since the episode was played or judged again."""
    rerun_usage: dict[str, Usage] = Field(default_factory=dict)
    """The part of `usage` that was spent on those."""
    stage_s: dict[str, Duration] = Field(default_factory=dict)
    """Seconds by stage, over all episodes; waiting in a queue is not counted."""
    simulator_faults: int = 0
    """Replies of simulators that were refused, over all episodes; `outcome` of a trace has them."""
    drifted: int | None = None
    """Episodes that finished while the judge was known to have drifted; None without a canary."""
    budget_stop: BudgetStatus | None = None
    """Set where the run's budget ended it: what is spent, and which episodes were not played."""

    @property
    def failed_share(self) -> float:
        """Share of the episodes that have no score."""
        return self.n_failed / self.n_total if self.n_total else 0.0

    # mypy refuses any decorator on a property (python/mypy#1362); pydantic documents the ignore.
    @computed_field  # type: ignore[prop-decorator]
    @property
    def cost_usd(self) -> float | None:
        """US dollars over all roles; None where a role that was used has no price."""
        return sum(self.usage.values(), Usage(calls=0)).cost_usd


def summarize(traces: Iterable[Trace]) -> Summary:
    """Add up a set of traces, each of another episode; they are read once and not kept."""
    tally = _Tally()
    for trace in traces:
        tally.add(trace)
    return tally.summary()


def summarize_file(path: str | os.PathLike[str]) -> Summary:
    """Add up a trace file, in which later attempts supersede earlier ones; nothing is kept.

    Raises:
        TraceError: If it can't be read, has another schema version or is no trace file.
    """
    tally = _Tally()
    for trace, successor in TraceFile(path).with_successors():
        if successor is None:
            tally.add(trace)
        else:
            tally.add_superseded(trace, judged_again=successor == trace.trace_id)
    return tally.summary()


class _Tally:
    def __init__(self) -> None:
        self.total = 0
        self.tasks: list[Hashable] = []
        self.rewards: list[float] = []
        self.turns: list[float] = []
        self.counts: Counter[str] = Counter()
        self.gates: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.components: dict[str, list[tuple[float, Hashable]]] = defaultdict(list)
        self.calls = 0
        self.malformed_calls = 0
        self.usage: dict[str, Usage] = {}
        self.reruns = 0
        self.rerun_usage: dict[str, Usage] = {}
        self.stage_s: dict[str, list[float]] = defaultdict(list)
        self.failure_reasons: Counter[str] = Counter()
        self.simulator_faults = 0
        self.drifted: int | None = None

    def add(self, trace: Trace) -> None:
        """Count one trace."""
        self.total += 1
        self.calls += sum(len(turn.calls) for turn in trace.turns)
        self.malformed_calls += trace.malformed_calls
        add_by_role(self.usage, trace.usage)
        for attempt in trace.earlier:
            self.reruns += 1
            add_by_role(self.rerun_usage, attempt.usage)
        for stage, seconds in trace.stage_s.items():
            self.stage_s[stage].append(seconds)
        self.simulator_faults += len(trace.outcome.get(FAULTS, ()))
        if "canary" in trace.metadata:
            self.drifted = (self.drifted or 0) + bool(trace.metadata["canary"]["drifted"])
        if trace.reward is None:
            self.failures[trace.failure_class or "unknown"] += 1
            reason = last_line(trace.error or trace.verdict.reason or "no reason given")
            self.failure_reasons[reason[:_REASON_CHARS]] += 1
            return
        task: Hashable = trace.task_id or trace.trace_id
        self.tasks.append(task)
        self.rewards.append(trace.reward)
        self.turns.append(len(trace.turns))
        if trace.truncation_reason:
            self.reasons[trace.truncation_reason] += 1
        self._add_facts(trace)
        for name, value in trace.verdict.components.items():
            self.components[name].append((value, task))

    def add_superseded(self, trace: Trace, *, judged_again: bool) -> None:
        """Count what an attempt cost that a later one supersedes.

        Args:
            trace: The attempt.
            judged_again: Whether the later one is the same conversation with another verdict, and
                so has the cost of the conversation in its own usage.
        """
        spent = trace.verdict.spent if judged_again else trace.usage
        self.reruns += 1 + (0 if judged_again else len(trace.earlier))
        add_by_role(self.usage, spent)
        add_by_role(self.rerun_usage, spent)

    def _add_facts(self, trace: Trace) -> None:
        facts = {
            "success": trace.verdict.correct is True,
            "completion": trace.verdict.completed,
            "truncation": trace.truncated,
            "malformed": trace.malformed_calls > 0,
            "cut_off": any(turn.cut_off for turn in trace.turns),
        }
        self.counts.update(name for name, holds in facts.items() if holds)
        for name, tripped in trace.verdict.gates.items():
            self.gates[name] += tripped

    def summary(self) -> Summary:
        """The figures so far."""
        scored = len(self.rewards)

        def rate(count: int) -> Rate:
            return Rate(count=count, n_scored=scored, n_total=self.total)

        return Summary(
            n_total=self.total,
            n_scored=scored,
            n_failed=self.total - scored,
            n_tasks=len(set(self.tasks)),
            reward=_mean(self.rewards, self.tasks),
            success=rate(self.counts["success"]),
            completion=rate(self.counts["completion"]),
            truncation=rate(self.counts["truncation"]),
            malformed=rate(self.counts["malformed"]),
            cut_off=rate(self.counts["cut_off"]),
            truncation_reasons=dict(self.reasons),
            failures=dict(self.failures),
            components={
                name: _mean([value for value, _ in pairs], [task for _, task in pairs])
                for name, pairs in self.components.items()
            },
            gates={name: rate(count) for name, count in self.gates.items()},
            turns=_mean(self.turns, self.tasks),
            calls=self.calls,
            malformed_calls=self.malformed_calls,
            failure_reasons=dict(self.failure_reasons.most_common(_REASONS)),
            usage=self.usage,
            reruns=self.reruns,
            rerun_usage=self.rerun_usage,
            stage_s={stage: _duration(seconds) for stage, seconds in self.stage_s.items()},
            simulator_faults=self.simulator_faults,
            drifted=self.drifted,
        )


def _duration(seconds: Sequence[float]) -> Duration:
    return Duration(
        mean_s=math.fsum(seconds) / len(seconds),
        p95_s=float(np.quantile(seconds, 0.95, method="higher")),
        n=len(seconds),
    )


def _mean(values: Sequence[float], clusters: Sequence[Hashable]) -> Mean:
    if not values:
        return Mean(mean=None, stderr=None, n=0)
    return Mean(
        mean=math.fsum(values) / len(values),
        stderr=clustered_stderr(values, clusters),
        n=len(values),
    )
