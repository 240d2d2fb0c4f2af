"""Whether the customer was served by the book: this desk's score for evaluations.

The reward replays the right changes in a copy of the shop and compares the two, reads consent and
promises with a vocabulary of its own, and gives partial credit. Here an auditor looks at the books
afterwards: what each order, item and account should show follows from the goal and the price list,
and whether the rules were kept is read from the conversation. No code of the verifier, the gates or
the case file is used, and there is no partial credit.
"""

from __future__ import annotations

from typing import Any

from agentgym.envs.supportdesk.audit import Books, Posting, booked, expected_of
from agentgym.envs.supportdesk.conduct import Conduct
from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.reference import Reference
from agentgym.errors import ConfigError
from agentgym.judge import Score
from agentgym.trace import Trace


def external_score(env: SupportDeskEnv, trace: Trace) -> Score:
    """1 if the books are right, the rules were kept and the customer was told, else 0.

    Args:
        env: Of the same data seed and number of tasks.
        trace: `task_id`, the turns, and the changed rows in `outcome` are read.

    Raises:
        ConfigError: If the task has no reference.
        UnknownTaskError: If the env has no such task.
    """
    reference = env.choose_task({"task_id": trace.task_id}).reference
    if not isinstance(reference, Reference):
        raise ConfigError(f"task {trace.task_id} has no reference; nothing to compare with")
    books = Books(env.table.rows)
    conduct = Conduct(trace.turns, opening=trace.messages)
    parts = {
        "books": float(_books_are_right(books, reference, trace.outcome)),
        "identified": float(conduct.identified == reference.customer_id),
        "looked_up": float(set(reference.look_up) <= conduct.looked_up),
        "consent": float(conduct.every_change_was_agreed),
        "told": float(conduct.told(reference.told)),
        "transfer": float(conduct.transfer == reference.transfer),
    }
    right = all(value == 1.0 for value in parts.values())
    return Score(total=float(right), components=parts, correct=right, completed=trace.terminated)


def _books_are_right(books: Books, reference: Reference, outcome: dict[str, Any]) -> bool:
    """Whether what was booked is what one of the right ways of serving books, and no more."""
    found: Posting = booked(outcome.get("changes", {}))
    return any(found == expected_of(books, writes) for writes in reference.outcomes)
