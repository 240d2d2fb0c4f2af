"""`<function=name><parameter=key>value</parameter></function>`: Qwen 3.5 on, Coder, Nemotron 3.

A value stands on lines of its own; the line breaks next to the tags are not part of it. All of a
call's parameters have to be there before it is certain, so a block that ends before `</function>`
can only be read if a further tag says that it is over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentgym.tokens.calls.json_calls import Block
from agentgym.tokens.calls.reading import TAG, ReadCall, last_repaired, schema_of, unreadable
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.tokens.calls.values import typed
from agentgym.types import ToolSpec

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_VALUE = re.compile(r"(.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>))", re.DOTALL)
_BROKEN_VALUE = re.compile(
    r"((?:(?!<tool_call>).)*?)\n?(?:</parameter>|(?=<parameter=|</function>|</tool_call>))",
    re.DOTALL,
)
_END = re.compile(r"\s*</function>")
_CLOSE = re.compile(r"\s*</tool_call>")
_OVER = re.compile(r"\s*(?=</?tool_call>|<function=)")
_BORDER = re.compile(r"</tool_call>|(?=<tool_call>)")


class QwenXml(TaggedFormat):
    """One function per block, each parameter between tags of its own."""

    name = "qwen_xml"
    opening = re.compile(r"<tool_call>|<function=")
    tags = re.compile(rf"{TAG.pattern}|</function>|</parameter>")
    control = frozenset({"<tool_call>", "</tool_call>", "<think>", "</think>"})

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read one block."""
        wrapped = begun.group() == "<tool_call>"
        at = begun.end() if wrapped else begun.start()
        calls: list[ReadCall] = []
        while (read := _function(text, at, tools)) is not None:
            call, at = read
            calls.append(ReadCall(call.name, call.arguments, call.repaired or bool(calls)))
        close = _CLOSE.match(text, at)
        if calls and (close or _OVER.match(text, at) or not text[at:].strip()):
            whole = wrapped and close is not None
            return Block(last_repaired(calls, not whole), close.end() if close else at)
        if calls and not wrapped:
            return Block(last_repaired(calls), at)
        border = _BORDER.search(text, max(at, begun.end()))
        stop, end = (border.start(), border.end()) if border else (len(text), len(text))
        if calls and not _FUNCTION.match(text, at):  # words between the function and the end
            return Block(last_repaired(calls), end)
        return Block([*calls, unreadable(text[at:stop])], end)


def _function(text: str, at: int, tools: Sequence[ToolSpec]) -> tuple[ReadCall, int] | None:
    """One function, and where it ends; None if it can't be read to its end."""
    head = _FUNCTION.match(text, at)
    if head is None:
        return None
    name = head.group(1).strip()
    schema = schema_of(tools, name)
    arguments: dict[str, Any] = {}
    at, broken = head.end(), name != head.group(1)
    while (parameter := _PARAMETER.match(text, at)) is not None:
        ended = text.find("</parameter>", parameter.end()) >= 0  # far quicker than the pattern
        value = _VALUE.match(text, parameter.end()) if ended else None
        plain = _BROKEN_VALUE.match(text, parameter.end())
        if value is None or (plain is not None and _runs_on(value.group(1))):
            value, broken = plain, True
        if value is None:
            return None
        key = parameter.group(1).strip()
        broken = broken or key in arguments
        arguments[key] = typed(value.group(1), schema, key)
        at = value.end()
    end = _END.match(text, at)
    if end is not None:
        return ReadCall(name, arguments, broken), end.end()
    over = _OVER.match(text, at)
    if over is not None:
        return ReadCall(name, arguments, repaired=True), at
    return None


def _runs_on(value: str) -> bool:
    """Whether a value swallowed the next parameter, as its own end was missing."""
    return re.search(r"\n<parameter=[^>\n]+>\n", value) is not None
