"""How the remote engine talks to a service: every request may be sent again, and is.

A cut connection, a service that restarts, one that is busy or whose disk is full: all of them pass.
Each request is one that may safely be repeated (a job has its idempotency key, added episodes say
where they come, a cursor says what is known), so what passes is waited out and nothing is lost or
done twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp

from agentgym.client import public_url
from agentgym.errors import (
    AgentGymError,
    BudgetStop,
    ConfigError,
    RolloutStopped,
    UnknownTaskError,
)
from agentgym.remote.schema import API_VERSION, PREFIX, VERSION_HEADER, Fault

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "AGENTGYM_SERVICE_TOKEN"

_PASSING = (429, 502, 503, 504, 507)
_NOT_THE_SERVICES = "http"
"""The code of a refusal by something else, such as a proxy whose service restarts."""
_BUSY = "busy"  # a session, with a request that somebody gave up waiting for
_QUIET_ATTEMPTS = 2
_TOLD_AGAIN_S = 10.0
"""When a wait is told the second time; then after 2, 4, 8, … times as long."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_ANSWER_S = 60.0
_OF_CONFIG = frozenset(
    {"config", "env_not_allowed", "invalid_request", "not_allowed", "unknown_env", "unknown_pool"}
)


class ServiceError(AgentGymError):
    """A service refuses a request, can't be reached any more, or could not finish a job.

    Args:
        message: One line.
        code: What it is, as the service calls it.
        status: The HTTP status, if there was an answer.
    """

    def __init__(self, message: str, *, code: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def error_of(fault: Fault, where: str, status: int | None = None) -> AgentGymError:
    """What a local engine would have raised."""
    text = f"{where}: {fault.message}"
    if fault.code == "budget_stop":
        return BudgetStop(fault.message)
    if fault.code == "rollout_stopped":
        return RolloutStopped(fault.message)
    if fault.code == "unknown_task":
        return UnknownTaskError(text)
    if fault.code in _OF_CONFIG:
        return ConfigError(text)
    return ServiceError(text, code=fault.code, status=status)


class ServiceClient:
    """Sends requests to one service.

    Args:
        url: Its root, such as `http://127.0.0.1:8800`.
        token: Who asks; None reads `AGENTGYM_SERVICE_TOKEN` at each request.
        reconnect_s: Longest time without any answer before it gives up, seconds.
        sleep: Waits between attempts.
        clock: Seconds, rising.

    Raises:
        ConfigError: If it is no such URL.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        reconnect_s: float = 600.0,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"a service's URL starts with http:// or https://, got {url!r:.100}")
        self.where = public_url(url).rstrip("/")
        """The service, as errors name it."""
        self._root = url.rstrip("/").removesuffix(PREFIX)
        self._token = token
        self._reconnect_s = reconnect_s
        self._sleep = sleep
        self._clock = clock
        self._rng = random.Random()
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            WeakKeyDictionary()
        )

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
        reconnect_s: float | None = None,
    ) -> Any:
        """Send a request until it is answered.

        Args:
            method: HTTP's.
            path: Under `/v1`.
            body: JSON.
            query: Query parameters.
            wait_s: For how long the service may hold the answer back, seconds.
            reconnect_s: In place of the client's.

        Returns:
            The answer's JSON; None if it has none.

        Raises:
            AgentGymError: If it is refused, or there was no answer for too long.
        """
        started = self._clock()
        patience_s = self._reconnect_s if reconnect_s is None else reconnect_s
        pause_s = _FIRST_PAUSE_S
        attempts = 0
        told_from_s = 0.0
        while True:
            attempts += 1
            try:
                return await self._once(method, path, body, query, wait_s)
            except _Passing as passing:
                waited_s = self._clock() - started
                left_s = patience_s - waited_s - (passing.retry_after_s or 0.0)
                if left_s <= 0:
                    raise passing.error(self.where, waited_s) from passing.__cause__
                if attempts > _QUIET_ATTEMPTS and waited_s >= told_from_s:
                    told_from_s = max(_TOLD_AGAIN_S, 2 * waited_s)
                    text = "%s: still waiting for an answer (%s); giving up in %.0f s"
                    logger.warning(text, self.where, passing, left_s)
                pause = passing.retry_after_s or pause_s * self._rng.uniform(0.5, 1.0)
                await self._sleep(min(pause, _LONGEST_PAUSE_S))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
        wait_s: float,
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=wait_s + _ANSWER_S, sock_connect=10)
        try:
            async with self._session().request(
                method,
                f"{self._root}{PREFIX}{path}",
                json=body,
                params=query,
                headers=self._headers(),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                data = await response.read()
                if 200 <= response.status < 300:
                    return await _json(response) if data else None
                fault = await _fault(response)
                between = response.status >= 500 and fault.code == _NOT_THE_SERVICES
                if response.status in _PASSING or fault.code == _BUSY or between:
                    raise _Passing(fault, response.status, response.headers.get("Retry-After"))
                raise error_of(fault, self.where, response.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Passing(Fault(code="unreachable", message=_said(error))) from error

    def _headers(self) -> dict[str, str]:
        headers = {VERSION_HEADER: API_VERSION}
        token = self._token or os.environ.get(TOKEN_VARIABLE, "").strip()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = self._sessions[loop] = aiohttp.ClientSession()
        return session


class _Passing(Exception):  # never leaves this module
    """Something that may be over the next time."""

    def __init__(
        self, fault: Fault, status: int | None = None, retry_after: str | None = None
    ) -> None:
        super().__init__(fault.message)
        self._fault = fault
        self._status = status
        given = retry_after or ""
        self.retry_after_s = float(given) if given.isdigit() else None

    def error(self, where: str, waited_s: float) -> AgentGymError:
        """What to raise once patience is at an end."""
        if self._status is not None:
            return error_of(self._fault, where, self._status)
        text = f"{where}: no answer for {waited_s:.0f} s ({self._fault.message})"
        return ServiceError(f"{text}; is the service running there?", code="unreachable")


def _said(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):  # its text names the TLS default, too
        return error.os_error.strerror or "no connection"
    return str(error) or type(error).__name__


async def _json(response: aiohttp.ClientResponse) -> Any:
    try:
        return await response.json(content_type=None)
    except ValueError as error:
        raise ServiceError(
            f"{public_url(str(response.url))} answers with something else than JSON; is that an "
            "agentgym service?",
            code="not_json",
            status=response.status,
        ) from error


async def _fault(response: aiohttp.ClientResponse) -> Fault:
    """The refusal in an answer, whoever made it."""
    try:
        return Fault(**(await response.json(content_type=None))["error"])
    except (ValueError, KeyError, TypeError):
        text = f"HTTP {response.status} from something that is no agentgym service"
        return Fault(code=_NOT_THE_SERVICES, message=text)
