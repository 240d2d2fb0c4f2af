"""Judge stored traces again, without new rollouts.

Playing an episode costs a policy, a simulator and minutes; judging it is one call. So a judge that
was down, a rubric that changed or a better model are no reason to play again. The episode is put
together from its trace, its task (with the hidden reference, which no trace holds) comes from the
environment, and the new verdict goes into a copy of the trace that keeps the old one.

What broke for a reason other than the judge stays masked: there is nothing to judge. A judgement
that fails again masks the trace again; it never brings the old number back, since two judges'
numbers in one file would be two scales in one mean.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gymnasium.utils import seeding
from pydantic import Field, ValidationError

from agentgym.core import AgentEnv
from agentgym.errors import ConfigError, DataError, TraceError
from agentgym.judge import Scoring
from agentgym.metering import add_by_role, sum_by_role
from agentgym.trace import Trace
from agentgym.types import Episode, Finite, Record, Task, Usage, Verdict, in_one_line

PREVIOUS_VERDICTS = "previous_verdicts"
"""Key in `Trace.metadata`: the verdicts a trace had before, oldest first."""

TaskOf: TypeAlias = Callable[[Trace], Task]
"""Gives a trace's task back, with its hidden reference."""


def bare_task(trace: Trace) -> Task:
    """What a trace itself knows of its task: no reference."""
    metadata = trace.metadata.get("task")
    return Task(
        task_id=trace.task_id or "unknown",
        split=trace.split,
        metadata=dict(metadata) if isinstance(metadata, Mapping) else {},
    )


def task_again(env: AgentEnv, trace: Trace) -> Task:
    """A trace's task, with its hidden reference, out of the environment that it came from.

    No episode is started, so no simulator is called; an episode that runs in `env` is over.

    Raises:
        DataError: If the environment gives another one, or the same one made from other data.
    """
    env.np_random = seeding.np_random(trace.seed)[0]
    task = env.choose_task({"task_id": trace.task_id})
    if task.task_id != trace.task_id:
        raise DataError(f"asked for task {trace.task_id!r}, the environment gives {task.task_id!r}")
    check_data(trace, task)
    return task


def check_data(trace: Trace, task: Task) -> None:
    """Refuse a task whose data changed since: its reference would judge another episode.

    Environments put what their tasks were made from into the metadata, as digests.

    Raises:
        DataError: If a digest differs.
    """
    stored = trace.metadata.get("task")
    for name, now in task.metadata.items():
        then = stored.get(name, now) if isinstance(stored, Mapping) else now
        if name.endswith("digest") and then != now:
            raise DataError(
                f"task {task.task_id} was made from other data then: {name} {then!s:.12}, now "
                f"{now!s:.12}; use the version that played it, or play it again"
            )


def is_judgeable(trace: Trace) -> bool:
    """Whether the episode was played to its end, so that a judge has something to look at."""
    blame = trace.failure_class if trace.verdict.masked else None
    return blame in (None, "judge", "policy") and trace.terminated != trace.truncated


def is_wanted(trace: Trace, *, only_failed: bool) -> bool:
    """Whether a trace is to be judged again.

    Args:
        trace: The trace.
        only_failed: Leave it alone if its judge didn't fail.
    """
    return is_judgeable(trace) and (trace.verdict.judge_failed or not only_failed)


def episode_of(trace: Trace, task: Task | None = None) -> Episode:
    """The episode that a trace is the record of.

    Args:
        trace: Of an episode that was played to its end.
        task: With its hidden reference; None takes what the trace knows.

    Raises:
        TraceError: If nothing was played that could be judged.
    """
    if not is_judgeable(trace):
        raise TraceError(
            f"trace {trace.trace_id}: its episode failed ({trace.failure_class or 'unfinished'}), "
            "so there is nothing to judge; play it again"
        )
    try:
        return Episode(
            env_id=_env_id(trace),
            task=task or bare_task(trace),
            tools=trace.tools,
            messages=trace.messages,
            turns=trace.turns,
            terminated=trace.terminated,
            truncated=trace.truncated,
            termination_reason=trace.termination_reason,
            truncation_reason=trace.truncation_reason,
            answer=trace.answer,
            outcome=trace.outcome,
        )
    except ValidationError as error:
        raise TraceError(f"trace {trace.trace_id}: {in_one_line(error)}") from error


def _env_id(trace: Trace) -> str:
    """The env's id, out of Gymnasium's spec as JSON."""
    try:
        spec = json.loads(trace.env_spec)
    except ValueError:
        return "unknown"
    found = spec.get("id") if isinstance(spec, Mapping) else None
    return found if isinstance(found, str) else "unknown"


class Rescored(Record):
    """One trace after judging it again."""

    trace: Trace
    """With its verdict, new or old."""
    before: Verdict
    """The verdict it came with."""
    judged: bool
    """Whether it was judged again."""


class RescoreSummary(Record):
    """What judging again changed."""

    n: int
    """Traces."""
    judged: int
    """Traces judged again."""
    not_judgeable: int
    """Traces left masked because something other than the judge broke."""
    newly_scored: int
    """Masked before, scored now."""
    still_failed: int
    """Failed by the judge before and again."""
    newly_failed: int
    """Scored before; the judge failed on it now, so it is masked now."""
    changed: int
    """Scored both times, with another reward."""
    solved_before: int
    solved_now: int
    mean_reward_before: Finite | None
    """Over the traces that were scored before and are now; None if there are none."""
    mean_reward_now: Finite | None
    """Over the same traces."""
    spent: dict[str, Usage] = Field(default_factory=dict)
    """What judging again cost by role."""


def summary_of(results: Iterable[Rescored]) -> RescoreSummary:
    """Add up what judging again changed; takes one result at a time."""
    counts = {
        name: 0 for name, field in RescoreSummary.model_fields.items() if field.annotation is int
    }
    both = 0
    total_before = total_now = 0.0
    spent: dict[str, Usage] = {}
    for result in results:
        old, new = result.before, result.trace.verdict
        counts["n"] += 1
        counts["solved_before"] += old.correct is True
        counts["solved_now"] += new.correct is True
        if old.reward is not None and new.reward is not None:
            both += 1
            counts["changed"] += old.reward != new.reward
            total_before += old.reward
            total_now += new.reward
        if not result.judged:
            counts["not_judgeable"] += not is_judgeable(result.trace)
            continue
        counts["judged"] += 1
        counts["newly_scored"] += old.masked and not new.masked
        counts["still_failed"] += old.masked and new.masked
        counts["newly_failed"] += not old.masked and new.masked
        add_by_role(spent, new.spent)
    return RescoreSummary(
        **counts,
        mean_reward_before=total_before / both if both else None,
        mean_reward_now=total_now / both if both else None,
        spent=spent,
    )


class Rescoring:
    """Judges traces again, many at once.

    Args:
        scoring: Judge, gates and reward range to use; an environment's own is `env.scoring`.
        task_of: Gives a trace's task back with its hidden reference; by default judges see what the
            trace knows. An error of it masks the trace.
        only_failed: Leave traces alone whose judge didn't fail. The judge must then be the one that
            scored those, or one file has two scales.
        concurrency: Judgements at once.
        note: Facts about the new judge, for `Trace.metadata["rescored"]`.

    Raises:
        ConfigError: If concurrency is below 1.
    """

    def __init__(
        self,
        scoring: Scoring,
        *,
        task_of: TaskOf | None = None,
        only_failed: bool = False,
        concurrency: int = 16,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, got {concurrency}")
        self._scoring = scoring
        self._task_of = task_of or bare_task
        self._only_failed = only_failed
        self._concurrency = concurrency
        self._note = dict(note or {})

    async def run(self, traces: Iterable[Trace]) -> AsyncIterator[Rescored]:
        """Judge traces, and give each back as soon as it is ready, in any order.

        Traces are taken as they are needed, so there may be more of them than memory holds. Those
        that share a group are judged together if the judge compares them, and all held until then.
        """
        running: set[asyncio.Task[list[Rescored]]] = set()
        try:
            for batch in self._batches(traces):
                if not any(self._is_wanted(trace) for trace in batch):
                    for trace in batch:
                        yield Rescored(trace=trace, before=trace.verdict, judged=False)
                    continue
                running.add(asyncio.create_task(self._judged(batch)))
                if len(running) == self._concurrency:
                    done, running = await asyncio.wait(running, return_when="FIRST_COMPLETED")
                    for result in _results_of(done):
                        yield result
            while running:
                done, running = await asyncio.wait(running, return_when="FIRST_COMPLETED")
                for result in _results_of(done):
                    yield result
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _batches(self, traces: Iterable[Trace]) -> Iterator[list[Trace]]:
        if not self._scoring.judges_groups:
            return ([trace] for trace in traces)
        groups: dict[str, list[Trace]] = {}
        for trace in traces:
            groups.setdefault(trace.group or trace.trace_id, []).append(trace)
        return iter(groups.values())

    def _is_wanted(self, trace: Trace) -> bool:
        return is_wanted(trace, only_failed=self._only_failed)

    async def _judged(self, batch: Sequence[Trace]) -> list[Rescored]:
        whole = [trace for trace in batch if is_judgeable(trace)]
        results = [
            Rescored(trace=trace, before=trace.verdict, judged=False)
            for trace in batch
            if not is_judgeable(trace)
        ]
        tasks: dict[str, Task] = {}
        for trace in whole:
            try:
                tasks[trace.trace_id] = self._task_of(trace)
            except Exception as error:
                verdict = _without_task(trace, error)
                results.append(self._result(trace, verdict))
        ready = [trace for trace in whole if trace.trace_id in tasks]
        episodes = [episode_of(trace, tasks[trace.trace_id]) for trace in ready]
        verdicts = await self._scoring.verdicts(episodes)
        results += [self._result(t, v) for t, v in zip(ready, verdicts, strict=True)]
        return results

    def _result(self, trace: Trace, verdict: Verdict) -> Rescored:
        return Rescored(
            trace=with_verdict(trace, verdict, note=self._note), before=trace.verdict, judged=True
        )


def _results_of(done: Iterable[asyncio.Task[list[Rescored]]]) -> Iterator[Rescored]:
    return (result for task in done for result in task.result())


async def rescore(
    traces: Iterable[Trace],
    scoring: Scoring,
    *,
    task_of: TaskOf | None = None,
    only_failed: bool = False,
    concurrency: int = 16,
) -> list[Rescored]:
    """Judge traces again, and return them in their order; see `Rescoring`."""
    given = list(traces)
    place = {trace.trace_id: number for number, trace in enumerate(given)}
    rescoring = Rescoring(
        scoring, task_of=task_of, only_failed=only_failed, concurrency=concurrency
    )
    results = [result async for result in rescoring.run(given)]
    return sorted(results, key=lambda result: place[result.trace.trace_id])


def with_verdict(trace: Trace, verdict: Verdict, *, note: Mapping[str, Any] | None = None) -> Trace:
    """A copy of a trace with another verdict; the one it had is kept in its metadata.

    Args:
        trace: Stays as it is.
        verdict: The new one; what it cost is added to the trace's usage.
        note: Facts about the judge, for `metadata["rescored"]`.
    """
    usage = sum_by_role(trace.usage, verdict.spent)
    kept = [*trace.metadata.get(PREVIOUS_VERDICTS, ()), trace.verdict.model_dump(mode="json")]
    metadata = {**trace.metadata, PREVIOUS_VERDICTS: kept}
    if note:
        metadata["rescored"] = dict(note)
    return trace.model_copy(
        update={
            "verdict": verdict,
            "metadata": metadata,
            "usage": usage,
            "failure_class": verdict.failure_class if verdict.masked else None,
            "failed_stage": "eval" if verdict.masked else None,
            "error": verdict.reason if verdict.masked else None,
        }
    )


def _without_task(trace: Trace, error: Exception) -> Verdict:
    return Verdict(
        failure_class="judge",
        judge_failed=True,
        completed=trace.terminated,
        masked=True,
        reward=None,
        reason=f"its task can't be had again: {type(error).__name__}: {error}",
    )
