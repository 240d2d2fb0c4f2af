"""Requests about one session, sent again until they are answered or the time is up.

Every request can be sent again without harm: turns and episodes are numbered, a session has a key.
So a lost answer, a restart of a proxy and a full service are waited out here, within a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from agentgym.client import public_url
from agentgym.errors import EnvFault
from agentgym.serve.schema import API_VERSION, PREFIX, VERSION_HEADER

logger = logging.getLogger(__name__)

_PASSING = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed, unless the service says what broke."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 10.0


class Refused(Exception):
    """The service refused a request, and will refuse it again.

    Args:
        status: HTTP status.
        code: The service's, for programs.
        message: The service's, for people.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class SessionWire:
    """The connection of one client to the sessions of a service; it belongs to one event loop.

    Args:
        url: The service's root, such as `http://localhost:8321`.
        token_env: Environment variable that holds the token; read at each request.
        timeout_s: Longest wait for one answer; the work goes on, and the next attempt gets it.
        deadline_s: Longest time for one request, all attempts and pauses included.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        token_env: str,
        timeout_s: float,
        deadline_s: float,
        sleep: Callable[[float], Awaitable[Any]],
    ) -> None:
        self._root = url.rstrip("/") + f"{PREFIX}/sessions"
        self._token_env = token_env
        self._timeout_s = timeout_s
        self._deadline_s = deadline_s
        self._sleep = sleep
        self._http: aiohttp.ClientSession | None = None
        self._heart: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def where(self) -> str:
        """The service, for messages."""
        return public_url(self._root)

    async def ask(self, method: str, path: str = "", body: Mapping[str, Any] | None = None) -> Any:
        """Send a request, again if need be, and return the answer's JSON.

        Args:
            method: HTTP's.
            path: Below `/v1/sessions`.
            body: JSON.

        Raises:
            Refused: If the service refuses it.
            EnvFault: If there is no answer within the deadline.
        """
        last = "no attempt was finished"
        try:
            async with asyncio.timeout(self._deadline_s):
                for attempt in range(1_000_000):
                    try:
                        return await self._once(method, path, body)
                    except _Later as later:
                        last, pause_s = str(later), later.after_s
                    except (aiohttp.ClientError, TimeoutError, OSError) as error:
                        last, pause_s = f"{type(error).__name__}: {error}", None
                    if attempt >= 2:
                        logger.warning("%s %s: still waiting (%s)", method, self.where, last)
                    await self._sleep(_pause_s(attempt) if pause_s is None else pause_s)
        except TimeoutError as error:
            raise EnvFault(
                f"{self.where}: no answer within {self._deadline_s:g} s ({last})"
            ) from error
        raise EnvFault(f"{self.where}: gave up ({last})")

    async def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        if self._http is None:
            self._loop = asyncio.get_running_loop()
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._http = aiohttp.ClientSession(timeout=timeout)
        headers = {VERSION_HEADER: API_VERSION}
        if token := os.environ.get(self._token_env, "").strip():
            headers["Authorization"] = f"Bearer {token}"
        request = self._http.request(method, self._root + path, json=body, headers=headers)
        async with request as response:
            if response.status == 204:
                return None
            if response.ok:
                return await response.json()
            code, message = await _fault(response)
            if response.status in _PASSING and code != "env_broke":
                raise _Later(message, response.headers.get("Retry-After"))
            raise Refused(response.status, code, message)

    def keep_alive(self, session_id: str, every_s: float) -> None:
        """Give a sign of life from now on, however long the policy thinks."""
        self._stop_heart()
        self._heart = asyncio.get_running_loop().create_task(self._beat(session_id, every_s))

    async def _beat(self, session_id: str, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._once("POST", f"/{session_id}/keepalive", None)
            except Refused:
                return  # closed; the next turn will tell
            except (_Later, aiohttp.ClientError, TimeoutError, OSError) as error:
                logger.debug("a sign of life was not heard: %s", error)

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None

    def let_go(self) -> None:
        """Close the connection some time soon, from any thread; the session expires."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(lambda: loop.create_task(self.aclose(None)))

    async def aclose(self, session_id: str | None) -> None:
        """Close the session, as well as that goes, and the connection."""
        self._stop_heart()
        try:
            if session_id is not None and self._http is not None:
                with contextlib.suppress(Refused):  # gone already
                    await self._once("DELETE", f"/{session_id}", None)
        except (_Later, aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.warning("%s: the session is left to expire (%s)", self.where, error)
        finally:
            if self._http is not None:
                await self._http.close()
                self._http = None


class _Later(Exception):
    """The same request may succeed later."""

    def __init__(self, message: str, after: str | None) -> None:
        super().__init__(message)
        self.after_s = float(after) if after is not None and after.isdigit() else None


async def _fault(response: aiohttp.ClientResponse) -> tuple[str, str]:
    """Code and message of a refusal; a proxy's are what they are."""
    text = await response.text(errors="replace")
    try:
        error = (await response.json(content_type=None))["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, LookupError, TypeError):
        return "", f"HTTP {response.status}: {text[:200]}"


def _pause_s(attempt: int) -> float:
    return float(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt, 10)))
