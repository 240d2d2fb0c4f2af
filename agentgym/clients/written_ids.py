"""Prompts in token ids as they are sent, each id of an episode written as JSON once.

A prompt extends the last one of its session; writing all of it each time would make the work of an
episode quadratic in its length, as for messages (`prompts`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from agentgym.clients.written import Written

_MOST_BYTES = 256 << 20
_STALE_S = 600.0


class _Prompt:
    """One session's last prompt and its JSON."""

    __slots__ = ("ids", "pieces", "size", "used_at")

    def __init__(self) -> None:
        self.ids: tuple[int, ...] = ()
        self.pieces: list[bytes] = []
        self.size = 0
        self.used_at = 0.0


class WrittenIds:
    """What was written of the sessions in progress.

    Args:
        clock: Seconds, rising.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: OrderedDict[str, _Prompt] = OrderedDict()
        self._size = 0
        # Reentrant: the garbage collector may end an episode, and so release it, in here.
        self._lock = threading.RLock()

    def of(self, session: str | None, ids: tuple[int, ...]) -> Written:
        """A prompt as JSON, without a space in it.

        Args:
            session: Whose; None keeps nothing.
            ids: All of it, shape `(P,)`.
        """
        if session is None or not ids:
            return Written([b"[", _listed(ids), b"]"])
        with self._lock:
            kept = self._taken(session)
            known = len(kept.ids)
            if not known or ids[:known] != kept.ids:
                kept.pieces = [b"[", _listed(ids)]
            elif known < len(ids):
                kept.pieces += (b",", _listed(ids[known:]))
            kept.ids = ids
            self._put_back(session, kept)
            return Written([*kept.pieces, b"]"])

    def forget(self, session: str) -> None:
        """Drop what is kept of a session."""
        with self._lock:
            self._taken(session)

    def _taken(self, session: str) -> _Prompt:
        kept = self._sessions.pop(session, None) or _Prompt()
        self._size -= kept.size
        return kept

    def _put_back(self, session: str, kept: _Prompt) -> None:
        now = self._clock()
        kept.size = sum(map(len, kept.pieces))
        kept.used_at = now
        self._size += kept.size
        self._sessions[session] = kept
        oldest = next(iter(self._sessions.values()))
        while self._size > _MOST_BYTES or oldest.used_at < now - _STALE_S:
            self._size -= self._sessions.popitem(last=False)[1].size
            if not self._sessions:
                return
            oldest = next(iter(self._sessions.values()))


def _listed(ids: tuple[int, ...]) -> bytes:
    return ",".join(map(str, ids)).encode()
