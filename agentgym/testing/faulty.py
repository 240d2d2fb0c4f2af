"""A proxy that makes calls to a model server go wrong, and counts what the server really did.

Whoever survives a fault must not lose, repeat or invent anything, and only somebody between the two
can tell: the client doesn't know that an answer was made which never arrived, the server doesn't
know that nobody got it. So the faults and the count are in one place, in front of any
OpenAI-compatible server.

Which call goes wrong, and how, follows from the seed, the request and how often it came before, not
from the order in which requests arrive. So a run with a thousand episodes at once has the same
faults every time.

Example:
    >>> with FaultProxy(server_url, evenly(0.2)) as proxy:
    ...     main(["rollout", "--base-url", proxy.url, ...])
    >>> proxy.counted["my-model"].delivered_usage
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import socket
import struct
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from agentgym.errors import ConfigError, unknown_name
from agentgym.testing.loopback import LoopbackServer
from agentgym.types import Usage

FaultKind: TypeAlias = Literal[
    "delay", "lost", "busy", "busy_hinted", "error", "half_open", "cut", "reset", "drip"
]
"""What goes wrong with a call:

`delay`: the request is passed on late. `lost`: the server answers, and the connection is closed
instead of the answer. `busy`, `busy_hinted`: 429 without and with `Retry-After`. `error`: 500, 502,
503 or 504. `half_open`: the request is taken and never answered. `cut`: half of the answer's body,
then the end. `reset`: the connection is reset before anything. `drip`: the answer comes in small
pieces. The server executes, and so bills, `delay`, `lost`, `cut` and `drip`, and no other.
"""

FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
_SERVER_ERRORS = (500, 502, 503, 504)
_PIECES = 8  # of an answer that drips


def evenly(share: float) -> dict[FaultKind, float]:
    """Shares by which so large a part of the calls is faulty, every kind as often as the others.

    Args:
        share: Of all calls, 0 to 1.
    """
    return {kind: share / len(FAULT_KINDS) for kind in FAULT_KINDS}


@dataclass
class Counted:
    """What became of the calls of one model."""

    asked: int = 0
    """Requests that reached the proxy."""
    executed: int = 0
    """Requests that the server answered with success, and so bills."""
    delivered: int = 0
    """Answers that were handed to the client whole."""
    executed_usage: Usage = field(default_factory=lambda: Usage(calls=0))
    """Tokens of the executed ones, as the server told them."""
    delivered_usage: Usage = field(default_factory=lambda: Usage(calls=0))
    """Tokens of the delivered ones."""

    @property
    def lost(self) -> int:
        """Answers that were made, and billed, and never arrived."""
        return self.executed - self.delivered


@dataclass(frozen=True)
class _Answer:
    """What the server said."""

    status: int
    content_type: str
    body: bytes
    usage: Usage | None
    """None where it bills nothing."""


class FaultProxy(LoopbackServer):
    """Passes requests on to a server, and breaks some of them.

    Use it with `async with` in the running loop, or with `with`, which runs it on a thread of its
    own. Answers are passed on as a whole, streamed ones too.

    Args:
        target: The server's base URL, as a client would be given it.
        shares: Of the calls, by kind of fault; what is left goes well. May be changed at any time
            through `shares`.
        only: Models whose calls go wrong; None: all of them. May be changed, too.
        seed: Fixes which calls go wrong.
        delay_s: How late a delayed request is passed on, seconds.
        drip_s: Pause before each piece of an answer that drips, seconds.
        retry_after_s: What `busy_hinted` asks for, seconds.

    Raises:
        ConfigError: If a kind is unknown, or the shares are negative or more than 1 together.
    """

    def __init__(
        self,
        target: str,
        shares: Mapping[FaultKind, float],
        *,
        only: Collection[str] | None = None,
        seed: int = 0,
        delay_s: float = 0.05,
        drip_s: float = 0.005,
        retry_after_s: float = 0.05,
    ) -> None:
        self.shares = shares
        self.only = only
        self.url = ""
        """The base URL to give to clients, once the proxy runs."""
        self.counted: dict[str, Counted] = {}
        """By the model that the requests name."""
        self.faults: Counter[FaultKind] = Counter()
        """What was done, by kind."""
        self._target = target.rstrip("/")
        self._seed = seed
        self._delay_s = delay_s
        self._drip_s = drip_s
        self._retry_after_s = retry_after_s
        self._seen: Counter[str] = Counter()
        self._asking: set[asyncio.Task[_Answer]] = set()
        self._session: ClientSession | None = None
        self._runner: web.AppRunner | None = None

    @property
    def shares(self) -> Mapping[FaultKind, float]:
        """Of the calls, by kind of fault."""
        return self._shares

    @shares.setter
    def shares(self, shares: Mapping[FaultKind, float]) -> None:
        for kind, share in shares.items():
            if kind not in FAULT_KINDS:
                raise ConfigError(unknown_name("fault", kind, FAULT_KINDS))
            if not 0 <= share <= 1:
                raise ConfigError(f"the share of {kind} must be 0 to 1, got {share}")
        if (total := sum(shares.values())) > 1 + 1e-9:
            raise ConfigError(f"the shares must be at most 1 together, got {total:g}")
        self._shares = dict(shares)

    # --- running ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen."""
        self._session = ClientSession(timeout=ClientTimeout(total=None))
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that has gone away ends what is being done for it, except the server's work.
        self._runner = web.AppRunner(
            app, shutdown_timeout=0.01, access_log=None, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for task in self._asking:
            task.cancel()
        await self.settled()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def settled(self) -> None:
        """Wait until the server has answered everything that it was asked so far."""
        await asyncio.gather(*self._asking, return_exceptions=True)

    # --- one call -----------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.method != "POST":
            return await self._passed_on(request, await self._ask(request, body, Counted()))
        model = _model_of(body)
        counted = self.counted.setdefault(model, Counted())
        counted.asked += 1
        fault, rng = self._draw(body)
        if self.only is not None and model not in self.only:
            fault = None
        if fault is not None:
            self.faults[fault] += 1
        if fault in ("busy", "busy_hinted", "error", "half_open", "reset"):
            return await self._refused(request, fault, rng)
        if fault == "delay":
            await asyncio.sleep(self._delay_s)
        answer = await self._ask(request, body, counted)
        if fault == "lost":
            return _closed(request, web.Response())
        pause_s = self._drip_s if fault == "drip" else 0.0
        try:
            if fault == "cut":
                return await _cut(request, answer)
            response = await self._passed_on(request, answer, pause_s=pause_s)
        except ConnectionResetError:  # the client is gone
            return _closed(request, web.Response())
        if answer.usage is not None:
            counted.delivered += 1
            counted.delivered_usage += answer.usage
        return response

    def _draw(self, body: bytes) -> tuple[FaultKind | None, random.Random]:
        """What goes wrong with a request, and the chance for its details."""
        name = hashlib.blake2b(body, digest_size=12).hexdigest()
        rng = random.Random(f"{self._seed}:{name}:{self._seen[name]}")
        self._seen[name] += 1
        draw = rng.random()
        for kind, share in self._shares.items():
            if draw < share:
                return kind, rng
            draw -= share
        return None, rng

    async def _refused(
        self, request: web.Request, fault: FaultKind, rng: random.Random
    ) -> web.StreamResponse:
        """A fault of which the server never hears."""
        if fault == "half_open":
            await asyncio.get_running_loop().create_future()
        if fault == "reset":
            return _reset(request)
        status = rng.choice(_SERVER_ERRORS) if fault == "error" else 429
        hinted = fault == "busy_hinted"
        headers = {"Retry-After": f"{self._retry_after_s:g}"} if hinted else {}
        error = {"error": {"message": f"injected {fault}", "type": fault}}
        return web.json_response(error, status=status, headers=headers)

    async def _ask(self, request: web.Request, body: bytes, counted: Counted) -> _Answer:
        """Ask the server, to the end, whether or not the client is still there."""
        task = asyncio.create_task(self._asked(request, body, counted))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return await asyncio.shield(task)

    async def _asked(self, request: web.Request, body: bytes, counted: Counted) -> _Answer:
        assert self._session is not None
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() in ("authorization", "content-type", "accept")
        }
        try:
            async with self._session.request(
                request.method,
                self._target + request.path_qs,
                data=body or None,
                headers=headers,
                allow_redirects=False,
            ) as reply:
                data = await reply.read()
        except (ClientError, OSError) as error:
            text = json.dumps({"error": {"message": f"no answer from the server: {error}"}})
            return _Answer(502, "application/json", text.encode(), None)
        usage = _usage_of(data, reply.content_type) if 200 <= reply.status < 300 else None
        if usage is not None:
            counted.executed += 1
            counted.executed_usage += usage
        return _Answer(reply.status, reply.content_type, data, usage)

    async def _passed_on(
        self, request: web.Request, answer: _Answer, *, pause_s: float = 0.0
    ) -> web.StreamResponse:
        response = await _begun(request, answer)
        size = max(1, math.ceil(len(answer.body) / (_PIECES if pause_s else 1)))
        for at in range(0, len(answer.body), size):
            await asyncio.sleep(pause_s)
            await response.write(answer.body[at : at + size])
        await response.write_eof()
        return response


async def _begun(request: web.Request, answer: _Answer) -> web.StreamResponse:
    """The head of an answer, sent."""
    headers = {"Content-Type": answer.content_type}
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = len(answer.body)
    await response.prepare(request)
    return response


async def _cut(request: web.Request, answer: _Answer) -> web.StreamResponse:
    """Half of an answer, then the end of the connection."""
    response = await _begun(request, answer)
    await response.write(answer.body[: len(answer.body) // 2])
    return _closed(request, response)


def _closed(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return response


def _reset(request: web.Request) -> web.StreamResponse:
    """End a connection with RST instead of FIN."""
    transport = request.transport
    if transport is not None:
        held = transport.get_extra_info("socket")
        if held is not None:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()


def _model_of(body: bytes) -> str:
    try:
        found = json.loads(body)["model"]
    except (ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""


def _usage_of(data: bytes, content_type: str) -> Usage:
    """The tokens that a successful answer tells of, whole or streamed; nothing if it tells none."""
    told: Any = None
    texts = [data]
    if content_type == "text/event-stream":
        texts = [line[5:] for line in data.splitlines() if line.startswith(b"data:")]
    for text in texts:
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("usage"), dict):
            told = value["usage"]
    if told is None:
        return Usage()
    details = told.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=told.get("prompt_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        completion_tokens=told.get("completion_tokens") or 0,
    )
