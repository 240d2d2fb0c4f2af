"""Where the requests of a run come from: a list, an iterator, or an asynchronous source."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import TypeAlias

from agentgym.rollout.request import EpisodeRequest

Requests: TypeAlias = Iterable[EpisodeRequest] | AsyncIterable[EpisodeRequest]
"""Episodes to play; an asynchronous source may wait for its next one without holding up others."""


class Source:
    """Requests, one after the other.

    Args:
        first: Come before the others.
        requests: Of either kind; taken from only as far as they are needed.
    """

    def __init__(self, first: Sequence[EpisodeRequest], requests: Requests) -> None:
        self._ahead = deque(first)
        self._is_over = False
        self._ready: Iterator[EpisodeRequest] | None = None
        self._waiting: AsyncIterator[EpisodeRequest] | None = None
        if isinstance(requests, AsyncIterable):
            self._waiting = aiter(requests)
        else:
            self._ready = iter(requests)

    @property
    def ahead(self) -> int:
        """Those that have been taken from the caller and not given out."""
        return len(self._ahead)

    def taken(self) -> list[EpisodeRequest]:
        """What has been taken from the caller and not given out, and now won't be any more."""
        taken = list(self._ahead)
        self._ahead.clear()
        return taken

    async def next(self) -> EpisodeRequest | None:
        """The next one; None at the end."""
        if self._ahead:
            return self._ahead.popleft()
        if self._is_over:
            return None
        if self._ready is not None:
            return next(self._ready, None)
        assert self._waiting is not None
        return await anext(self._waiting, None)

    def take_ahead(self, missing: Counter[str], at_hand: EpisodeRequest | None) -> None:
        """Take all that makes the groups whole, and then nothing more, so that it is the caller's.

        An asynchronous source can't be hurried; it is taken from as before.

        Args:
            missing: Rollouts that each group lacks.
            at_hand: What has been taken already, and not begun.
        """
        if self._ready is None:
            return
        missing = Counter(missing)
        for request in (*([] if at_hand is None else [at_hand]), *self._ahead):
            _count(request, missing)
        while missing and (request_ := next(self._ready, None)) is not None:
            self._ahead.append(request_)
            _count(request_, missing)
        self._is_over = True


def _count(request: EpisodeRequest, missing: Counter[str]) -> None:
    """Take note of one that will begin; it may open a group that then is to be whole, too."""
    group = request.group
    if group is None or request.group_size is None:
        return
    left = missing[group] - 1 if group in missing else request.group_size - 1
    if left > 0:
        missing[group] = left
    else:
        missing.pop(group, None)
