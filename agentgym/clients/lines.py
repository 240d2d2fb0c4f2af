"""Calls that wait for a server: in the order of their tickets, and free to leave at any time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentgym.clients.reply import BadReply
from agentgym.clients.waiting import Wake

if TYPE_CHECKING:
    from agentgym.clients.replicas import Seat
    from agentgym.clients.sessions import Session


class Waiter:
    """One call in a line.

    Args:
        ticket: Its place; smaller ones go first.
        session: Its episode.
        prompt_tokens: As estimated.
        most_tokens: Output tokens allowed.
    """

    __slots__ = (
        "failure",
        "has_left",
        "line",
        "most_tokens",
        "prompt_tokens",
        "seat",
        "session",
        "ticket",
        "wake",
    )

    def __init__(
        self, ticket: int, session: Session | None, *, prompt_tokens: int, most_tokens: float
    ) -> None:
        self.ticket = ticket
        self.session = session
        self.prompt_tokens = prompt_tokens
        self.most_tokens = most_tokens
        self.wake = Wake()
        self.seat: Seat | None = None
        self.failure: BadReply | None = None
        self.line: Line | None = None
        self.has_left = False


class Line:
    """Calls in the order of their tickets. Leaving it costs nothing: who has left is skipped."""

    _order = itertools.count()

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiter]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiter]:
        return (waiter for _, _, waiter in self._heap if waiter.line is self)

    def push(self, waiter: Waiter) -> None:
        """Put a call in its place."""
        waiter.line = self
        self._count += 1
        heapq.heappush(self._heap, (waiter.ticket, next(self._order), waiter))

    def first(self) -> Waiter | None:
        """Whose turn it is."""
        heap = self._heap
        while heap and heap[0][-1].line is not self:
            heapq.heappop(heap)
        return heap[0][-1] if heap else None

    def leave(self, waiter: Waiter) -> None:
        """Take a call out, wherever it stands."""
        if waiter.line is self:
            waiter.line = None
            self._count -= 1
            if not self._count:
                self._heap.clear()
