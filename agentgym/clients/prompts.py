"""Conversations as they are sent, each message of an episode written as JSON once.

A conversation grows by two messages or so from turn to turn. Writing all of it each time makes the
work of an episode quadratic in its length, and for long ones most of what a request costs. So what
was written is kept by session and used again wherever the message is still the same; it is compared
with a copy, since nothing keeps a caller from changing a message where it stands.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from agentgym.client import Dialect
from agentgym.clients.wire import replayed, written
from agentgym.clients.written import Written
from agentgym.types import Message, ToolSpec

_MOST_BYTES = 256 << 20
_MOST_TOOL_LISTS = 16
_STALE_S = 600.0
_COPY_BYTES = 400
"""About what the copy of a message takes beside its texts, which it shares."""


class _Conversation:
    """One session's messages and their JSON."""

    __slots__ = ("messages", "pieces", "size", "used_at")

    def __init__(self) -> None:
        self.messages: list[Message] = []
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
        self._clock = clock
        self._sessions: OrderedDict[str, _Conversation] = OrderedDict()
        self._size = 0
        self._numbers = itertools.count()
        self._tools: OrderedDict[int, tuple[Any, Written]] = OrderedDict()
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
        with self._lock:
            for key, (known, text) in reversed(self._tools.items()):
                if known == listed:
                    self._tools.move_to_end(key)
                    return text
            text = Written([written(listed)])
            self._tools[next(self._numbers)] = (_copied(listed), text)
            if len(self._tools) > _MOST_TOOL_LISTS:
                self._tools.popitem(last=False)
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
            if place < len(kept.messages):
                if kept.messages[place] == message:
                    continue
                del kept.messages[place:], kept.pieces[place:]
            kept.pieces.append(self._write(message))
            kept.messages.append(_copied(message))
        del kept.messages[len(messages) :], kept.pieces[len(messages) :]

    def _taken(self, session: str) -> _Conversation:
        kept = self._sessions.pop(session, None) or _Conversation()
        self._size -= kept.size
        return kept

    def _put_back(self, session: str, kept: _Conversation) -> None:
        now = self._clock()
        kept.size = sum(map(len, kept.pieces)) + _COPY_BYTES * len(kept.pieces)
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


def _copied(value: Any) -> Any:
    """A copy of what JSON can hold; texts are shared."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return value
