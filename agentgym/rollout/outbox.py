"""Finished traces on their way to whoever reads them.

A reader that is slower than the run must neither lose traces nor have them pile up without end. An
episode that is over never waits for the reader; the next one isn't begun until there is room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from agentgym.trace import Trace


class Outbox:
    """Traces that are finished and not read yet.

    Args:
        room: As many may be unread when another episode begins.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._traces: deque[Trace] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Unread traces."""
        return len(self._traces)

    @property
    def is_full(self) -> bool:
        """Whether the reader must take one before another episode may begin."""
        return len(self._traces) >= self._room and not self._closed

    def put(self, traces: Iterable[Trace]) -> None:
        """Add finished traces."""
        self._traces.extend(traces)
        self._tell()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._tell()

    async def take(self) -> Trace | None:
        """The next trace; None at the end."""
        while not self._traces:
            if self._closed:
                return None
            await self._changed.wait()
        trace = self._traces.popleft()
        self._tell()
        return trace

    async def room(self) -> None:
        """Wait until another episode may begin."""
        while self.is_full:
            await self._changed.wait()

    def _tell(self) -> None:
        """Wake whoever waits; the event is only ever set for a moment."""
        self._changed.set()
        self._changed.clear()
