"""One thread for one environment that must always be touched from the same thread.

A browser, a database handle or a simulator's window often belongs to the thread that made it. So
such an environment is made, stepped and closed by one thread of its own, in the order asked for. A
call that hangs can't be ended from outside: its thread is left behind, and tidies up itself should
the call ever return.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class SessionThread:
    """A daemon thread that runs one function after another.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._working = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def working(self) -> bool:
        """Whether it is in a function right now."""
        return self._working

    @property
    def alive(self) -> bool:
        """Whether the thread still exists."""
        return self._thread.is_alive()

    async def run(self, function: Callable[[], T]) -> T:
        """Run a blocking function on the thread, with the caller's context variables.

        If the caller is cancelled it returns at once; the function goes on and its result is
        dropped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(function)
            except BaseException as raised:  # carried over to the caller
                error = raised
                if isinstance(raised, StopIteration):  # a future can't carry it
                    error = RuntimeError(f"StopIteration: {raised}")
            self._working = False  # before the caller hears of it, who may ask
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        self._work.put(work)
        return await future

    def stop(self, last: Callable[[], object] | None = None) -> None:
        """End the thread once it has done what it was asked for.

        Args:
            last: Something to do before, whose outcome nobody waits for.
        """
        if last is not None:
            self._work.put(last)
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._working = True
            work()
            self._working = False
