"""HTTP for simulated servers, at the price of one parse and one write per request.

It shares a machine with the client whose cost is to be measured, so there is no framework in it:
one asyncio protocol that reads requests with a Content-Length, one at a time per connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from agentgym.testing.fleet.prefix import (
    CHARACTERS_PER_TOKEN,
    MESSAGE_TOKENS,
    Prompt,
    tokens_of,
)
from agentgym.testing.fleet.replica import Job, Replica
from agentgym.types import Message

Policy = Callable[[Mapping[str, Any]], Message]
"""Answers the body of a chat-completions request with an assistant message."""

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 411: "Length Required"}
_HEAD_END = b"\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Connection(asyncio.Protocol):
    """One client's connection to one server.

    Args:
        replica: The server.
        policy: What it answers.
        model: The model's name.
        open_connections: Where it is listed while it is open.
        hold: Called with whatever is to be sent; sends it, or keeps it while the server is paused.
    """

    def __init__(
        self,
        replica: Replica,
        policy: Policy,
        *,
        model: str,
        open_connections: set[Connection],
        hold: Callable[[Callable[[], None]], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._replica = replica
        self._policy = policy
        self._model = model
        self._open = open_connections
        self._hold = hold
        self._buffer = bytearray()
        self._needed = 0
        self._busy = False
        self._closing = False
        self._job: Job | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """List it."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: stop working for it."""
        self.transport = None
        self._open.discard(self)
        if self._job is not None:
            self._replica.cancel(self._job)
            self._job = None

    def data_received(self, data: bytes) -> None:
        """Take in a piece of a request."""
        self._buffer += data
        if not self._busy and len(self._buffer) >= self._needed:
            self._read_request()

    def abort(self) -> None:
        """Cut the connection."""
        if self.transport is not None:
            self.transport.abort()

    # --- requests -----------------------------------------------------------------------------

    def _read_request(self) -> None:
        """Handle the next request, if all of it is here."""
        end = self._buffer.find(_HEAD_END)
        if end < 0:
            return
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        method, target, *_ = (*lines[0].decode("latin-1").split(" "), "", "")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        self._closing = headers.get(b"connection", b"").lower() == b"close"
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit():
            self._closing = True
            self._refuse(411, "send a Content-Length")
            return
        self._needed = end + len(_HEAD_END) + int(length)
        if len(self._buffer) < self._needed:
            return
        body = bytes(self._buffer[end + len(_HEAD_END) : self._needed])
        del self._buffer[: self._needed]
        self._needed = 0
        self._busy = True
        self._route(method, target.partition("?")[0], body)

    def _route(self, method: str, path: str, body: bytes) -> None:
        match method, path.removeprefix("/v1"):
            case "POST", "/chat/completions":
                self._chat(body)
            case "GET", "/models":
                model = {"id": self._model, "object": "model", "owned_by": "agentgym"}
                self._reply(200, {"object": "list", "data": [model]})
            case "GET", "/health":
                self._reply(200, {})
            case _:
                self._refuse(404, f"no {method} {path} here")

    def _chat(self, data: bytes) -> None:
        try:
            body = json.loads(data)
            prompt = Prompt(body["messages"], body.get("tools") or ())
            answer, finish_reason = _within_limit(self._policy(body), body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._refuse(400, f"not a chat-completions request: {type(error).__name__}: {error}")
            return
        stream = Stream(self, body) if body.get("stream") else None
        self._job = Job(
            prompt,
            answer,
            on_done=lambda job: self._done(job, finish_reason, stream),
            on_start=None if stream is None else stream.begin,
        )
        self._replica.submit(self._job)

    def _done(self, job: Job, finish_reason: str, stream: Stream | None) -> None:
        self._job = None
        usage = _usage(job)
        if stream is not None:
            self._hold(lambda: stream.end(job.answer, finish_reason, usage))
            return
        choice = {"index": 0, "message": job.answer, "finish_reason": finish_reason}
        body = {
            "id": f"chatcmpl-{job.answer_key:x}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            "usage": usage,
        }
        self._reply(200, body)

    # --- replies ------------------------------------------------------------------------------

    def _refuse(self, status: int, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "code": status}
        self._reply(status, {"error": error})

    def _reply(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        self._hold(lambda: self.finish(head.encode() + data))

    def send(self, data: bytes) -> None:
        """Send a piece of the reply, if the client is still there."""
        if self.transport is not None:
            self.transport.write(data)

    def finish(self, data: bytes) -> None:
        """Send the last piece of the reply, and see to the next request."""
        self.send(data)
        self._busy = False
        if self.transport is None:
            return
        if self._closing:
            self.transport.close()
        elif self._buffer:
            self._read_request()


class Stream:
    """A reply as server-sent events: one when the request gets a slot, the rest at its end.

    Args:
        connection: Where it goes.
        body: The request.
    """

    def __init__(self, connection: Connection, body: Mapping[str, Any]) -> None:
        self._connection = connection
        self._with_usage = bool((body.get("stream_options") or {}).get("include_usage"))

    def begin(self, job: Job) -> None:
        """Send the head."""
        first = _event({"index": 0, "delta": {"role": "assistant", "content": ""}})
        self._connection.send(_STREAM_HEAD + _chunk(first))

    def end(self, answer: Message, finish_reason: str, usage: Mapping[str, Any]) -> None:
        """Send the answer."""
        delta = {key: value for key, value in answer.items() if key != "role"}
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": k, **call} for k, call in enumerate(calls)]
        events = [
            _event({"index": 0, "delta": delta}),
            _event({"index": 0, "delta": {}, "finish_reason": finish_reason}),
        ]
        if self._with_usage:
            events.append(_event(None, usage))
        events.append("data: [DONE]\n\n")
        self._connection.finish(_chunk("".join(events)) + b"0\r\n\r\n")


def _within_limit(answer: Message, body: Mapping[str, Any]) -> tuple[Message, str]:
    """The answer, cut off where the request's limit says so, and the finish reason."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is None or tokens_of(answer) <= limit:
        return answer, "tool_calls" if answer.get("tool_calls") else "stop"
    length = max(0, limit - MESSAGE_TOKENS) * CHARACTERS_PER_TOKEN
    content = (answer.get("content") or "")[:length]
    return {"role": "assistant", "content": content}, "length"


def _event(choice: Mapping[str, Any] | None, usage: Mapping[str, Any] | None = None) -> str:
    body = {"object": "chat.completion.chunk", "choices": [choice] if choice else []}
    return f"data: {json.dumps({**body, 'usage': usage})}\n\n"


def _chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _usage(job: Job) -> dict[str, Any]:
    return {
        "prompt_tokens": job.prompt.tokens,
        "completion_tokens": job.completion_tokens,
        "total_tokens": job.prompt.tokens + job.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
    }
