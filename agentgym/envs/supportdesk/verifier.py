"""The verifier: was the right thing done, and was the customer told what they had to be told?

It compares what the episode changed in the database with the changes that would have been right,
and looks in the lines the customer heard for the amounts, dates and refusals they were owed. Doing
nothing is right in some tasks, so it earns nothing by itself: the customer must have been
identified, the orders looked at, and the reason or answer given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentgym.envs.supportdesk.reference import Reference, Told, apply
from agentgym.envs.supportdesk.store import Changes, Store, changes
from agentgym.envs.supportdesk.tasks.table import TaskTable
from agentgym.envs.supportdesk.wording import MOST_GROUNDS_IN_ALL, refuses_for, tells
from agentgym.errors import JudgeError
from agentgym.judge import Score
from agentgym.types import Episode

SOLVED, STATE, COMMUNICATED = 0.7, 0.2, 0.1
"""What each component adds to the total, 1 when all are met."""

_STREET_WORDS = {
    "street": "st",
    "avenue": "ave",
    "road": "rd",
    "lane": "ln",
    "drive": "dr",
}


class SupportVerifier:
    """Scores an episode by the final database and by what the customer was told.

    Args:
        table: The tasks, and the shop as every episode found it.
    """

    inline = True
    highest = 1.0

    def __init__(self, table: TaskTable) -> None:
        self._table = table
        self._right: dict[str, list[Changes]] = {}

    def __repr__(self) -> str:
        return f"SupportVerifier(digest={self._table.digest[:12]!r})"

    async def score(self, episode: Episode) -> Score:
        """Score one episode.

        Raises:
            JudgeError: If the episode's task has no reference, as one read from a trace.
        """
        reference = episode.task.reference
        if not isinstance(reference, Reference):
            raise JudgeError(f"task {episode.task.task_id} comes without its reference")
        outcome = episode.outcome
        communicated = share_told(reference, outcome)
        state = self._state(episode.task.task_id, reference, outcome)
        if reference.changes_nothing and reference.transfer is None:
            state = state and communicated == 1.0
        solved = state and communicated == 1.0
        violations = outcome["violations"]
        return Score(
            total=round(SOLVED * solved + STATE * state + COMMUNICATED * communicated, 6),
            components={
                "task_solved": float(solved),
                "state": float(state),
                "communicated": communicated,
            },
            correct=solved and not any(violations.values()),
            completed=episode.terminated and not outcome["gave_up"],
        )

    def _state(self, task_id: str, reference: Reference, outcome: dict[str, Any]) -> bool:
        """Whether the database is as it should be, and rightly so."""
        known = outcome["identified"] == reference.customer_id
        if not known or not set(reference.look_up) <= set(outcome["looked_up"]):
            return False
        if outcome["transfer"] != reference.transfer:
            return False
        if task_id not in self._right:
            self._right[task_id] = [self._after(writes) for writes in reference.outcomes]
        return _comparable(outcome["changes"]) in self._right[task_id]

    def _after(self, writes: Any) -> Changes:
        """What a set of right changes makes of the shop."""
        store = Store(self._table.image)
        try:
            apply(store, writes)
            return _comparable(changes(self._table.rows, store.rows(store.touched)))
        finally:
            store.close()


def share_told(reference: Reference, outcome: Mapping[str, Any]) -> float:
    """Share of what had to be told that was, by somebody who could know it.

    Where nothing has to be told it is 1 once the orders were looked at.
    """
    if outcome["identified"] != reference.customer_id:
        return 0.0
    wanted = set(reference.look_up)
    if not reference.told:
        return float(wanted <= set(outcome["looked_up"]))
    guesses = len(set().union(*(refuses_for(line["text"]) for line in outcome["heard"])))
    found = 0
    for told in reference.told:
        if told.refusal and guesses > MOST_GROUNDS_IN_ALL:
            continue
        found += any(
            _could_know(told, wanted, set(outcome["looked_up"][: line["looked_up"]]))
            and tells(line["text"], told)
            for line in outcome["heard"]
        )
    return found / len(reference.told)


def _could_know(told: Told, wanted: set[str], seen: set[str]) -> bool:
    """Whether whoever has looked at these orders can tell this; a refusal needs all of them."""
    return wanted <= seen if told.refusal else bool(wanted & seen)


def _comparable(found: Changes) -> Changes:
    """Changes without differences that make none.

    `12 Oak St.` is `12 oak street`, and two refunds are one of both amounts.
    """
    return {
        table: {
            side: sorted(
                ([_spelled(value) for value in row] for row in _summed(table, rows)), key=repr
            )
            for side, rows in both.items()
        }
        for table, both in found.items()
    }


def _summed(table: str, rows: list[list[Any]]) -> list[list[Any]]:
    """Rows, those of the ledger added up by order, kind, payment method and day."""
    if table != "ledger":
        return rows
    sums: dict[tuple[Any, ...], int] = {}
    for order_id, kind, method_id, cents, day in rows:
        key = (order_id, kind, method_id, day)
        sums[key] = sums.get(key, 0) + cents
    return [[*key, cents] for key, cents in sums.items()]


def _spelled(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    words = re.sub(r"[.,#]", " ", value.casefold()).split()
    return " ".join(_STREET_WORDS.get(word, word) for word in words)
