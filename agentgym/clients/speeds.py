"""Servers that are slower than others, and episodes that are better off leaving them.

Replicas of one policy may run on different machines, or share theirs. While every server has more
to do than it can, that takes care of itself: calls that wait go to whoever has a free slot. But
towards the end of a run, when nobody waits any more, an episode that stays where its prefix is
stays on a slow server for all its turns, and the longest episode is what a run waits for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from agentgym.clients.pace import Pace

FASTER_PAYS = 1.5
"""How many times as fast another server has to be, the reading of the prefix included, for an
episode to move there. Answers take as long as they take by chance, too."""
_ENOUGH_ANSWERS = 16
_RECENT = 16
_MOST = 8.0
"""One answer counts for no more: it says more about a hiccup than about the server."""


class Speed:
    """How long one server's answers take, as a multiple of what they take on the average one."""

    def __init__(self) -> None:
        self.slowness = 1.0
        self._answers = 0

    @property
    def is_known(self) -> bool:
        """Whether there were enough answers to tell."""
        return self._answers >= _ENOUGH_ANSWERS

    def beats(self, other: Speed) -> bool:
        """Whether it is so much faster that an episode might move for it."""
        return self.slowness * FASTER_PAYS < other.slowness

    def learn(self, seconds: float, *, expected_s: float) -> None:
        """Take in an answer.

        Args:
            seconds: What it took.
            expected_s: What it would have taken on the average server.
        """
        if expected_s > 0:
            self._answers += 1
            self.slowness += (min(_MOST, seconds / expected_s) - self.slowness) / _RECENT


class _Server(Protocol):
    speed: Speed

    def load(self, turn_tokens: float) -> float: ...


Server = TypeVar("Server", bound=_Server)


def sooner(
    home: Server, others: Iterable[Server], *, known_tokens: int, pace: Pace
) -> Server | None:
    """The server that answers an episode's next turn clearly sooner than its own, if there is one.

    Args:
        home: Its own, which has a free slot.
        others: Those that have one, too.
        known_tokens: What `home` has cached, and another one has to read first.
        pace: The average server's.
    """
    faster = [o for o in others if o.speed.beats(home.speed) and o.speed.is_known]
    if not faster or not home.speed.is_known:
        return None
    best = min(faster, key=lambda other: (other.speed.slowness, other.load(pace.turn_tokens)))
    there_s = best.speed.slowness * (pace.turn_s + pace.prefill_s(known_tokens))
    return best if FASTER_PAYS * there_s < home.speed.slowness * pace.turn_s else None
