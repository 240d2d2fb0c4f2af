"""`<invoke name="…"><parameter name="…">…</parameter></invoke>` behind a prefix: DSML and ATEM.

DeepSeek 3.2 and 4 write `｜DSML｜` before each tag and say of each value whether it is text; Muse
writes `atem:`, inside a message addressed to the tool (see `channels.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentgym.tokens.calls.json_calls import Block
from agentgym.tokens.calls.reading import ReadCall, last_repaired, schema_of, unreadable
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.tokens.calls.values import typed, value_of
from agentgym.types import ToolSpec


class InvokeFormat(TaggedFormat):
    """Any number of invocations per block.

    Args:
        name: The format's name.
        prefix: What stands before each tag's name.
        wrappers: Names of the tag around the invocations.
        control: Control tokens that decoding must keep.
    """

    def __init__(
        self, name: str, *, prefix: str, wrappers: Sequence[str], control: frozenset[str]
    ) -> None:
        mark, around = re.escape(prefix), "|".join(wrappers)
        self.name = name
        self.control = control
        self.opening = re.compile(rf"<{mark}(?:{around})>|<{mark}invoke\b")
        self._invoke = re.compile(rf'\s*<{mark}invoke\s+name="([^">]+)">')
        self._parameter = re.compile(
            rf'\s*<{mark}parameter\s+name="(?P<key>[^">]+)"(?:\s+string="(?P<text>true|false)")?>'
            rf"(?P<value>.*?)</{mark}parameter>",
            re.DOTALL,
        )
        self._end = re.compile(rf"\s*</{mark}invoke>")
        self._further = re.compile(rf"</{mark}(?:{around})>")
        self._close = re.compile(rf"\s*</{mark}(?:{around})>")
        self._over = re.compile(rf"\s*(?=<{mark}invoke\b|</{mark}(?:{around})>)")

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read one block."""
        wrapped = not begun.group().endswith("invoke")
        at = begun.end() if wrapped else begun.start()
        calls: list[ReadCall] = []
        while (read := self._read_one(text, at, tools)) is not None:
            call, at = read
            calls.append(call)
        close = self._close.match(text, at)
        if close is None:
            further = self._further.search(text, max(at, begun.end()))
            end = further.end() if further else len(text)
            if not calls or text[at:].lstrip().startswith("<"):
                stop = further.start() if further else len(text)
                return Block([*calls, unreadable(text[at:stop])], end)
            return Block(last_repaired(calls), at)
        calls = calls or [unreadable(text[begun.end() : close.start()])]
        return Block(last_repaired(calls, not wrapped), close.end())

    def _read_one(
        self, text: str, at: int, tools: Sequence[ToolSpec]
    ) -> tuple[ReadCall, int] | None:
        head = self._invoke.match(text, at)
        if head is None:
            return None
        name = head.group(1).strip()
        schema = schema_of(tools, name)
        arguments: dict[str, Any] = {}
        at, broken = head.end(), False
        while (found := self._parameter.match(text, at)) is not None:
            key, value = found["key"], found["value"]
            broken = broken or key in arguments
            if found["text"] is None:
                arguments[key] = typed(value, schema, key)
            else:
                arguments[key] = value if found["text"] == "true" else value_of(value)
            at = found.end()
        if end := self._end.match(text, at):
            return ReadCall(name, arguments, broken), end.end()
        if self._over.match(text, at):
            return ReadCall(name, arguments, repaired=True), at
        return None


def dsml() -> InvokeFormat:
    """DeepSeek 3.2 and 4."""
    return InvokeFormat(
        "dsml",
        prefix="｜DSML｜",
        wrappers=("function_calls", "tool_calls"),
        control=frozenset({"｜DSML｜", "<think>", "</think>"}),
    )


def atem() -> InvokeFormat:
    """The body of Muse's messages to a tool."""
    calls = InvokeFormat("atem", prefix="atem:", wrappers=("function_calls",), control=frozenset())
    calls.think = ("", "")  # a message of its own
    return calls
