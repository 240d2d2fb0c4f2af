"""How far behind the weights an episode may be, and how many may be begun so that few are wasted.

Where rollouts overlap with training, an episode begun under version `v` is trained on at some later
version. Beyond `v + max_versions` it says too little about the policy of the day, so it is dropped:
masked, counted, never trained on. Dropping is waste, and it is prevented where it arises: no more
than `(max_versions + 1) * batch` episodes are begun and not yet trained on. If batches take the
oldest first, the last of those is trained on `max_versions` later at the latest, and nothing is
dropped; what overtakes, or takes longer than that, is all that can be.

Source of the admission rule: AReaL, arXiv:2505.24298, equation 3, counted from what is outstanding.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import Field

from agentgym.errors import TrainingError
from agentgym.trace import Trace
from agentgym.types import Record

K = TypeVar("K", bound=Hashable)


class Staleness(Record):
    """How far behind an episode may be."""

    max_versions: int = Field(default=1, ge=0)
    """Weight versions between an episode's beginning and its training step; 0 is on-policy."""


@dataclass(frozen=True)
class Taken(Generic[K]):
    """What a training step gets."""

    fresh: tuple[K, ...]
    """To be trained on; the oldest first."""
    stale: tuple[K, ...]
    """Dropped since the last time: too old."""


class Admission(Generic[K]):
    """Which episodes may begin, and which may be trained on.

    Not thread-safe, and knows no clock: it is told what happens.

    Args:
        bound: How far behind an episode may be.
        batch: Episodes of one training step.
        version: Weight syncs so far.

    Examples:
        >>> admission = Admission(Staleness(max_versions=1), batch=2)
        >>> [admission.begin(episode) for episode in "abcd"], admission.room
        ([0, 0, 0, 0], 0)
        >>> for episode in "ab":
        ...     admission.finish(episode)
        >>> admission.take().fresh
        ('a', 'b')
        >>> admission.synced()
        >>> admission.room
        2
    """

    def __init__(self, bound: Staleness, *, batch: int, version: int = 0) -> None:
        if batch < 1:
            raise TrainingError(f"a batch has at least 1 episode, got {batch}")
        self.version = version
        self.dropped = 0
        """Episodes that were too old."""
        self.trained = 0
        self._bound = bound
        self._batch = batch
        self._playing: dict[K, int] = {}
        self._ready: dict[K, int] = {}

    @property
    def room(self) -> int:
        """How many episodes may begin now."""
        most = (self._bound.max_versions + 1) * self._batch
        return max(0, most - len(self._playing) - self.ready)

    @property
    def ready(self) -> int:
        """Episodes that are over and may be trained on now."""
        return sum(map(self._is_fresh, self._ready.values()))

    def begin(self, key: K) -> int:
        """An episode begins, with the weights of now.

        Returns:
            Their version.

        Raises:
            TrainingError: If there is no room for it, or it has begun already.
        """
        if key in self._playing or key in self._ready:
            raise TrainingError(f"episode {key!r} has begun already")
        if not self.room:
            raise TrainingError(
                f"no further episode may begin: {len(self._playing)} are playing and {self.ready} "
                f"wait to be trained on, {self._bound.max_versions} versions behind at most"
            )
        self._playing[key] = self.version
        return self.version

    def finish(self, key: K) -> None:
        """An episode is over and waits for its training step."""
        self._ready[key] = self._playing.pop(key)

    def abandon(self, key: K) -> None:
        """An episode will not be trained on: cancelled, or without a reward."""
        if self._playing.pop(key, None) is None:
            self._ready.pop(key, None)

    def take(self) -> Taken[K]:
        """Take what a training step gets, and drop what is too old for any."""
        stale = tuple(key for key, begun in self._ready.items() if not self._is_fresh(begun))
        for key in stale:
            del self._ready[key]
        # Sorting keeps the order in which those of one version finished.
        oldest = sorted(self._ready, key=self._ready.__getitem__)
        fresh = tuple(oldest[: self._batch])
        for key in fresh:
            del self._ready[key]
        self.dropped += len(stale)
        self.trained += len(fresh)
        return Taken(fresh, stale)

    def synced(self) -> None:
        """The servers have new weights."""
        self.version += 1

    def _is_fresh(self, begun: int) -> bool:
        return self.version - begun <= self._bound.max_versions


def oldest_version(trace: Trace) -> int | None:
    """The oldest weights that any token of an episode is from; None if any turn's are unknown.

    Args:
        trace: Of versions that are numbers, `7`, or `7->8` where they changed within a turn.
    """
    versions = [(turn.weight_version or "").partition("->")[0] for turn in trace.turns]
    if not versions or not all(version.isdecimal() for version in versions):
        return None
    return min(map(int, versions))
