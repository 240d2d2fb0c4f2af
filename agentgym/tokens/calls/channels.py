"""Replies made of several addressed messages: Harmony (GPT-OSS) and Muse.

The model goes on from `<|start|>assistant`, so the first message's header has no start of its own.
A header says whom the message is for; thoughts, calls and the answer are messages like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agentgym.tokens.calls.invoke import atem
from agentgym.tokens.calls.json_calls import json_arguments
from agentgym.tokens.calls.reading import TAG, ReadCall, Reading, repaired, told, unreadable
from agentgym.types import ToolSpec

_START, _MESSAGE = "<|start|>", "<|message|>"
_TO = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_CALL_HEADER = re.compile(
    r"(?:assistant ?)?(?:to=functions\.[^\s<]+ ?<\|channel\|> ?(?:commentary|analysis)"
    r"|<\|channel\|> ?(?:commentary|analysis) to=functions\.[^\s<]+)"
    r" ?(?:<\|constrain\|> ?)?(?:json|code)?"
)
"""Where a call says whom it is for: in its role or in its channel."""
_MUSE_HEADER = re.compile(r"(?:assistant ?)?to=[^\s<]+")
_ENDS = re.compile(r"<\|(?:end|call|return|eom|eot)\|>")
_BORDER = re.compile(r"(?P<close>\Z)")


class Harmony:
    """GPT-OSS: a channel per message, and calls addressed to `functions.…` with JSON arguments.

    Source: https://cookbook.openai.com/articles/openai-harmony.
    """

    name = "harmony"
    think = ("", "")
    control = frozenset(
        {_START, _MESSAGE, "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"}
    )

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Read a reply; see `CallFormat`."""
        contents: list[str] = []
        thoughts: list[str] = []
        calls: list[ReadCall] = []
        for header, body, begun in _messages(text):
            to = _TO.search(header)
            if body is None:
                _unaddressed(header, contents, calls)
            elif to is not None:
                name = to.group(1).removeprefix("functions.")
                call = json_arguments(body, 0, _BORDER, name)[0]
                exact = begun and _CALL_HEADER.fullmatch(" ".join(header.split()))
                calls.append(repaired(call, not exact))
            elif _channel(header) == "analysis":
                thoughts.append(body)
            else:
                contents.append(body)
        return _reading(contents, thoughts, calls)

    def prose(self, text: str) -> Reading:
        """Read a reply that can call nothing; see `CallFormat`."""
        return _prose(text, lambda header: _channel(header) == "analysis")


class Muse:
    """Muse: a recipient per message, and calls in ATEM addressed to the tool."""

    name = "muse"
    think = ("", "")
    control = frozenset({_START, _MESSAGE, "<|eom|>", "<|eot|>"})
    _body = atem()

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Read a reply; see `CallFormat`."""
        contents: list[str] = []
        thoughts: list[str] = []
        calls: list[ReadCall] = []
        for header, body, begun in _messages(text):
            recipient = _recipient(header)
            if body is None:
                _unaddressed(header, contents, calls)
            elif recipient == "self":
                thoughts.append(body)
            else:
                read = self._body.read(body, tools)
                wanted = {call.name for call in read.calls if call.name}
                exact = begun and _MUSE_HEADER.fullmatch(" ".join(header.split()))
                calls += [repaired(c, not exact or wanted != {recipient}) for c in read.calls]
                if recipient == "user":
                    contents.append(read.content)
                elif not read.calls:
                    calls.append(unreadable(f"{recipient} {body}"))
        return _reading(contents, thoughts, calls)

    def prose(self, text: str) -> Reading:
        """Read a reply that can call nothing; see `CallFormat`."""
        return _prose(text, lambda header: _recipient(header) == "self")


def _channel(header: str) -> str | None:
    found = _CHANNEL.search(header)
    return found.group(1) if found else None


def _recipient(header: str) -> str:
    to = _TO.search(header)
    return to.group(1) if to else "user"


def _prose(text: str, thinks: Callable[[str], bool]) -> Reading:
    """The messages' texts, whomever they are for, but for those to the model itself."""
    contents: list[str] = []
    thoughts: list[str] = []
    for header, body, _ in _messages(text):
        kept = thoughts if body is not None and thinks(header) else contents
        kept.append(header if body is None else body)
    return told("\n".join(contents), thoughts)


class _Part(NamedTuple):
    """A message, or text outside any."""

    header: str
    body: str | None
    """None where there is no header to it."""
    begun: bool
    """Whether it stands behind a start, its own or the prompt's."""


def _messages(text: str) -> list[_Part]:
    """The messages of a reply, and what stands between them."""
    found: list[_Part] = []
    for part in text.split(_START):
        begun = True
        while part:
            header, separator, rest = part.partition(_MESSAGE)
            if not separator:
                said = _ENDS.sub("", part)
                if said.strip() not in ("", "assistant"):
                    found.append(_Part(said, None, begun))
                break
            body, *more = _ENDS.split(rest, maxsplit=1)
            found.append(_Part(header, body, begun))
            part, begun = more[0] if more else "", False
    return found


def _unaddressed(text: str, contents: list[str], calls: list[ReadCall]) -> None:
    """Text outside any message: an answer in the wrong form, or a header that was cut."""
    if TAG.search(text) or _TO.search(text):
        calls.append(unreadable(text))
    else:
        contents.append(text)


def _reading(contents: list[str], thoughts: list[str], calls: list[ReadCall]) -> Reading:
    content = "\n".join(contents)
    tag = TAG.search(content)
    if tag is not None:
        calls = [*calls, unreadable(content[tag.start() :])]
        content = content[: tag.start()]
    reasoning = "\n".join(found for part in thoughts if (found := part.strip()))
    return Reading(content.strip() if calls else content, reasoning or None, tuple(calls))
