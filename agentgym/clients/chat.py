"""Any OpenAI-compatible chat-completions endpoint, through openai's async client.

openai's client does the HTTP; what a long run depends on is done here, where it can be seen: which
failures are tried again and for how long, how many requests are in flight, what every call cost,
and which of our sampling fields a server doesn't know. One `ChatClient` works from any number of
event loops; each gets its own connections.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import random
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakKeyDictionary

import openai

from agentgym.client import Completion, Endpoint, SamplingParams, public_url
from agentgym.clients.failures import (
    api_key,
    as_bad_reply,
    as_error,
    checked_url,
    is_overflow,
    scrubbed,
)
from agentgym.clients.wire import BadReply, read_reply, request_body
from agentgym.errors import EndpointError
from agentgym.types import Message, ToolSpec, Usage

logger = logging.getLogger(__name__)

_NEUTRAL = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Fields that may be left out for a server that refuses them, as long as they change nothing."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_WARN_EVERY_S = 30.0
_CONNECT_TIMEOUT_S = 20.0
_MOST_CONNECTIONS = 1000  # in openai's client; a request above it would wait unseen
_ALWAYS_TRIED_AGAIN = (429, 500, 502, 503, 504)


class ChatClient:
    """A `ModelClient` for a hosted or local OpenAI-compatible server.

    Args:
        endpoint: Where, which model, how many requests at once, time-outs and retries.
        send_tools: Whether to send the tool list. Without it the model sees only text, for servers
            without a tool parser and envs with a text grammar.
        send_seed: Whether to send each turn's seed, for servers that can't take one. Without it
            what the server samples can't be had again.
        rng: Jitter of the pauses between attempts.
        sleep: Waits between attempts.

    Raises:
        ConfigError: If no request can be sent to the endpoint's URL.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        send_tools: bool = True,
        send_seed: bool = True,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        checked_url(endpoint.base_url)
        self.endpoint = endpoint
        self.usage = Usage(calls=0)
        """Tokens of all calls so far, failed ones that were billed included."""
        self._send_tools = send_tools
        self._send_seed = send_seed
        self._answered = False
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._refused: set[str] = set()
        self._warned_at = -_WARN_EVERY_S
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"ChatClient({public_url(self.endpoint.base_url)}, model={self.endpoint.model!r})"

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: SamplingParams,
        *,
        session: str | None = None,
    ) -> Completion:
        """Answer the conversation; see `ModelClient.complete`.

        `usage` of the completion includes attempts that failed but were billed.

        Raises:
            EndpointError: If no answer can be had within the endpoint's retries and deadline.
            ContextOverflow: If the conversation no longer fits the model's context.
        """
        if not self._send_seed:
            sampling = sampling.model_copy(update={"seed": None})
        body = request_body(
            self.endpoint.model, messages, tools if self._send_tools else (), sampling
        )
        connection = self._connection()
        async with connection.slots:
            return await self._answer(connection, body, self.endpoint.max_retries)

    async def preflight(self, tools: Sequence[ToolSpec] = ()) -> None:
        """Make one tiny request to see that endpoint, key and model are right.

        A server that is there but busy is asked again; anything else is told at once.

        Args:
            tools: Sent along, to see that the server takes tools.

        Raises:
            EndpointError: If they are not; one line that says why.
        """
        body = request_body(
            self.endpoint.model,
            [{"role": "user", "content": "Hi"}],
            tools if self._send_tools else (),
            SamplingParams(max_tokens=16),  # some hosted models refuse fewer, and temperature 0
        )
        await self._answer(
            self._connection(), body, self.endpoint.max_retries, only=_ALWAYS_TRIED_AGAIN
        )

    async def release(self, session: str) -> None:
        """Nothing is kept per session."""

    async def aclose(self) -> None:
        """Close the running loop's connections; another loop's are closed from there."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.client.close()

    # --- inside -------------------------------------------------------------------------------

    def _connection(self) -> _Connection:
        """The running loop's connections and slots; an async client can't change loops."""
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is None:
            found = self._connections[loop] = _Connection(self.endpoint)
        return found

    async def _answer(
        self,
        connection: _Connection,
        body: dict[str, Any],
        max_retries: int,
        *,
        only: Collection[int | None] | None = None,
    ) -> Completion:
        """Ask until there is an answer, the retries are used up, or the deadline passes.

        Args:
            connection: The running loop's.
            body: The request.
            max_retries: Further attempts.
            only: The statuses that are tried again, if not all that may pass.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.endpoint.deadline_s
        spent = Usage(calls=0)
        failures = 0
        for attempt in itertools.count(1):
            sent = self._as_sent(body)
            # The client's own time-out is between two bytes; a server that trickles never hits it.
            patience = min(deadline, clock() + self.endpoint.timeout_s)
            try:
                async with asyncio.timeout_at(patience):
                    reply = await connection.post(sent)
                completion = read_reply(reply, {**sent, "messages": body["messages"]})
            except TimeoutError:
                which = "before the deadline" if patience == deadline else "within the time-out"
                failure = BadReply(f"no answer {which}", retryable=True, status=408)
            except BadReply as bad:
                failure = bad
            else:
                return self._billed(completion, spent, attempt)
            if failure.usage:
                spent += failure.usage
                self.usage += failure.usage
            if self._learn(failure, body):
                continue
            failures += 1
            pause = self._pause(failure, failures)
            too_late = clock() + pause >= deadline
            hopeless = not failure.retryable or is_overflow(failure)
            hopeless = hopeless or (only is not None and failure.status not in only)
            if hopeless or failures > max_retries or too_late:
                error = as_error(failure, self.endpoint, attempts=attempt, answered=self._answered)
                error.usage = spent if spent.calls else None
                raise error from None
            if failures > 1:
                self._warn(failure, pause, clock())
            await self._sleep(pause)
        raise AssertionError("unreachable")

    def _billed(self, completion: Completion, spent: Usage, attempts: int) -> Completion:
        self._answered = True
        if completion.usage:
            self.usage += completion.usage
        if attempts == 1:
            return completion
        usage = spent if completion.usage is None else completion.usage + spent
        return completion.model_copy(update={"usage": usage, "attempts": attempts})

    def _warn(self, failure: BadReply, pause_s: float, now: float) -> None:
        """Say that requests keep failing; once in a while, since thousands may wait at once."""
        if now - self._warned_at < _WARN_EVERY_S:
            return
        self._warned_at = now
        text = " ".join(scrubbed(str(failure), self.endpoint).split())[:200]
        logger.warning("%r: %s; trying again in %.0f s", self, text, pause_s)

    def _pause(self, failure: BadReply, failures: int) -> float:
        """Exponential with jitter, at least what the server asks for."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (failures - 1))
        return max(self._rng.uniform(longest / 2, longest), failure.retry_after_s or 0.0)

    def _learn(self, failure: BadReply, body: dict[str, Any]) -> bool:
        """Note a field that the server refuses and that can do without; whether there was one."""
        if failure.status not in (400, 422) or is_overflow(failure):
            return False
        text = str(failure)
        if "max_completion_tokens" in text and "max_completion_tokens" not in self._refused:
            self._refused.add("max_completion_tokens")
            return True
        for key, neutral in _NEUTRAL.items():
            if key in self._refused or body.get(key) != neutral:
                continue
            if re.search(rf"\b{key}\b", text):
                self._refused.add(key)
                return True
        return False

    def _as_sent(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request in the server's dialect, with the endpoint's own fields."""
        sent = {
            key: value
            for key, value in body.items()
            if key not in self._refused or value != _NEUTRAL[key]
        }
        if "max_completion_tokens" in self._refused:  # the newer name on OpenAI's own servers
            sent["max_completion_tokens"] = sent.pop("max_tokens")
        return {**sent, **self.endpoint.extra_body}


class _Connection:
    """The openai client and the request slots of one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        async def key() -> str:
            # Read at call time. Servers without authentication get a stand-in.
            return api_key(endpoint.api_key_env) or "EMPTY"

        parts = urlsplit(endpoint.base_url)
        self.slots = asyncio.Semaphore(min(endpoint.max_concurrency, _MOST_CONNECTIONS))
        self.client = openai.AsyncOpenAI(
            base_url=public_url(endpoint.base_url),
            default_query=dict(parse_qsl(parts.query, keep_blank_values=True)) or None,
            default_headers=_basic(parts.username, parts.password),
            api_key=key,
            max_retries=0,
            timeout=openai.Timeout(
                endpoint.timeout_s, connect=min(_CONNECT_TIMEOUT_S, endpoint.timeout_s)
            ),
        )

    async def post(self, body: dict[str, Any]) -> Any:
        """Send one request and decode the reply.

        Raises:
            BadReply: If there is none, or it is an HTTP error or no JSON.
        """
        fields = {key: value for key, value in body.items() if key not in ("model", "messages")}
        try:
            response = await self.client.chat.completions.with_raw_response.create(
                model=body["model"], messages=body["messages"], extra_body=fields
            )
        except EndpointError as error:  # the key can't be sent
            raise BadReply(str(error), retryable=False) from error
        except Exception as error:
            raise as_bad_reply(error) from error
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError) as error:
            text = response.text[:200]
            raise BadReply(
                f"the reply is not JSON ({text!r}); is the base URL the API's root?",
                retryable=True,
            ) from error


def _basic(user: str | None, password: str | None) -> dict[str, str] | None:
    """Credentials in a URL as a header; left in the URL they get into the HTTP library's log."""
    if user is None:
        return None
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
