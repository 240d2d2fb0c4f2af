"""Evaluation: several systems on the same held-out tasks, and what the figures can bear."""

from agentgym.evaluate.attempts import attempt_of
from agentgym.evaluate.comparable import Reason, System
from agentgym.evaluate.compare import Comparison, compare, compare_all
from agentgym.evaluate.figure_records import ColumnFigures, EvaluationFigures
from agentgym.evaluate.figures import figures_of
from agentgym.evaluate.power import PowerReport, power_of_rate, power_of_systems
from agentgym.evaluate.result import (
    Attempt,
    Column,
    EvaluationResult,
    TaskFacts,
    content_hash,
    read_result,
    write_result,
)
from agentgym.evaluate.scatter import Question
from agentgym.evaluate.systems import systems_of
from agentgym.evaluate.tables import Table, tables_of, warnings_of

__all__ = [
    "Attempt",
    "Column",
    "ColumnFigures",
    "Comparison",
    "EvaluationFigures",
    "EvaluationResult",
    "PowerReport",
    "Question",
    "Reason",
    "System",
    "Table",
    "TaskFacts",
    "attempt_of",
    "compare",
    "compare_all",
    "content_hash",
    "figures_of",
    "power_of_rate",
    "power_of_systems",
    "read_result",
    "systems_of",
    "tables_of",
    "warnings_of",
    "write_result",
]
