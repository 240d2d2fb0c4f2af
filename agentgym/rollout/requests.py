"""Where the requests of a run come from: a list, an iterator, or an asynchronous source."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from typing import TypeAlias

from pydantic import BaseModel

from agentgym.errors import ConfigError
from agentgym.rollout.request import EpisodeRequest

Requests: TypeAlias = Iterable[EpisodeRequest] | AsyncIterable[EpisodeRequest]
"""Episodes to play; an asynchronous source may wait for its next one without holding up others."""


class Source:
    """Requests, one after the other.

    Args:
        first: Come before the others.
        requests: Of either kind; taken from only as far as they are needed.

    Raises:
        ConfigError: If they are neither; so does whatever takes from them, if one is no request.
    """

    def __init__(self, first: Sequence[EpisodeRequest], requests: Requests) -> None:
        self._ahead = deque(first)
        self._is_over = False
        self._is_list = isinstance(requests, Sized)
        self._ready: Iterator[EpisodeRequest] | None = None
        self._waiting: AsyncIterator[EpisodeRequest] | None = None
        if isinstance(requests, AsyncIterable):
            self._waiting = aiter(requests)
        elif _is_one_thing(requests):
            raise ConfigError(
                f"requests must be a list of EpisodeRequest, or another iterable, "
                f"got {requests!r:.200}"
            )
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

    def never_to_come(self) -> tuple[list[EpisodeRequest], bool]:
        """What would have come, and whether that is all: nobody knows it of an iterator."""
        if not self._is_list or self._ready is None:
            return self.taken(), self._is_over
        rest = [] if self._is_over else [_checked(request) for request in self._ready]
        return [*self.taken(), *rest], True

    async def next(self) -> EpisodeRequest | None:
        """The next one; None at the end."""
        if self._ahead:
            return self._ahead.popleft()
        if self._is_over:
            return None
        if self._ready is not None:
            return self._take(self._ready)
        assert self._waiting is not None
        try:
            return _checked(await anext(self._waiting))
        except StopAsyncIteration:
            return None

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
        while missing and (next_one := self._take(self._ready)) is not None:
            self._ahead.append(next_one)
            _count(next_one, missing)
        self._is_over = True

    def _take(self, ready: Iterator[EpisodeRequest]) -> EpisodeRequest | None:
        for request in ready:
            return _checked(request)
        return None


def _is_one_thing(given: object) -> bool:
    """Whether it is no list of anything, though some such things can be iterated over."""
    return not isinstance(given, Iterable) or isinstance(given, BaseModel | str | Mapping)


def _checked(request: object) -> EpisodeRequest:
    if isinstance(request, EpisodeRequest):
        return request
    raise ConfigError(
        f"each request must be an EpisodeRequest, such as EpisodeRequest(seed=1) or "
        f"EpisodeRequest(task_id=…), got {request!r:.200}"
    )


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
