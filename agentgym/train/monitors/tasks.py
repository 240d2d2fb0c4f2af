"""What the tasks' own success rates predict: tasks differ, and one rate for all hides it.

With a mean success of 50 %, 1 % of groups of 8 are all equal if every task is at 50 %, and all of
them if half of the tasks are always solved and half never.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

from agentgym.statistics.groups import all_equal
from agentgym.trace import Trace

_VISITS = 3
"""Visits of a task that count; the policy changes, so older ones don't."""
_PRIOR = 2.0
"""Rollouts that the overall success rate counts for, beside a task's own."""


class Outcome(NamedTuple):
    """How a rollout of a group went."""

    group: str
    task: str
    solved: bool


def outcomes_of(traces: Iterable[Trace]) -> list[Outcome]:
    """Those of the rollouts of which it is known, and which group they belong to."""
    return [
        Outcome(trace.group, trace.task_id, trace.verdict.correct)
        for trace in traces
        if trace.scored
        and trace.verdict.correct is not None
        and trace.task_id is not None
        and trace.group is not None
    ]


class TaskHistory:
    """Solved and scored rollouts of each task in its last visits."""

    def __init__(self) -> None:
        self._visits: dict[str, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=_VISITS))

    def expect(self, outcomes: Iterable[Outcome]) -> float | None:
        """Predict the share of equal groups in a batch, from earlier visits; then take it in.

        Args:
            outcomes: Of the whole batch, over all processes.

        Returns:
            None where nobody can tell success, or fewer than half of the groups' tasks were played
            before.
        """
        groups: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            groups[outcome.group].append(outcome)
        counts = [
            (group[0].task, sum(each.solved for each in group), len(group))
            for group in groups.values()
            if len(group) > 1
        ]
        predicted = self._predict(counts)
        for task, solved, scored in counts:
            self._visits[task].append((solved, scored))
        return predicted

    def _predict(self, counts: list[tuple[str, int, int]]) -> float | None:
        known = [(self._visits[task], n) for task, _, n in counts if task in self._visits]
        if not counts or len(known) < len(counts) / 2:
            return None
        solved = sum(c for visits, _ in known for c, _ in visits)
        scored = sum(n for visits, _ in known for _, n in visits)
        p = (solved + 0.5) / (scored + 1)
        return sum(
            all_equal(
                _PRIOR * p + sum(c for c, _ in visits),
                _PRIOR * (1 - p) + sum(n - c for c, n in visits),
                size,
            )
            for visits, size in known
        ) / len(known)
