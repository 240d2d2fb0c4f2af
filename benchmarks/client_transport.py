"""What a request costs the client, by HTTP transport, with a thousand and more in flight.

A rollout's client shares its process with the environments, so CPU spent on HTTP is taken from
them. Each transport sends the same requests to quirky servers in a process of their own, one after
the other in one run; what counts is the ratio. agentgym's clients do everything that they do in a
rollout (limiter or balancer, budget, metering, reading the reply), the others only send and decode.

Then the balanced client alone: how far the event loop falls behind with a thousand requests in
flight, and what it takes to have 16,000 calls wait for slots, each with a conversation of 10 KB.

Run with `python benchmarks/client_transport.py`; it takes about three minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from agentgym.client import Endpoint, SamplingParams
from agentgym.clients import BalancedClient, ChatClient
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
REPLICAS = 8
SLOW_S = 2.0
"""What the model `slow` takes, seconds: with a thousand requests at once nobody is busy."""
Ask = Callable[[], Awaitable[Any]]


async def serve(delay_s: float) -> None:
    """Answer until standard input ends, which is when the benchmark does."""

    # Their strictness would be most of what is waited for.
    def reply(request: dict[str, Any]) -> Reply:
        slow = request["model"] == "slow"
        return Reply(body=answer("x" * 800), delay_s=SLOW_S if slow else delay_s)

    servers = [QuirkyServer(reply, strict=False) for _ in range(REPLICAS)]
    async with AsyncExitStack() as running:
        for server in servers:
            await running.enter_async_context(server)
        print(*(server.url for server in servers), flush=True)
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


def openai_default(urls: list[str], concurrency: int) -> tuple[Ask, Ask]:
    return through_openai(urls[0])


def openai_unlimited(urls: list[str], concurrency: int) -> tuple[Ask, Ask]:
    import httpx2
    import openai

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return through_openai(urls[0], http_client=openai.DefaultAsyncHttpxClient(limits=limits))


def openai_on_aiohttp(urls: list[str], concurrency: int) -> tuple[Ask, Ask]:
    import httpx2
    import openai

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return through_openai(urls[0], http_client=openai.DefaultAioHttpClient(limits=limits))


def bare_aiohttp(urls: list[str], concurrency: int) -> tuple[Ask, Ask]:
    """The least that a request can cost on this HTTP library."""
    http = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
    )
    body = {"model": "m", "messages": CONVERSATION, "max_tokens": 64}

    async def ask() -> None:
        async with http.post(f"{urls[0]}/chat/completions", json=body) as response:
            json.loads(await response.read())

    return ask, http.close


def of_episodes(client: Any, concurrency: int) -> tuple[Ask, Ask]:
    """The next turn of one of as many episodes as there are requests at once."""
    numbers, sampling = itertools.count(), SamplingParams(max_tokens=64)

    async def ask() -> None:
        session = f"episode {next(numbers) % concurrency}"
        await client.complete(CONVERSATION, (), sampling, session=session)

    return ask, client.aclose


def chat_client(urls: list[str], concurrency: int) -> tuple[Ask, Ask]:
    endpoint = Endpoint(base_url=urls[0], model="m", max_concurrency=concurrency, max_retries=0)
    return of_episodes(ChatClient(endpoint), concurrency)


def balanced_client(urls: list[str], concurrency: int) -> tuple[Ask, Ask]:
    return of_episodes(balanced(urls, concurrency), concurrency)


def balanced(urls: list[str], concurrency: int, model: str = "m") -> BalancedClient:
    slots = -(-concurrency // len(urls))
    return BalancedClient(
        Endpoint(base_url=url, model=model, max_concurrency=slots) for url in urls
    )


TRANSPORTS = {
    "openai, as it comes": openai_default,
    "openai, pool without limit": openai_unlimited,
    "openai on aiohttp": openai_on_aiohttp,
    "bare aiohttp": bare_aiohttp,
    "agentgym ChatClient": chat_client,
    "agentgym BalancedClient": balanced_client,
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

    await asyncio.gather(*(one() for _ in range(concurrency)))  # imports and connections
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


async def lags_of(work: Awaitable[Any], every_s: float = 0.01) -> list[float]:
    """How late the loop woke a sleeper again and again while it worked, seconds, sorted."""
    lags: list[float] = []

    async def watch() -> None:
        while True:
            asked = time.perf_counter()
            await asyncio.sleep(every_s)
            lags.append(time.perf_counter() - asked - every_s)

    watching = asyncio.ensure_future(watch())
    await work
    watching.cancel()
    return sorted(lags)


async def measure_lag(urls: list[str], *, in_flight: int, turns: int) -> dict[str, Any]:
    """So many episodes without tools, begun one after the other."""
    client, sampling = balanced(urls, in_flight, "slow"), SamplingParams(max_tokens=64)

    async def episode(number: int, turns: int) -> None:
        await asyncio.sleep(SLOW_S * number / in_flight)
        for _ in range(turns):
            await client.complete(CONVERSATION, (), sampling, session=f"episode {number}")

    async def play(turns: int) -> None:
        await asyncio.gather(*(episode(number, turns) for number in range(in_flight)))

    await play(1)  # connections
    lags = await lags_of(play(turns))
    await client.aclose()
    return {
        "requests": in_flight,
        "loop_lag_p50_ms": round(lags[len(lags) // 2] * 1e3, 1),
        "loop_lag_p99_ms": round(lags[len(lags) * 99 // 100] * 1e3, 1),
    }


async def measure_queue(
    urls: list[str], *, count: int, slots: int, delay_s: float
) -> dict[str, Any]:
    """Ask `count` questions at once, where `slots` are answered at a time."""
    client, sampling = balanced(urls, slots), SamplingParams(max_tokens=64)
    answered: list[float] = []

    def conversation(number: int) -> list[dict[str, Any]]:
        text = f"{number}: " + "What is in stock? " * 55
        return [{"role": "user", "content": f"{text}{part}"} for part in range(10)]

    async def ask(number: int) -> None:
        await client.complete(conversation(number), (), sampling, session=f"episode {number}")
        answered.append(time.perf_counter())

    await asyncio.gather(*(ask(number) for number in range(slots)))  # connections
    answered.clear()
    before, began, cpu = resident_bytes(), time.perf_counter(), time.process_time()
    calls = [asyncio.ensure_future(ask(slots + number)) for number in range(count)]
    await asyncio.sleep(0)  # each gets as far as it can
    waiting, memory = client.waiting, resident_bytes() - before
    await asyncio.gather(*calls)
    cpu = time.process_time() - cpu
    await client.aclose()
    return {
        "calls": count,
        "slots": slots,
        "kb_per_waiting_call": round(memory / waiting / 1024, 1),
        "first_reply_s": round(min(answered) - began, 2),
        "last_reply_s": round(max(answered) - began, 2),
        "servers_need_s": round(count / slots * delay_s, 2),
        "cpu_ms_per_request": round(cpu / count * 1e3, 3),
    }


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure every transport and write the figures."""
    parser = argparse.ArgumentParser(description="CPU per request, by HTTP transport.")
    parser.add_argument("-n", type=int, default=3000, help="requests each (default: 3000)")
    parser.add_argument("--concurrency", type=int, default=1500, help="at once (default: 1500)")
    parser.add_argument("--delay", type=float, default=0.5, help="server's, seconds (default: 0.5)")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"default: {RESULTS.name}")
    parser.add_argument("--queued", type=int, default=16000, help="calls (default: 16000)")
    parser.add_argument("--only-ours", action="store_true", help="leave the others out")
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
    transports = {k: v for k, v in TRANSPORTS.items() if "openai" not in k or not args.only_ours}
    try:
        urls = server.stdout.readline().split()
        for name, make in transports.items():

            async def run(make: Any = make) -> dict[str, Any]:
                ask, close = make(urls, args.concurrency)
                return await measure(ask, close, count=args.n, concurrency=args.concurrency)

            figures[name] = asyncio.run(run())
        lag = asyncio.run(measure_lag(urls, in_flight=1000, turns=3))
        # Python's default looks for cycles after every 700 objects, and a request has 150.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        calm = asyncio.run(measure_lag(urls, in_flight=1000, turns=3))
        queue = asyncio.run(
            measure_queue(urls, count=args.queued, slots=args.concurrency, delay_s=args.delay)
        )
    finally:
        server.communicate()
    ours = figures["agentgym ChatClient"]["cpu_ms_per_request"]
    for name, row in figures.items():
        row["ratio"] = round(row["cpu_ms_per_request"] / ours, 2)
        print(
            f"{name:28} {row['cpu_ms_per_request']:7.2f} ms CPU   {row['ratio']:6.2f} x ChatClient"
            f"   {row['requests_per_s']:7.0f} requests/s   failures: {row['failures'] or 'none'}"
        )
    for name, row in (("in flight", lag), ("in flight, calm gc", calm), ("queued", queue)):
        print(f"{name:28}", ", ".join(f"{key} {value}" for key, value in row.items()))
    setting = {
        "requests": args.n,
        "concurrency": args.concurrency,
        "server_delay_s": args.delay,
        "prompt_bytes": len(json.dumps(CONVERSATION)),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    found = {"setting": setting, "transports": figures, "lag": lag, "lag_calm_gc": calm}
    found["queue_calm_gc"] = queue
    args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
