"""Reasoning that a server wants back in the later prompts of the conversation it belongs to.

The conversation itself never holds it (a judge, a simulator or a template would see it), so the
client keeps it: by session, and by the place in the conversation at which the answer will stand.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.client import Completion, Dialect
from agentgym.types import Message


class KeptReasoning:
    """The reasoning of the sessions in progress.

    Args:
        dialect: Whether it is replayed, and in which field.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._field = dialect.replay_reasoning
        self._sessions: dict[str, dict[int, tuple[str, str]]] = {}

    def put_back(self, session: str | None, messages: Sequence[Message]) -> Sequence[Message]:
        """The conversation with each answer's reasoning beside it.

        A message that is no longer the answer that was given, since the conversation was shortened
        or changed, gets none.
        """
        known = self._sessions.get(session, {}) if session is not None else {}
        if not known:
            return messages
        restored = list(messages)
        for place, (answer, reasoning) in known.items():
            if place < len(restored) and _said(restored[place]) == answer:
                restored[place] = {**restored[place], self._field: reasoning}
        return restored

    def keep(
        self, session: str | None, messages: Sequence[Message], completion: Completion
    ) -> None:
        """Remember the reasoning behind the answer to a conversation."""
        if self._field != "never" and session is not None and completion.reasoning:
            answers = self._sessions.setdefault(session, {})
            answers[len(messages)] = (_said(completion.message), completion.reasoning)

    def forget(self, session: str) -> None:
        """Drop what is known of a session."""
        self._sessions.pop(session, None)


def _said(message: Message) -> str:
    """What identifies an answer, whichever way its ids and arguments are written since."""
    calls = message.get("tool_calls") or ()
    names = [str((call.get("function") or {}).get("name")) for call in calls]
    return "\n".join([str(message.get("role")), str(message.get("content") or "").strip(), *names])
