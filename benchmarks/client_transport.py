"""What a request costs the client, by HTTP transport, with a thousand and more in flight.

A rollout's client shares its process with the environments, so CPU spent on HTTP is taken from
them. Each transport sends the same requests to a quirky server in a process of its own, one after
the other in one run; what counts is the ratio. `ChatClient` does everything that it does in a
rollout (limiter, budget, metering, reading the reply), the others only send and decode.

Run with `python benchmarks/client_transport.py`; it takes about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentgym.client import Endpoint, SamplingParams
from agentgym.clients import ChatClient
from agentgym.clients.transport import make_room_for_sockets
from agentgym.testing.quirky import QuirkyServer, Reply, answer

RESULTS = Path(__file__).parent / "results" / "client_transport.json"
CONVERSATION = [
    {"role": "system", "content": "You are a careful agent. " * 200},
    *[
        {"role": role, "content": text * 50}
        for _ in range(6)
        for role, text in (("user", "What is in stock? "), ("assistant", "Let me look it up. "))
    ],
    {"role": "user", "content": "Go on."},
]
Ask = Callable[[], Awaitable[Any]]


async def serve(delay_s: float) -> None:
    """Answer until standard input ends, which is when the benchmark does."""
    # Its strictness would be most of what is waited for.
    server = QuirkyServer(Reply(body=answer("x" * 800), delay_s=delay_s), strict=False)
    async with server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def through_openai(url: str, **options: Any) -> tuple[Ask, Ask]:
    import openai

    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, **options)
    fields = {"max_tokens": 64, "temperature": 1.0, "top_p": 1.0}

    async def ask() -> None:
        response = await client.chat.completions.with_raw_response.create(
            model="m", messages=CONVERSATION, extra_body=fields
        )
        json.loads(response.content)

    return ask, client.close


def openai_default(url: str, concurrency: int) -> tuple[Ask, Ask]:
    return through_openai(url)


def openai_unlimited(url: str, concurrency: int) -> tuple[Ask, Ask]:
    import httpx2
    import openai

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return through_openai(url, http_client=openai.DefaultAsyncHttpxClient(limits=limits))


def openai_on_aiohttp(url: str, concurrency: int) -> tuple[Ask, Ask]:
    import httpx2
    import openai

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return through_openai(url, http_client=openai.DefaultAioHttpClient(limits=limits))


def chat_client(url: str, concurrency: int) -> tuple[Ask, Ask]:
    endpoint = Endpoint(base_url=url, model="m", max_concurrency=concurrency, max_retries=0)
    client = ChatClient(endpoint)
    sampling = SamplingParams(max_tokens=64)
    return lambda: client.complete(CONVERSATION, (), sampling), client.aclose


TRANSPORTS = {
    "openai, as it comes": openai_default,
    "openai, pool without limit": openai_unlimited,
    "openai on aiohttp": openai_on_aiohttp,
    "agentgym ChatClient": chat_client,
}


async def measure(ask: Ask, close: Ask, *, count: int, concurrency: int) -> dict[str, Any]:
    """Send `count` requests, `concurrency` at once."""
    slots = asyncio.Semaphore(concurrency)
    failures: Counter[str] = Counter()

    async def one() -> None:
        async with slots:
            try:
                await ask()
            except Exception as error:
                failures[type(error).__name__] += 1

    await one()  # imports and the first connection
    wall, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await close()
    return {
        "cpu_ms_per_request": round(cpu / count * 1e3, 3),
        "requests_per_s": round(count / wall, 1),
        "failures": dict(failures),
    }


def main() -> None:
    """Measure every transport and write the figures."""
    parser = argparse.ArgumentParser(description="CPU per request, by HTTP transport.")
    parser.add_argument("-n", type=int, default=3000, help="requests each (default: 3000)")
    parser.add_argument("--concurrency", type=int, default=1500, help="at once (default: 1500)")
    parser.add_argument("--delay", type=float, default=0.5, help="server's, seconds (default: 0.5)")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"default: {RESULTS.name}")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    make_room_for_sockets(args.concurrency)
    if args.serve:
        asyncio.run(serve(args.delay))
        return
    command = [sys.executable, __file__, "--serve", "--delay", str(args.delay)]
    command += ["--concurrency", str(args.concurrency)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    figures: dict[str, dict[str, Any]] = {}
    try:
        url = server.stdout.readline().strip()
        for name, make in TRANSPORTS.items():

            async def run(make: Any = make) -> dict[str, Any]:
                ask, close = make(url, args.concurrency)
                return await measure(ask, close, count=args.n, concurrency=args.concurrency)

            figures[name] = asyncio.run(run())
    finally:
        server.communicate()
    ours = figures["agentgym ChatClient"]["cpu_ms_per_request"]
    for name, row in figures.items():
        row["ratio"] = round(row["cpu_ms_per_request"] / ours, 2)
        print(
            f"{name:28} {row['cpu_ms_per_request']:7.2f} ms CPU   {row['ratio']:6.2f} x ChatClient"
            f"   {row['requests_per_s']:7.0f} requests/s   failures: {row['failures'] or 'none'}"
        )
    setting = {
        "requests": args.n,
        "concurrency": args.concurrency,
        "server_delay_s": args.delay,
        "prompt_bytes": len(json.dumps(CONVERSATION)),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    args.out.write_text(json.dumps({"setting": setting, "transports": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
