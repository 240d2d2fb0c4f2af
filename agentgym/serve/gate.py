"""What every request passes before any of it is read.

In this order: who asks, for which version of the API, how long the body is, how deep it nests. A
body is counted as it comes in, declared length or not, and looked through for its nesting before
anything parses it, so that neither a large nor a deep one costs more than its bytes.
"""

from __future__ import annotations

import asyncio
import json
import re
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgym.errors import ConfigError
from agentgym.remote.schema import API_VERSION, PREFIX, VERSION_HEADER, parsed_version
from agentgym.serve.access import Tokens
from agentgym.serve.allowed import is_loopback
from agentgym.serve.faults import ServiceFault
from agentgym.types import MAX_NESTING

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered to anybody; they say nothing but whether the service runs."""

_PART_S = 30.0
"""Longest wait for the next part of a body, seconds; whoever stalls holds a connection."""

# A string that never ends is one token, too, or its quotes would be looked at again and again.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class Gate:
    """Lets through what may pass.

    Args:
        app: What is behind it.
        tokens: Who may ask.
        max_body_bytes: The longest body.
    """

    def __init__(self, app: ASGIApp, *, tokens: Tokens, max_body_bytes: int) -> None:
        self._app = app
        self._tokens = tokens
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, and pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._checked(scope, receive)
        except ServiceFault as fault:
            await fault.response()(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), _versioned(send))

    async def _checked(self, scope: Scope, receive: Receive) -> bytes:
        headers = Headers(scope=scope)
        if scope["path"] not in OPEN_PATHS:
            if not self._tokens:
                _check_local(headers)
            caller = self._tokens.caller(headers.get("authorization"))
            scope.setdefault("state", {})["caller"] = caller
        try:
            parsed_version(headers.get(VERSION_HEADER))
        except ConfigError as error:
            raise ServiceFault(HTTPStatus.BAD_REQUEST, "wrong_api_version", str(error)) from None
        body = await self._body(headers, receive)
        if body and scope["path"].startswith(PREFIX):
            _check_json(headers, body)
        return body

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                async with asyncio.timeout(_PART_S):
                    message = await receive()
            except TimeoutError:
                raise ServiceFault(
                    HTTPStatus.REQUEST_TIMEOUT, "too_slow", f"no more of the body for {_PART_S:g} s"
                ) from None
            if message["type"] == "http.disconnect":
                raise ServiceFault(HTTPStatus.BAD_REQUEST, "cut_off", "the request was cut off")
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_body_bytes:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    def _too_large(self) -> ServiceFault:
        return ServiceFault(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "body_too_large",
            f"a request body may have {self._max_body_bytes} bytes; send a job's episodes in parts",
        )


def _check_local(headers: Headers) -> None:
    """Without tokens, only who asks from this machine for this machine: no page of a browser."""
    host = headers.get("host", "").rpartition("@")[2]
    name = host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
    origin = headers.get("origin")
    if not is_loopback(name) or (origin is not None and not _is_local_origin(origin)):
        message = "a service without tokens answers only requests from and for this machine"
        raise ServiceFault(HTTPStatus.FORBIDDEN, "foreign_origin", message)


def _is_local_origin(origin: str) -> bool:
    host = origin.partition("://")[2]
    name = host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)


def _check_json(headers: Headers, body: bytes) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = "bodies are JSON: send Content-Type: application/json"
        raise ServiceFault(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not_json", message)
    if nests_deeper(body, MAX_NESTING):
        message = f"a body may nest {MAX_NESTING} levels of lists and objects"
        raise ServiceFault(HTTPStatus.BAD_REQUEST, "too_deep", message)
    if b"\\ud" in body.lower() and not _is_text(body):
        message = "a string has half of a surrogate pair, which is no character"
        raise ServiceFault(HTTPStatus.BAD_REQUEST, "not_text", message)


def _is_text(body: bytes) -> bool:
    """Whether the strings of JSON text can be written down; what is no JSON is refused later."""
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except ValueError:
        return True
    return True


def nests_deeper(body: bytes, levels: int) -> bool:
    """Whether JSON text has more levels of lists and objects, seen without parsing it."""
    if body.count(b"[") + body.count(b"{") <= levels:
        return False
    depth = 0
    for token in _TOKENS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            if depth > levels:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever comes after it."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _versioned(send: Send) -> Send:
    """Answers say which version they are of."""
    name = VERSION_HEADER.lower().encode()

    async def with_version(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != name]
            message = {**message, "headers": [*headers, (name, API_VERSION.encode())]}
        await send(message)

    return with_version
