"""Reasoning that a server wants back in the later prompts of the conversation it belongs to.

The conversation itself never holds it (a judge, a simulator or a template would see it), so the
client keeps it: by session, and by the place in the conversation at which the answer will stand.
Whoever plays episodes releases their sessions; a simulator's client learns of no episode's end, so
the sessions that were asked for longest ago are forgotten at some point.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from agentgym.client import Completion, Dialect
from agentgym.types import Message

_MOST_SESSIONS = 4096
"""More than are in progress at once; without a bound, a run of days would keep every one."""


class KeptReasoning:
    """The reasoning of the sessions in progress.

    Args:
        dialect: Whether it is replayed, and in which field.
        before: What was kept in the process that this one was forked from.
    """

    def __init__(self, dialect: Dialect, before: KeptReasoning | None = None) -> None:
        self._field = dialect.replay_reasoning
        # Reentrant: the garbage collector may end an episode, and so release it, in here.
        self._lock = threading.RLock()
        self._sessions: OrderedDict[str, dict[int, tuple[str, str]]] = OrderedDict(
            before._sessions if before is not None else ()
        )

    def put_back(self, session: str | None, messages: Sequence[Message]) -> Sequence[Message]:
        """The conversation with each answer's reasoning beside it.

        A message that is no longer the answer that was given, since the conversation was shortened
        or changed, gets none.
        """
        if self._field == "never" or session is None:
            return messages
        with self._lock:
            known = dict(self._sessions.get(session, {}))
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
            said = _said(completion.message), completion.reasoning
            with self._lock:
                self._sessions.setdefault(session, {})[len(messages)] = said
                self._sessions.move_to_end(session)
                if len(self._sessions) > _MOST_SESSIONS:
                    self._sessions.popitem(last=False)

    def forget(self, session: str) -> None:
        """Drop what is known of a session."""
        with self._lock:
            self._sessions.pop(session, None)


def _said(message: Message) -> str:
    """What identifies an answer, whichever way its ids and arguments are written since."""
    calls = message.get("tool_calls") or ()
    names = [str((call.get("function") or {}).get("name")) for call in calls]
    return "\n".join([str(message.get("role")), str(message.get("content") or "").strip(), *names])
