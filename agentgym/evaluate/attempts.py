"""From a trace to a row of an evaluation."""

from __future__ import annotations

from agentgym.evaluate.result import Attempt
from agentgym.trace import Trace

_ERROR_CHARS = 300


def attempt_of(trace: Trace, *, external: float | None, correct: bool | None) -> Attempt:
    """What came of an episode.

    Args:
        trace: The episode; its task must be known.
        external: Its external score; None where it has none.
        correct: Whether the task was solved by that score.

    Raises:
        ValueError: If the trace has no task, or only one of the two is None.
    """
    if trace.task_id is None:
        raise ValueError(f"trace {trace.trace_id} has no task; it failed before one was chosen")
    return Attempt(
        task_id=trace.task_id,
        sample=trace.sample,
        trace_id=trace.trace_id,
        external=external,
        correct=correct,
        completed=trace.verdict.completed,
        reward=trace.reward,
        turns=len(trace.turns),
        truncation_reason=trace.truncation_reason,
        malformed=trace.malformed_calls,
        gates=trace.verdict.gates,
        failure_class=trace.failure_class or trace.verdict.failure_class,
        error=None if correct is not None else _error(trace),
        usage=trace.usage,
        seconds=sum(trace.stage_s.values()),
    )


def _error(trace: Trace) -> str:
    lines = (trace.error or trace.verdict.reason or "no reason given").strip().splitlines()
    return lines[-1][:_ERROR_CHARS] if lines else "no reason given"
