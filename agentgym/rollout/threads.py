"""Blocking code beside an event loop, in daemon threads.

A thread pool would lose a worker to every call that hangs, and would keep the process from ending;
a daemon thread that outlives its caller is simply left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_abandoned: set[object] = set()
_lock = threading.Lock()


def abandoned() -> int:
    """Calls of this process that nobody waits for any more, and whose threads still go on."""
    return len(_abandoned)


async def in_thread(
    function: Callable[[], T], *, unwanted: Callable[[T], object] | None = None
) -> T:
    """Run a blocking function in a thread of its own, with the caller's context variables.

    If the caller is cancelled it returns at once; the thread goes on and its result is dropped.

    Args:
        function: What to run.
        unwanted: Gets a result that comes too late, to free what it holds; also runs in a thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    over = threading.Event()

    def drop(result: T) -> None:
        if unwanted is not None:
            _start(lambda: unwanted(result))

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        elif error is None:
            drop(result)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # carried over to the caller
            error = raised
            if isinstance(raised, StopIteration):  # a future can't carry it
                error = RuntimeError(f"StopIteration: {raised}")
        with _lock:
            over.set()
            _abandoned.discard(over)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    _start(work)
    try:
        return await future
    except asyncio.CancelledError:
        with _lock:
            if not over.is_set():
                _abandoned.add(over)
        # Cancelled between the result and this coroutine's turn to take it.
        if future.done() and not future.cancelled() and future.exception() is None:
            drop(future.result())
        raise


def _start(work: Callable[[], object]) -> None:
    threading.Thread(target=work, name="rollout-blocking", daemon=True).start()
