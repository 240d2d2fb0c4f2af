"""Servers for tests, on whichever side of an event loop the test is."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import Any, Self


class LoopbackServer(ABC):
    """A server that runs inside `async with`, on the running loop, or `with`, on a thread's."""

    _thread: _LoopThread | None = None

    @abstractmethod
    async def start(self) -> None:
        """Listen."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop listening."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self._thread = _LoopThread()
        self._thread.run(self.start())
        return self

    def __exit__(self, *exc: object) -> None:
        if self._thread is not None:
            self._thread.run(self.stop())
            self._thread.end()
            self._thread = None


class _LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        """The result of a coroutine, run over there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def end(self) -> None:
        """Stop the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
