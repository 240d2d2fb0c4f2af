"""A quirky server, and clients of it that don't wait between attempts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentgym.client import Endpoint
from agentgym.clients.chat import ChatClient
from agentgym.testing.quirky import QuirkyServer, answer


class Clock:
    """Real time, plus what was slept through at once."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return time.monotonic() + sum(self.pauses)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
async def server() -> AsyncIterator[QuirkyServer]:
    async with QuirkyServer(answer()) as found:
        yield found


@pytest.fixture
async def make_client(server: QuirkyServer) -> AsyncIterator[Callable[..., ChatClient]]:
    """Makes clients of the server; `client.pauses` lists what they would have waited."""
    made: list[ChatClient] = []

    def make(**fields: Any) -> ChatClient:
        clock = Clock()
        endpoint = Endpoint(**{"base_url": server.url, "model": "m", **fields})
        client = ChatClient(endpoint, sleep=clock.sleep, clock=clock)
        client.pauses = clock.pauses  # type: ignore[attr-defined]
        made.append(client)
        return client

    yield make
    for client in made:
        await client.aclose()


@pytest.fixture
def reply() -> Callable[..., dict[str, Any]]:
    """Makes good replies."""
    return answer
