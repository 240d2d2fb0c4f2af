"""Conversations as they are sent, each message of an episode written as JSON once.

A conversation grows by two messages or so from turn to turn. Writing all of it each time makes the
work of an episode quadratic in its length, and for long ones most of what a request costs. So what
was written is kept by session and used again wherever the message is still the same. "The same" is
what is written the same way: `==` takes 1 for True and 1.0, and knows no order of keys; and nothing
keeps a caller from changing a message where it stands. So what is compared are prints of values.
"""

from __future__ import annotations

import marshal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from agentgym.client import Dialect
from agentgym.clients.wire import replayed, sent_fields, written
from agentgym.clients.written import Written
from agentgym.types import Message, ToolSpec

_MOST_BYTES = 256 << 20
_MOST_TOOL_LISTS = 16
_STALE_S = 600.0
_PRINT_BYTES = 200
"""About what a message's print takes beside its texts, which it shares."""

_Print: TypeAlias = str | bytes | None


class _Conversation:
    """One session's messages and their JSON."""

    __slots__ = ("pieces", "prints", "size", "used_at")

    def __init__(self) -> None:
        self.prints: list[tuple[_Print, ...] | None] = []
        """Of what is sent of each message; None where nothing tells whether it has changed."""
        self.pieces: list[bytes] = []
        self.size = 0
        self.used_at = 0.0


class Prompts:
    """What was written of the sessions in progress.

    Args:
        dialect: How messages are sent.
        clock: Seconds, rising.
    """

    def __init__(self, dialect: Dialect, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._dialect = dialect
        self._fields = sent_fields(dialect)
        self._clock = clock
        self._sessions: OrderedDict[str, _Conversation] = OrderedDict()
        self._size = 0
        self._tools: OrderedDict[_Print, Written] = OrderedDict()
        # Reentrant: the garbage collector may end an episode, and so release it, in here.
        self._lock = threading.RLock()

    def messages(self, session: str | None, messages: Sequence[Message]) -> Written:
        """A conversation as JSON.

        Args:
            session: Whose; None keeps nothing.
            messages: All of it.

        Raises:
            BadReply: If it can't be written as JSON.
        """
        if session is None:
            return _listed([self._write(message) for message in messages])
        with self._lock:
            kept = self._taken(session)
            try:
                self._renew(kept, messages)
                return _listed(kept.pieces)
            finally:
                self._put_back(session, kept)

    def tools(self, tools: Sequence[ToolSpec]) -> Written:
        """A tool list as JSON; environments give the same one to thousands of episodes.

        Raises:
            BadReply: If it can't be written as JSON.
        """
        listed = list(tools)
        try:
            print_ = _print_of(listed)
        except ValueError:
            return Written([written(listed)])
        with self._lock:
            text = self._tools.get(print_)
            if text is None:
                text = self._tools[print_] = Written([written(listed)])
                if len(self._tools) > _MOST_TOOL_LISTS:
                    self._tools.popitem(last=False)
            else:
                self._tools.move_to_end(print_)
            return text

    def forget(self, session: str) -> None:
        """Drop what is kept of a session."""
        with self._lock:
            self._taken(session)

    def _write(self, message: Message) -> bytes:
        return written(replayed(message, self._dialect))

    def _renew(self, kept: _Conversation, messages: Sequence[Message]) -> None:
        """Write what is new or has changed."""
        for place, message in enumerate(messages):
            prints = self._prints(message)
            if place < len(kept.prints):
                if prints is not None and kept.prints[place] == prints:
                    continue
                del kept.prints[place:], kept.pieces[place:]
            kept.pieces.append(self._write(message))
            kept.prints.append(prints)
        del kept.prints[len(messages) :], kept.pieces[len(messages) :]

    def _prints(self, message: Message) -> tuple[_Print, ...] | None:
        try:
            values = [message.get(field) for field in self._fields]
            # Asked in place, since most are text and all of a conversation is asked at every turn.
            return tuple([v if v is None or type(v) is str else _print_of(v) for v in values])
        except ValueError:
            return None

    def _taken(self, session: str) -> _Conversation:
        kept = self._sessions.pop(session, None) or _Conversation()
        self._size -= kept.size
        return kept

    def _put_back(self, session: str, kept: _Conversation) -> None:
        now = self._clock()
        kept.size = sum(map(len, kept.pieces)) + _PRINT_BYTES * len(kept.pieces)
        kept.used_at = now
        self._size += kept.size
        self._sessions[session] = kept
        while self._size > _MOST_BYTES or self._oldest().used_at < now - _STALE_S:
            self._size -= self._sessions.popitem(last=False)[1].size
            if not self._sessions:
                return

    def _oldest(self) -> _Conversation:
        return next(iter(self._sessions.values()))


def _listed(items: Sequence[bytes]) -> Written:
    pieces = [b","] * (2 * len(items) + 1)
    pieces[1::2] = items
    pieces[0], pieces[-1] = b"[", b"]"
    return Written(pieces if items else [b"[]"])


def _print_of(value: Any) -> _Print:
    """What two values have in common only where they are written the same way.

    Raises:
        ValueError: If there is no such thing: it is no plain value, or nested too deeply.
    """
    # Version 2 writes no references, so equal values make equal bytes.
    return value if value is None or isinstance(value, str) else marshal.dumps(value, 2)
