"""Somebody else's coroutine, from which one can get away.

A tool, an environment, a client or a judge may swallow its cancellation (`except BaseException`, a
bare `except:` around an await) and never come back. Whoever awaited it would hold its slot forever,
and a batch that is stopped would never end. So such code runs in a task of its own: told to stop,
it has a grace, is told again, and is then left behind, counted and without its slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Generic, TypeVar

from agentgym.deadline import Deadline

logger = logging.getLogger(__name__)
T = TypeVar("T")

_TELLINGS = 4
"""Times a task is told to stop within its grace: it may swallow one and await the next thing."""

_strays: set[asyncio.Task[Any]] = set()


def strays() -> int:
    """Tasks of this process that were told to stop, didn't, and still go on."""
    return len(_strays)


class LeftBehind(Exception):
    """The work went on after it had been told to stop, so nobody waits for it any more."""


async def on_leash(
    work: Coroutine[Any, Any, T],
    *,
    name: str,
    grace_s: float,
    deadline: Callable[[], Deadline | None],
) -> T:
    """Await work that may not let go.

    Args:
        work: What to await.
        name: What to call it in the log.
        grace_s: How long it may go on after it was told to stop, by a deadline of its own or
            because the caller is cancelled, seconds.
        deadline: Its deadline at the moment.

    Raises:
        LeftBehind: If it goes on though its deadline is over.
        asyncio.CancelledError: If the caller is cancelled; the work then has ended, or is left
            behind, too.
    """
    leash = _Leash(work, grace_s, deadline)
    task = leash.task
    try:
        await leash.let_go
    except BaseException:
        await _stop(task, name, grace_s)
        raise
    finally:
        leash.look_again.cancel()
    if task.done():
        return task.result()
    _leave_behind(task, name, grace_s)
    raise LeftBehind(f"did not stop within {grace_s:g} s")


def begin_task(
    tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None], context: Context | None = None
) -> None:
    """Begin work in a task group; in one that is being stopped there is nothing more to do.

    Args:
        tasks: The group.
        work: What to do.
        context: Whose meters and threads it has; None: the caller's.
    """
    try:
        tasks.create_task(work, context=context)
    except RuntimeError:  # the group's refusal
        work.close()


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that must not be broken off: a cancellation of the caller waits for its end.

    Args:
        work: Has deadlines of its own.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


class _Leash(Generic[T]):
    """Looks at a task now and then, for as long as it goes on."""

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        grace_s: float,
        deadline: Callable[[], Deadline | None],
    ) -> None:
        self._grace_s = grace_s
        self._deadline = deadline
        self._late: Deadline | None = None
        self._loop = asyncio.get_running_loop()
        self.let_go: asyncio.Future[None] = self._loop.create_future()
        """Done when the task is, or when it is late by the grace."""
        self.task = self._loop.create_task(work)
        self.task.add_done_callback(self._end)
        self.look_again = self._loop.call_later(grace_s, self._look)

    def _look(self) -> None:
        current = self._deadline()
        is_late = current is not None and current.is_over
        if is_late and current is self._late:
            self._end()
            return
        self._late = current if is_late else None
        self.look_again = self._loop.call_later(self._grace_s, self._look)

    def _end(self, _: asyncio.Future[T] | None = None) -> None:
        if not self.let_go.done():
            self.let_go.set_result(None)


async def _stop(task: asyncio.Task[Any], name: str, grace_s: float) -> None:
    """Cancel a task and wait for its end, for so long."""
    for _ in range(_TELLINGS):
        task.cancel()
        try:
            await asyncio.wait((task,), timeout=grace_s / _TELLINGS)
        except asyncio.CancelledError:
            continue  # told again ourselves: go on telling it
        if task.done():
            if not task.cancelled():
                task.exception()  # seen: the caller's own error matters more
            return
    _leave_behind(task, name, grace_s)


def _leave_behind(task: asyncio.Task[Any], name: str, grace_s: float) -> None:
    logger.warning("%s went on %g s after it had been told to stop; left behind", name, grace_s)
    _strays.add(task)
    task.add_done_callback(_came_back)
    task.cancel()


def _came_back(task: asyncio.Task[Any]) -> None:
    _strays.discard(task)
    if not task.cancelled():
        task.exception()
