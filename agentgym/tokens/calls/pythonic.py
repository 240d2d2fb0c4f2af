"""`<|tool_call_start|>[name(key='value'), …]<|tool_call_end|>`: LFM 2 and 2.5.

Strings stand in single quotes; the older templates don't escape the quotes inside, so a quote ends
a string only where a comma or a bracket follows. Lists and objects are JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentgym.tokens.calls.json_calls import Block
from agentgym.tokens.calls.literals import read_literal
from agentgym.tokens.calls.reading import ReadCall, last_repaired, unreadable
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.types import ToolSpec

_NAME = re.compile(r"\s*([\w./:-]+)\s*(?=\()")
_KEY = re.compile(r"\s*([^\s=(),'\"<]+)\s*=\s*")
_NEXT = re.compile(r"\s*(?:,|(?=\)))")
_END = re.compile(r"\s*\)")
_LISTED = re.compile(r"\s*,(?=\s*[\w./:-]+\s*\()")
_CLOSE = re.compile(r"\s*\]\s*<\|tool_call_end\|>")
_BORDER = re.compile(r"<\|tool_call_end\|>|(?=<\|tool_call_start\|>)")


class Pythonic(TaggedFormat):
    """One list of calls per block."""

    name = "pythonic"
    opening = re.compile(r"<\|tool_call_start\|>")
    control = frozenset({"<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"})

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read one block."""
        # No value goes on behind the next block's tag. Without this, a tag that is said over and
        # over with a quote behind it is read to the reply's end each time.
        following = self.opening.search(text, begun.end())
        text = text[: following.start()] if following else text
        bracket = re.compile(r"\s*\[").match(text, begun.end())
        at = bracket.end() if bracket else begun.end()
        calls: list[ReadCall] = []
        while (head := _NAME.match(text, at)) is not None:
            read = read_call(text, head.end(), head.group(1))
            if read is None:
                break
            calls.append(read[0])
            at = read[1]
            if (listed := _LISTED.match(text, at)) is None:
                break
            at = listed.end()
        if (close := _CLOSE.match(text, at)) and calls:
            return Block(last_repaired(calls, bracket is None), close.end())
        border = _BORDER.search(text, at)
        stop, end = (border.start(), border.end()) if border else (len(text), len(text))
        rest = text[at:stop].strip(" \n,]")
        if rest or not calls:
            return Block([*calls, unreadable(text[at:stop])], end)
        return Block(last_repaired(calls), end)


def read_call(text: str, at: int, name: str) -> tuple[ReadCall, int] | None:
    """Read `(key='value', …)`; None if it isn't complete.

    Args:
        text: The reply.
        at: Where the bracket opens.
        name: The tool.

    Returns:
        The call, and where it ends.
    """
    arguments: dict[str, Any] = {}
    broken = False
    at += 1
    while (end := _END.match(text, at)) is None:
        key = _KEY.match(text, at)
        value = read_literal(text, key.end()) if key else None
        if key is None or value is None:
            return None
        broken = broken or key.group(1) in arguments
        arguments[key.group(1)] = value.value
        following = _NEXT.match(text, value.end)
        if following is None:
            return None
        at = following.end()
    return ReadCall(name, arguments, broken), end.end()
