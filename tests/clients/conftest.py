"""A real HTTP server on the loopback interface that answers from a list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from agentgym.client import Endpoint
from agentgym.clients.chat import ChatClient

GOOD_USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}


class ListServer:
    """Answers the k-th request with the k-th reply, the last one for ever.

    A reply is a body (dict), `(status, body)`, `(status, body, headers)`, raw text, or a function
    of the request's body that returns one of these.
    """

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.queries: list[dict[str, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()
        self.url = ""
        self.stop: Callable[[], Awaitable[None]]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            body = await request.json()
            number = len(self.requests)
            self.requests.append(body)
            self.headers.append(dict(request.headers))
            self.queries.append(dict(request.query))
            self.asked.set()
            if self.gate is not None:
                await self.gate.wait()
            reply = self.replies[min(number, len(self.replies) - 1)]
            if isinstance(reply, Callable):
                reply = reply(body)
        finally:
            self.in_flight -= 1
        status, headers = 200, {}
        if isinstance(reply, tuple):
            status, reply, headers = (*reply, {})[:3]
        if isinstance(reply, str):
            return web.Response(status=status, text=reply, headers=headers)
        return web.Response(
            status=status,
            text=json.dumps(reply),
            content_type="application/json",
            headers=headers,
        )


@pytest.fixture
async def server() -> AsyncIterator[ListServer]:
    found = ListServer()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", found.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    found.stop = runner.cleanup
    found.url = f"http://127.0.0.1:{port}/v1"
    yield found
    if found.gate is not None:
        found.gate.set()
    await runner.cleanup()


@pytest.fixture
async def make_client(server: ListServer) -> AsyncIterator[Callable[..., ChatClient]]:
    """Makes clients of the server that don't wait between attempts."""
    made: list[ChatClient] = []

    def make(**fields: Any) -> ChatClient:
        options = {key: fields.pop(key) for key in ("send_tools", "send_seed") if key in fields}
        pauses: list[float] = []

        async def no_sleep(seconds: float) -> None:
            pauses.append(seconds)

        endpoint = Endpoint(**{"base_url": server.url, "model": "m", **fields})
        client = ChatClient(endpoint, sleep=no_sleep, **options)
        client.pauses = pauses  # type: ignore[attr-defined]
        made.append(client)
        return client

    yield make
    for client in made:
        await client.aclose()


@pytest.fixture
def reply() -> Callable[..., dict[str, Any]]:
    """Makes good replies."""

    def make(content: Any = "hello", *, usage: Any = GOOD_USAGE, **choice: Any) -> dict[str, Any]:
        message = {"role": "assistant", "content": content, **choice.pop("message", {})}
        body = {
            "id": "r",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}],
        }
        if usage != "missing":
            body["usage"] = usage
        return body

    return make
