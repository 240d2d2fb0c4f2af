"""`<|tool_call>call:name{key:<|"|>text<|"|>,n:3}<tool_call|>`: Gemma 4.

JSON with bare keys, and a control token for a quotation mark, so that nothing needs escaping.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentgym.tokens.calls.json_calls import Block
from agentgym.tokens.calls.json_text import skip
from agentgym.tokens.calls.reading import ReadCall, repaired, unreadable
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.tokens.calls.values import value_of
from agentgym.types import MAX_NESTING, ToolSpec

_QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*call:\s*([^\s{<]+)\s*(?=\{)")
_KEY = re.compile(r"\s*([^\s:{},<](?:[^:{},<\n]*[^\s:{},<])?)\s*:\s*")
_LITERAL = re.compile(r"[^\s,{}\[\]<]+(?=\s*[,}\]])")
_CLOSE = re.compile(r"\s*<tool_call\|>")
_BORDER = re.compile(r"<tool_call\|>|(?=<\|tool_call>)")


class Gemma(TaggedFormat):
    """One call per block."""

    name = "gemma"
    opening = re.compile(r"<\|tool_call>")
    control = frozenset({"<|tool_call>", "<tool_call|>", _QUOTE, "<|channel>", "<channel|>"})
    think = ("<|channel>thought", "<channel|>")

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read one block."""
        head = _HEAD.match(text, begun.end())
        read = _Values(text).read(head.end()) if head else None
        if head is not None and read is not None and isinstance(read[0], dict):
            call = ReadCall(head.group(1), read[0])
            if close := _CLOSE.match(text, read[1]):
                return Block([call], close.end())
            further = _BORDER.search(text, read[1])
            return Block([repaired(call)], further.end() if further else read[1])
        border = _BORDER.search(text, begun.end())
        stop, end = (border.start(), border.end()) if border else (len(text), len(text))
        return Block([unreadable(text[begun.end() : stop])], end)


class _Values:
    """Reads the values of one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, at: int, levels: int = MAX_NESTING) -> tuple[Any, int] | None:
        """The value that starts here and where it ends; None if there is none."""
        at = skip(self.text, at)
        if self.text.startswith(_QUOTE, at):
            return self._quoted(at)
        opener = self.text[at : at + 1]
        if opener in ("{", "["):
            return self._collection(at, levels) if levels else None
        word = _LITERAL.match(self.text, at)
        value = value_of(word.group()) if word else ""
        return None if word is None or isinstance(value, str) else (value, word.end())

    def _quoted(self, at: int) -> tuple[str, int] | None:
        start = at + len(_QUOTE)
        end = self.text.find(_QUOTE, start)
        return None if end < 0 else (self.text[start:end], end + len(_QUOTE))

    def _key(self, at: int) -> tuple[str, int] | None:
        if self.text.startswith(_QUOTE, at):
            quoted = self._quoted(at)
            colon = skip(self.text, quoted[1]) if quoted else -1
            if quoted is None or not self.text.startswith(":", colon):
                return None
            return quoted[0], colon + 1
        bare = _KEY.match(self.text, at)
        return None if bare is None else (bare.group(1), bare.end())

    def _collection(self, at: int, levels: int) -> tuple[Any, int] | None:
        keyed = self.text[at] == "{"
        closer = "}" if keyed else "]"
        members: dict[str, Any] = {}
        items: list[Any] = []
        at = skip(self.text, at + 1)
        while not self.text.startswith(closer, at):
            key = self._key(at) if keyed else ("", at)
            read = self.read(key[1], levels - 1) if key else None
            if key is None or read is None:
                return None
            members[key[0]] = read[0]
            items.append(read[0])
            at = skip(self.text, read[1])
            if self.text.startswith(",", at):
                at = skip(self.text, at + 1)
            elif not self.text.startswith(closer, at):
                return None
        return (members if keyed else items), at + 1
