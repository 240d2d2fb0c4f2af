"""Telling a client in this process what becomes of its servers during a sync."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from agentgym.client import Endpoint
from agentgym.clients import BalancedClient
from agentgym.sync import run_on_background_loop
from agentgym.train.sync.admin import ServerFault, root_of

_LEAVING_S = 10.0
"""How long a server that comes back is waited for while it is still leaving, seconds."""


class ClientListener:
    """Keeps a `BalancedClient` in step with the servers.

    A server that is held gets nothing new, and the wait is no call's time. One that is lost is
    removed, and its calls go to the others; once it is synced again it is added again.

    Args:
        client: Who sends the requests.
    """

    def __init__(self, client: BalancedClient) -> None:
        self._client = client
        self._leaving: dict[str, asyncio.Task[None]] = {}

    def holding(self, server: Endpoint) -> None:
        """Send it nothing new."""
        if server.base_url not in self._leaving:
            self._client.pause(server.base_url)

    def synced(self, server: Endpoint, *, version: str, model: str | None) -> None:
        """Let completions carry the new version, and send requests again."""
        leaving = self._leaving.get(server.base_url)
        if leaving is None:
            self._client.set_weight_version(server.base_url, version)
            self._client.resume(server.base_url)
            return
        if not run_on_background_loop(_ends(leaving)):
            raise ServerFault(
                f"{root_of(server)} is back, and requests it had before have not ended yet"
            )
        del self._leaving[server.base_url]
        self._client.add(server, weight_version=version)

    def lost(self, server: Endpoint, why: str) -> None:
        """Send it nothing, and what it has to the others."""
        if server.base_url not in self._leaving:
            removal = self._client.remove(server.base_url, drain=False)
            # Not waited for: requests in a loop that stands still end when it goes on.
            self._leaving[server.base_url] = run_on_background_loop(_begin(removal))


async def _begin(removal: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(removal)


async def _ends(task: asyncio.Task[None]) -> bool:
    """Whether a task ends soon."""
    done, _ = await asyncio.wait({task}, timeout=_LEAVING_S)
    return bool(done)
