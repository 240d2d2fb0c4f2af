"""Run the async core from plain code.

Most steps never wait: driving their coroutine by hand costs a microsecond and works in any thread,
inside or outside a running event loop. A step that may wait goes to one background loop per
process, which outlives every caller's own loop, so an async client made in the first step still
works in the thousandth.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner_pid = 0


def run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that never waits.

    Raises:
        RuntimeError: If it does wait; the env should then declare `awaits = True`.
    """
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    coroutine.close()
    raise RuntimeError(
        "this env awaits something but declares that it does not: set `awaits = True` on its class"
    )


def run_on_background_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion on the process's background loop.

    Raises:
        RuntimeError: If called from that very loop, where waiting would never end.
    """
    loop = _background_loop()
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        raise RuntimeError("step() was called from inside an async tool; await astep() there")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def start_on_background_loop(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the process's background loop, and don't wait for it.

    Returns:
        Its result to come; `asyncio.wrap_future` makes it awaitable on any loop.
    """
    return asyncio.run_coroutine_threadsafe(coroutine, _background_loop())


def _background_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, made on first use; a forked child makes its own."""
    global _loop, _owner_pid
    with _lock:
        if _loop is None or _owner_pid != os.getpid():
            _loop = asyncio.new_event_loop()
            _owner_pid = os.getpid()
            threading.Thread(target=_loop.run_forever, name="agentgym-loop", daemon=True).start()
        return _loop
