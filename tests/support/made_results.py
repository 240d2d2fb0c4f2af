"""Evaluations made of plain numbers, for the tests of what is derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentgym.evaluate import Attempt, Column, EvaluationResult, TaskFacts


def attempt(task: str, correct: bool | None, sample: int = 0, **fields: Any) -> Attempt:
    """An attempt; `correct=None` is one that broke for no fault of the policy's."""
    if correct is None:
        fields = {"failure_class": "infra", "error": "EndpointError: gone", **fields}
    else:
        fields = {"external": float(correct), "completed": True, **fields}
    return Attempt(task_id=task, sample=sample, correct=correct, **fields)


def column(name: str, attempts: Iterable[Attempt], **fields: Any) -> Column:
    """A column of given attempts."""
    facts = {"kind": "policy", "model": "m", "sampling": {"temperature": 1.0}, "hashes": {}}
    facts |= {"code_version": "0.1.0", **fields}
    return Column(name=name, attempts=tuple(attempts), **facts)


def played(name: str, tasks: Mapping[str, Iterable[bool | None]], **fields: Any) -> Column:
    """A column from what came of the samples of each task."""
    return column(
        name,
        [attempt(t, c, i) for t, samples in tasks.items() for i, c in enumerate(samples)],
        **fields,
    )


def result(*columns: Column, **fields: Any) -> EvaluationResult:
    """A result of columns; tasks and samples are those of the attempts."""
    every = [each for one in columns for each in one.attempts]
    tasks = {each.task_id: TaskFacts(content=f"hash of {each.task_id}") for each in every}
    facts: dict[str, Any] = {
        "created_at": "2026-01-01T00:00:00+00:00",
        "env_id": "agentgym/Test-v0",
        "env_spec": '{"id": "agentgym/Test-v0", "kwargs": {}}',
        "split": "test",
        "external_score": "test/exact",
        "samples": max((each.sample for each in every), default=0) + 1,
        "tasks": tasks,
    }
    return EvaluationResult(columns=columns, **{**facts, **fields})


def h07() -> Column:
    """100 tasks, 80 solved, 10 not, 10 broken by the infrastructure."""
    outcomes = [True] * 80 + [False] * 10 + [None] * 10
    return played("ours", {f"t{i}": [outcome] for i, outcome in enumerate(outcomes)})
