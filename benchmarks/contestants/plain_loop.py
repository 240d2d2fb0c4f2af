"""Hand-written loops: `asyncio.gather` over coroutines that ask, call the tool, and ask again.

The second argument says by what they ask: `sockets` (nothing but asyncio streams, and an answer
that is only decoded), `aiohttp`, or `openai` (the SDK as it comes, without a limit of connections).
Each episode keeps to one server, the episodes are dealt out evenly.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from contest import TOOLS, Contest, measured

Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def sockets() -> AsyncIterator[Ask]:
    """Keep-alive connections that are handed from one request to the next."""
    idle: dict[str, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
        waiting = idle.setdefault(url, [])
        if waiting:
            reader, writer = waiting.pop()
        else:
            address = urlsplit(url)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"\r\n" + data)
        reply = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(reply.partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        waiting.append((reader, writer))
        return dict(answer["choices"][0]["message"])

    try:
        yield ask
    finally:
        for connections in idle.values():
            for _, writer in connections:
                writer.close()


@asynccontextmanager
async def aiohttp() -> AsyncIterator[Ask]:
    """One session without a limit of connections."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
            async with session.post(f"{url}/chat/completions", json=body) as response:
                response.raise_for_status()
                answer = await response.json()
                return dict(answer["choices"][0]["message"])

        yield ask


@asynccontextmanager
async def openai() -> AsyncIterator[Ask]:
    """One SDK client per server."""
    import httpx2
    import openai

    clients: dict[str, openai.AsyncOpenAI] = {}
    async with AsyncExitStack() as stack:

        async def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
            if url not in clients:
                limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
                http = openai.DefaultAsyncHttpxClient(limits=limits)
                clients[url] = openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http)
                stack.push_async_callback(clients[url].close)
            reply = await clients[url].chat.completions.create(**body)
            return reply.choices[0].message.model_dump(exclude_none=True)

        yield ask


async def play(contest: Contest, number: int, ask: Ask) -> None:
    """One episode."""
    url = contest.urls[number % len(contest.urls)]
    messages = list(contest.workload.opening(number))
    for turn in range(contest.workload.turns(number)):
        body = {"model": "simulated", "messages": messages, "tools": TOOLS}
        message = await ask(url, {**body, "max_tokens": contest.workload.max_completion})
        messages.append(message)
        for call in message.get("tool_calls") or ():
            found = await contest.tool(number, turn)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})
    assert messages[-1]["role"] == "assistant"


async def main() -> None:
    """Play all episodes at once."""
    contest = Contest.from_command_line()
    transport = {"sockets": sockets, "aiohttp": aiohttp, "openai": openai}[sys.argv[2]]
    async with transport() as ask:
        with measured(contest):
            await asyncio.gather(*(play(contest, n, ask) for n in range(contest.episodes)))


asyncio.run(main())
