"""Run a coroutine from plain code, and stop it properly when the user has had enough.

It runs on the process's background loop, so that connections and environments outlive the call and
that it works where a loop already runs (notebooks). Ctrl-C waits until everything is cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentgym.sync import run_on_background_loop

T = TypeVar("T")
_CLEAN_UP_S = 30.0


def run_to_completion(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and return its result.

    Raises:
        KeyboardInterrupt: On Ctrl-C, once the coroutine has been cancelled and has cleaned up.
    """
    started = threading.Event()
    over = threading.Event()

    async def tracked() -> T:
        started.set()
        try:
            return await coroutine
        finally:
            over.set()

    try:
        return run_on_background_loop(tracked())
    except BaseException:
        if started.is_set():
            over.wait(_CLEAN_UP_S)
        else:
            coroutine.close()
        raise
