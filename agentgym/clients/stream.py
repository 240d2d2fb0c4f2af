"""A streamed answer put together into the body that the same server sends without streaming.

Nothing is interpreted here beyond putting pieces in their places, so that there is one reader of
replies and no second set of rules: `StreamedReply.body()` goes to `reply.read_reply`. Servers agree
on little: a call's id and name come once or in every chunk, its index may be missing or always 0,
arguments are split anywhere or sent as an object, null stands for "no change", errors come in the
middle, and the end is marked or not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentgym.clients.reply import QUOTED, BadReply, text_of

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class StreamedReply:
    """Server-sent events of one chat completion, as they arrive."""

    def __init__(self) -> None:
        self._rest = b""
        self._data = ""
        self._event = ""
        self._texts: dict[str, list[str]] = {}
        self._calls: list[_Call] = []
        self._legacy: _Call | None = None
        self._choice: dict[str, Any] = {}
        self._has_choice = False
        self._usage: Any = None
        self._error: Any = None
        self._is_done = False

    @property
    def started(self) -> bool:
        """Whether any output has come, which is billed whatever happens next."""
        return bool(self._texts or self._calls or self._legacy)

    @property
    def finished(self) -> bool:
        """Whether the server has said that this is all, by any of the ways there are."""
        ended = self._choice.get("finish_reason") is not None
        return self._is_done or ended or self._error is not None

    def feed(self, data: bytes) -> None:
        """Take in bytes; they may end anywhere, inside a character too.

        Raises:
            BadReply: If an event can't be read.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take_line(line)

    def close(self) -> None:
        """The connection has ended.

        Raises:
            BadReply: If the last event can't be read, or the answer is not complete.
        """
        rest, self._rest = self._rest, b""
        self._take_line(rest)
        self._take_line(b"")
        if not self.finished:
            raise BadReply("the stream ended in the middle of the answer", retryable=True)

    def body(self) -> dict[str, Any]:
        """What has come so far, in the form of a reply that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message.update({key: "".join(pieces) for key, pieces in self._texts.items()})
        if self._calls:
            message["tool_calls"] = [call.entry() for call in sorted(self._calls, key=_index)]
        if self._legacy is not None:
            message["function_call"] = self._legacy.entry()["function"]
        choices = [{**self._choice, "message": message}] if self._has_choice else []
        body: dict[str, Any] = {"choices": choices, "usage": self._usage}
        return body if self._error is None else {**body, "error": self._error}

    # --- events -------------------------------------------------------------------------------

    def _take_line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip("\r\ufeff")
        if not text:
            if self._data:
                raise BadReply(f"an unreadable event: {self._data[:QUOTED]!r}", retryable=True)
            self._event = ""
            return
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value.strip()
        elif name == "data":
            self._take_data(value)
        elif text.startswith("{"):  # an error page in the middle of a stream has no field name
            self._take_data(text)

    def _take_data(self, value: str) -> None:
        if value.strip() == "[DONE]":
            self._is_done = True
            return
        self._data += value
        if not self._data.strip():
            self._data = ""
            return
        try:
            chunk = json.loads(self._data)
        except (ValueError, RecursionError):
            self._data += "\n"  # it may go on in the next line
            return
        self._data = ""
        if isinstance(chunk, Mapping):
            self._take_chunk(chunk)

    def _take_chunk(self, chunk: Mapping[str, Any]) -> None:
        error = chunk.get("error") or (chunk if self._event == "error" else None)
        if error:
            self._error = error
        if isinstance(chunk.get("usage"), Mapping):
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, Mapping) and not choice.get("index"):
                self._take_choice(choice)

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        self._has_choice = True
        for key in ("finish_reason", "error"):
            if choice.get(key) is not None:
                self._choice[key] = choice[key]
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            # A whole message, from servers that stream in one piece or repeat it at the end.
            delta = {} if self.started else choice.get("message")
        if not isinstance(delta, Mapping):
            return
        for key in _TEXTS:
            text = text_of(delta.get(key))
            if text:
                self._texts.setdefault(key, []).append(text)
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else ():
            if isinstance(piece, Mapping):
                self._call_of(piece).take(piece)
        legacy = delta.get("function_call")
        if isinstance(legacy, Mapping):
            self._legacy = self._legacy or _Call(0)
            self._legacy.take({"function": legacy})

    def _call_of(self, piece: Mapping[str, Any]) -> _Call:
        """The call that a piece goes on with, or a new one."""
        given, index = piece.get("id") or None, piece.get("index")
        if isinstance(index, int):
            known = [call for call in self._calls if call.index == index]
        elif given is not None:
            known = [call for call in self._calls if call.id == given]
        else:
            known = self._calls if not _starts(piece) else []
        # One index for all calls (or none): another id beside a name starts another call.
        another = bool(known) and given is not None and known[-1].id not in (None, given)
        if known and not (another and _starts(piece)):
            return known[-1]
        self._calls.append(_Call(index if isinstance(index, int) else len(self._calls)))
        return self._calls[-1]


class _Call:
    """One tool call, growing."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id: Any = None
        self._name = ""
        self._arguments: Any = None

    def take(self, piece: Mapping[str, Any]) -> None:
        self.id = self.id or piece.get("id")
        function = piece.get("function")
        if not isinstance(function, Mapping):
            return
        name, arguments = function.get("name"), function.get("arguments")
        # Repeated in every chunk by some servers, split over chunks by others.
        if isinstance(name, str) and name != self._name and not self._arguments:
            self._name += name
        if isinstance(arguments, str) and isinstance(self._arguments, str | None):
            self._arguments = (self._arguments or "") + arguments
        elif arguments is not None:
            self._arguments = arguments

    def entry(self) -> dict[str, Any]:
        function = {"name": self._name or None, "arguments": self._arguments}
        return {"id": self.id, "type": "function", "function": function}


def _starts(piece: Mapping[str, Any]) -> bool:
    function = piece.get("function")
    return isinstance(function, Mapping) and bool(function.get("name"))


def _index(call: _Call) -> int:
    return call.index
