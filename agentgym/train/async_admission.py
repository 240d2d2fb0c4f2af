"""When episodes may begin whose rows wait in a queue for TRL's asynchronous trainer.

That trainer drops rows that are more than `max_staleness` weight versions old when it takes them,
and what it drops was played for nothing. It takes rows in the order in which they come, so one with
too many before it is lost before it is played: such episodes don't begin.

The rule is that of `agentgym.train.sync.Admission`. How many rows a version takes isn't known
beforehand, since the trainer packs them by tokens; it is measured.
"""

from __future__ import annotations

from collections import deque

from agentgym.train.sync import Staleness

_VERSIONS = 8
"""Versions over which the trainer's pace is averaged."""


class QueueAdmission:
    """How many episodes may begin, so that the trainer takes their rows in time.

    Args:
        bound: How far behind a row may be when it is taken.
        at_first: Episodes that may begin before the trainer's pace is known.
    """

    def __init__(self, bound: Staleness, *, at_first: int) -> None:
        self._most = bound.max_versions
        self._at_first = at_first
        self._version = 0
        self._queue: deque[int] = deque()
        """The version of each row in the queue."""
        self._since = 0
        """Rows trained on since the last version."""
        self._paces: deque[tuple[int, int]] = deque(maxlen=_VERSIONS)

    @property
    def rows_per_version(self) -> float | None:
        """Rows that the trainer trains on between two versions; None while that isn't known."""
        versions = sum(count for count, _ in self._paces)
        return sum(rows for _, rows in self._paces) / versions if versions else None

    def put(self, version: int) -> None:
        """A row of an episode that began with these weights goes into the queue."""
        self._queue.append(version)

    def see(self, *, version: int, waiting: int) -> None:
        """Note where the trainer is.

        Args:
            version: Of the servers' weights.
            waiting: Rows in the queue.
        """
        while len(self._queue) > waiting:
            self._since += version - self._queue.popleft() <= self._most  # else it was dropped
        if version != self._version:
            if self._since:  # the first version comes before any row is taken
                self._paces.append((version - self._version, self._since))
            self._version, self._since = version, 0

    def room(self, playing: int) -> int:
        """How many episodes may begin now.

        Args:
            playing: Episodes that have no rows in the queue yet.
        """
        outstanding = len(self._queue) + playing
        pace = self.rows_per_version
        if pace is None:
            return max(0, self._at_first - outstanding)
        most = int((self._most + 1) * pace - min(self._since, pace))
        return max(0, most - outstanding)
