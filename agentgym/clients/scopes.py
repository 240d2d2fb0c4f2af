"""Calls in flight, by event loop, so that closing a client ends them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import TypeVar

from agentgym.errors import EndpointError

Result = TypeVar("Result")


class Scopes:
    """The calls of one client.

    Args:
        owner: The client, as its errors name it.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, set[asyncio.Timeout]] = {}

    async def bound(self, work: Awaitable[Result]) -> Result:
        """Wait for a call's work, which `aclose` ends.

        Raises:
            EndpointError: If the client was closed meanwhile.
        """
        scopes = self._here()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                scopes.add(scope)
                return await work
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise EndpointError(
                f"{self._owner}: the client was closed while this call was in flight",
                retryable=False,
            ) from error
        finally:
            scopes.discard(scope)

    async def aclose(self) -> None:
        """End the running loop's calls with an error."""
        loop = asyncio.get_running_loop()
        scopes = self._here()
        if not scopes:
            return
        for scope in scopes:
            scope.reschedule(loop.time())
        # Each needs one round to be cancelled and one to raise.
        for _ in range(3):
            await asyncio.sleep(0)

    def _here(self) -> set[asyncio.Timeout]:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            with self._lock:
                for old in [old for old in self._by_loop if old.is_closed()]:
                    del self._by_loop[old]
                found = self._by_loop.setdefault(loop, set())
        return found
