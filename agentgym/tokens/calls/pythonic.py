"""`<|tool_call_start|>[name(key='value'), …]<|tool_call_end|>`: LFM 2 and 2.5.

Strings stand in single quotes; the older templates don't escape the quotes inside, so a quote ends
a string only where a comma or a bracket follows. Lists and objects are JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentgym.tokens.calls.json_text import Block, find_json
from agentgym.tokens.calls.reading import ReadCall, last_repaired, unreadable
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.tokens.calls.values import value_of
from agentgym.types import MAX_NESTING, ToolSpec

_NAME = re.compile(r"\s*([\w.-]+)\s*(?=\()")
_KEY = re.compile(r"\s*(\w+)\s*=\s*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_STRING = {
    quote: re.compile(rf"{quote}((?:\\.|[^\\])*?){quote}(?=\s*[,)\]}}:])", re.DOTALL)
    for quote in ("'", '"')
}
_LITERAL = re.compile(r"[^\s,()\[\]{}:'\"]+(?=\s*[,)\]}:])")
_COLON = re.compile(r"\s*:\s*")
_COMMA = re.compile(r"\s*,?\s*")
_NEXT = re.compile(r"\s*(?:,|(?=\)))")
_END = re.compile(r"\s*\)")
_LISTED = re.compile(r"\s*,(?=\s*[\w.-]+\s*\()")
_CLOSE = re.compile(r"\s*\]\s*<\|tool_call_end\|>")
_BORDER = re.compile(r"<\|tool_call_end\|>|(?=<\|tool_call_start\|>)")


class Pythonic(TaggedFormat):
    """One list of calls per block."""

    name = "pythonic"
    opening = re.compile(r"<\|tool_call_start\|>")
    control = frozenset({"<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"})

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read one block."""
        bracket = re.compile(r"\s*\[").match(text, begun.end())
        at = bracket.end() if bracket else begun.end()
        calls: list[ReadCall] = []
        while (head := _NAME.match(text, at)) is not None:
            read = read_call(text, head.end(), head.group(1))
            if read is None:
                break
            calls.append(read[0])
            at = read[1]
            if (following := _LISTED.match(text, at)) is None:
                break
            at = following.end()
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
        value = _value(text, key.end()) if key else None
        if key is None or value is None:
            return None
        broken = broken or key.group(1) in arguments
        arguments[key.group(1)] = value[0]
        following = _NEXT.match(text, value[1])
        if following is None:
            return None
        at = following.end()
    return ReadCall(name, arguments, broken), end.end()


def _value(text: str, at: int, levels: int = MAX_NESTING) -> tuple[Any, int] | None:
    """The value that starts here, as JSON or as Python writes it, and where it ends."""
    opener = text[at : at + 1]
    if opener in ("'", '"'):
        quoted = _STRING[opener].match(text, at)
        if quoted is None:
            return None
        return _ESCAPE.sub(_unescaped, quoted.group(1)), quoted.end()
    if opener in ("{", "["):
        found = find_json(text, at)
        if found is not None:
            return found.value, found.end
        return _collection(text, at, levels - 1) if levels else None
    literal = _LITERAL.match(text, at)
    return None if literal is None else (value_of(literal.group()), literal.end())


def _collection(text: str, at: int, levels: int) -> tuple[Any, int] | None:
    """A list or an object as Python writes them, which the older templates do."""
    keyed, closer = text[at] == "{", {"{": "}", "[": "]"}[text[at]]
    members: dict[str, Any] = {}
    items: list[Any] = []
    at += 1
    while not text.startswith(closer, at):
        key = _value(text, at, 0) if keyed else ("", at)
        colon = _COLON.match(text, key[1]) if keyed and key else None
        if key is None or (keyed and colon is None):
            return None
        value = _value(text, colon.end() if colon else at, levels)
        if value is None:
            return None
        members[str(key[0])] = value[0]
        items.append(value[0])
        comma = _COMMA.match(text, value[1])
        if comma is None or (
            not comma.group().strip() and not text.startswith(closer, comma.end())
        ):
            return None
        at = comma.end()
    return (members if keyed else items), at + 1


def _unescaped(found: re.Match[str]) -> str:
    character = found.group(1)
    if character in "\\'\"":
        return character
    return _ESCAPES.get(character, found.group())
