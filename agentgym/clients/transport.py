"""HTTP for thousands of requests at once: one aiohttp session for each event loop.

openai's client costs ten times the CPU per request (benchmarks/client_transport.py), and holds back
what goes beyond its pool, unseen and with the time-out running. What is needed of it is small: one
POST, whole or streamed. The session has no limit of its own, since the endpoint's limiter has one.

A session belongs to its loop and closes with it, also where nobody closes it: an asynchronous
generator that waits in the loop is ended by `asyncio.run` before the loop is closed.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
from yarl import URL

from agentgym import __version__
from agentgym.client import Endpoint, public_url
from agentgym.clients.failures import api_key, as_bad_reply, basic_credentials, status_error
from agentgym.clients.reply import QUOTED, BadReply
from agentgym.clients.scopes import Scopes
from agentgym.clients.stream import StreamedReply
from agentgym.errors import EndpointError

_CONNECT_TIMEOUT_S = 20.0
_CLOSE_AT_EXIT_S = 1.0
_SPARE_FILES = 256


class Transport:
    """The connections of one endpoint, in whatever loops it is used.

    Args:
        endpoint: Where to.
        scopes: The calls that end where this process does.
        path: The route of its requests, below the base URL.
    """

    def __init__(
        self, endpoint: Endpoint, scopes: Scopes, *, path: str = "/chat/completions"
    ) -> None:
        self.endpoint = endpoint
        self.path = path
        self.max_context: int | None = None
        """Tokens that the server has room for, where it was asked."""
        self.gives_raw_logprobs = False
        """Whether its log-probabilities are known to be those of another distribution than the one
        that it samples from."""
        self._scopes = scopes
        self._lock = threading.Lock()
        self._sessions: dict[asyncio.AbstractEventLoop, LoopSession] = {}

    def here(self) -> LoopSession | None:
        """The running loop's session, if it is open."""
        found = self._sessions.get(asyncio.get_running_loop())
        return found if found is not None and found.is_open and not found.closed else None

    async def session(self) -> LoopSession:
        """The running loop's session, opened at first use."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._sessions.get(loop)
            if found is None or found.closed:
                for old in [old for old in self._sessions if old.is_closed()]:
                    del self._sessions[old]
                found = self._sessions[loop] = LoopSession(
                    self.endpoint, self._scopes, path=self.path
                )
        await found.open()
        return found

    async def aclose(self) -> None:
        """Close the running loop's connections; those of other loops close with their loops."""
        with self._lock:
            found = self._sessions.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.aclose()


class LoopSession:
    """The connections of one endpoint in one loop.

    Args:
        endpoint: Where to.
        scopes: The calls that end where this process does.
        path: The route of its requests, below the base URL.
    """

    def __init__(self, endpoint: Endpoint, scopes: Scopes, *, path: str) -> None:
        parts = urlsplit(endpoint.base_url)
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.is_open = False
        self.closed = False
        self.scopes = scopes
        self._endpoint = endpoint
        self._query = f"?{parts.query}" if parts.query else ""
        self._base = public_url(endpoint.base_url).rstrip("/")
        self._url = self._url_of(path)
        self._probed = [self._url_of("/health", at_root=True), self._url_of("/models")]
        # Left in the URL, credentials get into logs.
        has_user = parts.username is not None
        self._basic = f"Basic {basic_credentials(parts)}" if has_user else None
        make_room_for_sockets(endpoint.max_concurrency)
        self._http = aiohttp.ClientSession(
            # A wait for a free connection would be one more queue, with a time-out of its own.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=_proxy_of(parts.scheme, parts.hostname or ""),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(_CONNECT_TIMEOUT_S, endpoint.timeout_s)
            ),
            headers={
                "User-Agent": f"agentgym/{__version__}",
                "Content-Type": "application/json",
            },
        )
        self._keeper = _open_until_the_loop_ends(self._http)

    async def open(self) -> None:
        """Bind the session to the end of the loop."""
        if self not in _opened:
            _opened.add(self)
            _close_at_exit()
            await anext(self._keeper)
            self.is_open = True

    async def aclose(self) -> None:
        """Close the connections."""
        self.closed = True
        await self._keeper.aclose()

    def _url_of(self, path: str, *, at_root: bool = False) -> URL:
        base = self._base.removesuffix("/v1") if at_root else self._base
        return URL(f"{base}{path}{self._query}", encoded=True)

    async def ask(self, path: str, body: bytes | None = None, *, at_root: bool = False) -> Any:
        """Ask another route of the server.

        Args:
            path: Below the base URL.
            body: JSON to post; None gets.
            at_root: Whether the route is beside /v1 rather than below it.

        Raises:
            BadReply: If there is no answer, or it is an HTTP error or no JSON.
        """
        url = self._url_of(path, at_root=at_root)
        try:
            headers = {"Authorization": self._basic or f"Bearer {self._key()}"}
            async with self._http.request(
                "GET" if body is None else "POST",
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
            ) as response:
                data = await response.read()
        except BadReply:
            raise
        except Exception as error:
            raise as_bad_reply(error) from error
        if not 200 <= response.status < 300:
            raise status_error(response.status, response.headers, data, url)
        return _decoded(data)

    async def post(
        self,
        data: bytes,
        begin_stream: Callable[[], StreamedReply],
        trim: Callable[[bytes], bytes],
    ) -> Any:
        """Send one request and decode the reply.

        Args:
            data: The body.
            begin_stream: Gives what takes in the answer if it is streamed, and keeps what came of
                a broken one.
            trim: Takes out of a reply's bytes what need not be decoded.

        Returns:
            The reply's JSON, put together if it was streamed.

        Raises:
            BadReply: If there is none, or it is an HTTP error or no JSON.
        """
        try:
            headers = {"Authorization": self._basic or f"Bearer {self._key()}"}
            async with self._http.post(
                self._url, data=data, headers=headers, allow_redirects=False
            ) as response:
                if not 200 <= response.status < 300:
                    raise status_error(
                        response.status, response.headers, await response.read(), self._url
                    )
                if _is_stream(response.headers):
                    return await _read_stream(response, begin_stream())
                data = await response.read()
                if _looks_streamed(data):
                    return _reread(data, begin_stream())
                return _decoded(trim(data))
        except BadReply:
            raise
        except Exception as error:
            raise as_bad_reply(error) from error

    async def probe(self) -> None:
        """Ask whether the server is there and takes the key; that costs no tokens.

        What a server has no route for tells nothing, but that it answers.

        Raises:
            BadReply: If it isn't or doesn't.
        """
        for url in self._probed:
            try:
                headers = {"Authorization": self._basic or f"Bearer {self._key()}"}
                async with self._http.get(url, headers=headers, allow_redirects=False) as response:
                    data = await response.read()
            except BadReply:
                raise
            except Exception as error:
                raise as_bad_reply(error) from error
            if response.status in (401, 403) or response.status >= 500:
                raise status_error(response.status, response.headers, data, url)

    def _key(self) -> str:
        """Read at call time. Servers without authentication get a stand-in."""
        try:
            return api_key(self._endpoint.api_key_env) or "EMPTY"
        except EndpointError as error:
            raise BadReply(str(error), retryable=False) from error


async def _read_stream(response: aiohttp.ClientResponse, streamed: StreamedReply) -> Any:
    try:
        async for data in response.content.iter_any():
            streamed.feed(data)
        streamed.close()
    except aiohttp.ClientError:
        # Cut after the last word: nothing is missing but perhaps the usage.
        if not streamed.finished:
            raise
    return streamed.body()


def _is_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("Content-Type", "").partition(";")[0].strip() == "text/event-stream"


def _looks_streamed(data: bytes) -> bool:
    """Whether it is a stream under another content type."""
    return data.lstrip().startswith((b"data:", b"event:", b":"))


def _reread(data: bytes, streamed: StreamedReply) -> Any:
    streamed.feed(data)
    streamed.close()
    return streamed.body()


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        text = data[:QUOTED].decode("utf-8", "replace")
        raise BadReply(
            f"the reply is not JSON; is the base URL the API's root? It says {text!r}",
            retryable=True,
        ) from error


def _proxy_of(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for a host, if any."""
    return None if proxy_bypass(host) else getproxies().get(scheme)


def make_room_for_sockets(connections: int) -> None:
    """Raise this process's limit of open files where that many connections need it.

    It is 1,024 on most systems, a cap on concurrency that nobody asked for and that shows as failed
    connections; the hard limit usually allows far more.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- the end ----------------------------------------------------------------------------------

_opened: WeakSet[LoopSession] = WeakSet()


async def _open_until_the_loop_ends(http: aiohttp.ClientSession) -> AsyncGenerator[None]:
    """Waits at its `yield` until someone closes it; loops do that with their generators."""
    try:
        yield
    finally:
        await http.close()
        await asyncio.sleep(0)  # closed sockets are let go of in the loop's next round


@cache
def _close_at_exit() -> None:
    """See to it that loops which run on in daemon threads, and never end, leave nothing open."""
    atexit.register(_close_all)


def _close_all() -> None:
    for session in list(_opened):
        forked = session.pid != os.getpid()
        if not (forked or session.closed) and session.loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(_end(session), session.loop)
            with suppress(Exception):
                closing.result(_CLOSE_AT_EXIT_S)


async def _end(session: LoopSession) -> None:
    await session.scopes.aclose()
    await session.aclose()
