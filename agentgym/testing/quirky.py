"""A real HTTP server that answers chat-completions requests from a script, quirks included.

Model servers differ in what they send and in what they forgive. A fake inside the process can't cut
a connection, trickle a byte at a time or refuse what UTF-8 can't hold, and one that accepts every
request lets a poisoned history pass. So this is a server on the loopback interface: it sends what
the script says, byte for byte where that matters, and by default it is as strict as the strictest
provider about what it is sent.

Example:
    >>> async with QuirkyServer((429, {"error": {"message": "busy"}}), answer("hello")) as server:
    ...     client = ChatClient(Endpoint(base_url=server.url, model="m"))
    ...     completion = await client.complete(messages, (), SamplingParams())
    >>> server.requests[0]["messages"]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from agentgym.testing.conversation import EnvCheckError, check_conversation
from agentgym.testing.loopback import LoopbackServer

USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer, and how it travels."""

    body: Any = ""
    """A dict or list is sent as JSON, text and bytes as they are."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Wait before the first byte, seconds."""
    hangs: bool = False
    """Whether the request is taken and never answered."""
    cut_after: int | None = None
    """Bytes of the body after which the connection is cut; 0 cuts it before the status line."""
    trickle_s: float | None = None
    """Pause before each byte of the body, seconds."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One answer as server-sent events."""

    events: Sequence[Any]
    """A dict is sent as one `data:` event, text and bytes as they are."""
    done: bool = True
    """Whether `data: [DONE]` ends it."""
    cut: bool = False
    """Whether the connection is cut after the last event."""
    pause_s: float = 0.0
    """Wait before each event, seconds."""
    hangs: bool = False
    """Whether nothing follows the last event, and the connection stays open."""


Script = Any
"""A `Reply`, a `Stream`, a body, `(status, body)`, `(status, body, headers)`, or a function of the
request's body that returns one of these."""


def answer(
    content: Any = "hello",
    *,
    usage: Any = USAGE,
    message: Mapping[str, Any] | None = None,
    **choice: Any,
) -> dict[str, Any]:
    """The body of an ordinary answer.

    Args:
        content: The message's content.
        usage: None sends null, "missing" leaves the field out.
        message: Further fields of the message, such as `tool_calls`.
        choice: Further fields of the choice, such as `finish_reason`.
    """
    body: dict[str, Any] = {
        "id": "r",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **(message or {})},
                "finish_reason": "stop",
                **choice,
            }
        ],
    }
    return body if usage == "missing" else {**body, "usage": usage}


def chunks_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The body of an answer as a well-behaved server streams it, arguments in small pieces."""
    choice = body["choices"][0]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for key in ("reasoning_content", "content"):
        text = message.get(key) or ""
        deltas += [{key: text[at : at + 3]} for at in range(0, len(text), 3)]
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        head = {"name": function["name"], "arguments": ""}
        entry = {"id": call.get("id"), "type": "function", "function": head}
        deltas.append({"tool_calls": [{"index": index, **entry}]})
        text = function["arguments"]
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": text[at : at + 3]}}]}
            for at in range(0, len(text), 3)
        ]
    base = {"id": body.get("id"), "object": "chat.completion.chunk"}
    chunks = [{**base, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    last = {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")}
    return [*chunks, {**base, "choices": [last]}]


def refusal_of(body: Any) -> str | None:
    """What a strict provider has against a request, or None.

    Each call answered exactly once and in place, arguments that decode to objects, content null
    only beside calls, known roles, tools and limits of the right form.
    """
    if not isinstance(body, dict):
        return "the body is no JSON object"
    messages = body.get("messages")
    if not isinstance(body.get("model"), str) or not isinstance(messages, list) or not messages:
        return "model and messages are required"
    try:
        check_conversation(messages)
    except EnvCheckError as error:
        return str(error)
    tools = body.get("tools", [{}])
    if not isinstance(tools, list) or not tools:
        return "tools must be a list, not empty"
    names = [tool.get("function", {}).get("name") for tool in tools]
    if len(set(names)) != len(names):
        return f"tool names are not unique: {names}"
    limits = [body[key] for key in ("max_tokens", "max_completion_tokens") if key in body]
    if not all(isinstance(limit, int) and limit > 0 for limit in limits):
        return f"the output limit must be a positive integer, got {limits}"
    if body.get("stream_options") is not None and not body.get("stream"):
        return "stream_options is only allowed with stream"
    return None


class QuirkyServer(LoopbackServer):
    """Answers the k-th request with the k-th reply of its script, the last one for ever.

    Use it with `async with` in the running loop, or with `with`, which runs it on a thread of its
    own, for code that has no loop or several.

    Args:
        replies: The script; see `Script`. More can be put into `replies` at any time.
        strict: Whether requests that a strict provider refuses are answered with 400, and don't
            take a reply from the script.
    """

    def __init__(self, *replies: Script, strict: bool = True) -> None:
        self.replies: list[Script] = list(replies)
        self.strict = strict
        self.url = ""
        """The base URL, once the server runs."""
        self.requests: list[dict[str, Any]] = []
        """The bodies it was sent, refused ones not included."""
        self.headers: list[dict[str, str]] = []
        self.queries: list[dict[str, str]] = []
        self.refused: list[str] = []
        """Why strictness refused a request, one line for each."""
        self.in_flight = 0
        self.most_in_flight = 0
        """The most requests that were in flight at once."""
        self.asked = asyncio.Event()
        """Set by the first request."""
        self.gate: asyncio.Event | None = None
        """If there is one, no request is answered before it is set."""
        self._answering: set[asyncio.Task[Any]] = set()
        self._port = 0
        self._runner: web.AppRunner | None = None

    # --- running ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; on the same port as before, if it ran before."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._handle)
        # For aiohttp 0 is no limit at all, and some replies never end.
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}/v1"

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        if self.gate is not None:
            self.gate.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        # aiohttp forgets those whose client has gone away.
        left = list(self._answering)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # --- answering ----------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answered(request)
        except ConnectionError:  # the client had enough
            return web.Response()
        finally:
            self.in_flight -= 1
            self._answering.discard(task)

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads((await request.read()).decode("utf-8", "strict"))
            complaint = refusal_of(body) if self.strict else None
        except ValueError as fault:
            body, complaint = None, f"the body is not JSON in UTF-8: {fault}"
        if complaint is not None:
            self.refused.append(complaint)
            error = {"message": complaint, "type": "invalid_request_error"}
            return await _sent(request, Reply(status=400, body={"error": error}))
        number = len(self.requests)
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.queries.append(dict(request.query))
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        reply = self.replies[min(number, len(self.replies) - 1)]
        if callable(reply):
            reply = reply(body)
        if not isinstance(reply, Reply | Stream):
            reply = _as_reply(reply, body)
        if isinstance(reply, Stream):
            return await _streamed(request, reply)
        return await _sent(request, reply)


def _as_reply(script: Any, body: Mapping[str, Any]) -> Reply | Stream:
    """A script's shorthand spelt out; an ordinary answer is streamed where that was asked for."""
    if isinstance(script, tuple):
        status, given, headers = (*script, {})[:3]
        return Reply(body=given, status=status, headers=headers)
    choices = script.get("choices") if isinstance(script, dict) else None
    if not body.get("stream") or not choices or not choices[0].get("message"):
        return Reply(body=script)
    events = chunks_of(script)
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({"object": "chat.completion.chunk", "choices": [], "usage": script["usage"]})
    return Stream(events=events)


async def _sent(request: web.Request, reply: Reply) -> web.StreamResponse:
    await asyncio.sleep(reply.delay_s)
    if reply.hangs:
        await asyncio.get_running_loop().create_future()
    data, kind = reply.body, "text/plain"
    if not isinstance(data, str | bytes):
        data, kind = json.dumps(data), "application/json"
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    headers = {"Content-Type": kind, **reply.headers}
    if reply.cut_after is None and reply.trickle_s is None:
        return web.Response(status=reply.status, body=data, headers=headers)
    if reply.cut_after == 0:
        return _cut(request, web.Response())
    response = web.StreamResponse(status=reply.status, headers=headers)
    response.content_length = len(data)
    await response.prepare(request)
    pieces: Iterable[bytes] = (data[: reply.cut_after],)
    if reply.trickle_s is not None:
        pieces = (data[at : at + 1] for at in range(len(data)))
    for piece in pieces:
        await asyncio.sleep(reply.trickle_s or 0)
        await response.write(piece)
    if reply.cut_after is not None:
        return _cut(request, response)
    await response.write_eof()
    return response


async def _streamed(request: web.Request, stream: Stream) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    events = [*stream.events, *(["data: [DONE]\n\n"] if stream.done and not stream.cut else [])]
    for event in events:
        await asyncio.sleep(stream.pause_s)
        if not isinstance(event, str | bytes):
            event = f"data: {json.dumps(event)}\n\n"
        await response.write(event.encode() if isinstance(event, str) else event)
    if stream.hangs:
        await asyncio.get_running_loop().create_future()
    if stream.cut:
        return _cut(request, response)
    await response.write_eof()
    return response


def _cut(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()  # after what was written, unlike abort()
    return response
