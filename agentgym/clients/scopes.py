"""Calls in flight, by event loop, so that closing a client ends them."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from agentgym.errors import EndpointError


class Scopes:
    """The calls of one client.

    Args:
        owner: The client, as its errors name it.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, set[asyncio.Timeout]] = {}

    def one(self) -> _Scope:
        """The time of one call, in an `async with`, which `aclose` ends with an `EndpointError`."""
        return _Scope(self._here(), self._owner)

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


class _Scope:
    """A time-out that only closing sets off."""

    __slots__ = ("_others", "_owner", "_timeout")

    def __init__(self, others: set[asyncio.Timeout], owner: str) -> None:
        self._others = others
        self._owner = owner
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._others.add(self._timeout)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._others.discard(self._timeout)
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as over:
            raise EndpointError(
                f"{self._owner}: the client was closed while this call was in flight",
                retryable=False,
            ) from over
