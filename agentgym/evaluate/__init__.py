"""Evaluation: several systems on the same held-out tasks, and what the figures can bear."""

from agentgym.evaluate.attempts import attempt_of
from agentgym.evaluate.result import (
    Attempt,
    Column,
    EvaluationResult,
    TaskFacts,
    content_hash,
    read_result,
    write_result,
)

__all__ = [
    "Attempt",
    "Column",
    "EvaluationResult",
    "TaskFacts",
    "attempt_of",
    "content_hash",
    "read_result",
    "write_result",
]
