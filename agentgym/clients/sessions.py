"""Episodes: which server has their prefix, and how many of a server's are at it just now."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.clients.replicas import Replica

_MOST = 65_536
"""More than are in progress at once; those that nobody released are forgotten at some point."""
_STALE_S = 3600.0
"""One that was silent for so long counts as forgotten: no cache holds its prefix."""


class Session:
    """One episode: where its prefix is."""

    __slots__ = ("calls", "home", "is_forgotten", "known_tokens", "used_at")

    def __init__(self) -> None:
        self.home: Replica | None = None
        self.known_tokens = 0
        """Tokens that its home has cached."""
        self.calls = 0
        """In flight."""
        self.used_at = 0.0
        self.is_forgotten = False
        """Whether it was released; calls of it may still wait."""

    def move(self, home: Replica | None) -> None:
        """Have its prefix elsewhere from now on, or nowhere."""
        if self.home is home or (self.is_forgotten and home is not None):
            return
        if self.home is not None:
            self.home.sessions -= 1
            self.home.busy_sessions -= bool(self.calls)
        self.home = home
        self.known_tokens = 0
        if home is not None:
            home.sessions += 1
            home.busy_sessions += bool(self.calls)

    def forget(self) -> None:
        """It is over."""
        self.is_forgotten = True
        self.move(None)

    def count(self, change: int) -> None:
        """One more call in flight (1), or one fewer (-1)."""
        was_busy, self.calls = self.calls > 0, self.calls + change
        if self.home is not None:
            self.home.busy_sessions += (self.calls > 0) - was_busy


class Sessions:
    """The episodes in progress, by the caller's name for them."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Session] = OrderedDict()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_name.values()))

    def get(self, name: str, *, now: float) -> Session:
        """The episode of that name, a new one if there is none."""
        session = self._by_name.get(name)
        if session is None:
            session = self._by_name[name] = Session()
        else:
            self._by_name.move_to_end(name)
        session.used_at = now
        self._forget_old(now)
        return session

    def forget(self, name: str) -> None:
        """It is over."""
        session = self._by_name.pop(name, None)
        if session is not None:
            session.forget()

    def evict(self, replica: Replica) -> None:
        """Those of a server are nowhere from now on."""
        for session in self:
            if session.home is replica:
                session.move(None)

    def _forget_old(self, now: float) -> None:
        name, oldest = next(iter(self._by_name.items()))
        while len(self._by_name) > _MOST or oldest.used_at < now - _STALE_S:
            self.forget(name)
            name, oldest = next(iter(self._by_name.items()))
