"""`{"name": …, "parameters": …}`: Llama 3.1 and 3.2, with no tag at all.

The whole message is one JSON object. A `<|python_tag|>` may stand before it, and is how the
built-in tools are called: `<|python_tag|>name.call(key="value")`. Calls beside prose, or several of
them, are read and counted, since the format has neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym.tokens.calls.json_calls import Block, json_calls
from agentgym.tokens.calls.json_text import find_json, skip
from agentgym.tokens.calls.pythonic import read_call
from agentgym.tokens.calls.reading import (
    ReadCall,
    last_repaired,
    repaired,
    unreadable,
)
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.types import ToolSpec

_OBJECT = r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"\s*:'
_BETWEEN = " \t\r\n,;"
_START = re.compile(_OBJECT)
_BORDER = re.compile(r"(?P<close>\Z)|<\|python_tag\|>")
_BUILT_IN = re.compile(r"\s*(\w+)\.call(?=\()")
_LIKE_A_CALL = re.compile(r'\s*\{\s*"(?:name|parameters|arguments)"\s*:')


class Llama(TaggedFormat):
    """One bare object, or what stands behind `<|python_tag|>`."""

    name = "llama"
    opening = re.compile(rf"<\|python_tag\|>|{_OBJECT}")
    control = frozenset({"<|python_tag|>"})
    key = "parameters"

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read the object, or what the tag announces."""
        tagged = begun.group() == "<|python_tag|>"
        at = begun.end() if tagged else begun.start()
        beside = bool(text[: begun.start()].strip())
        if tagged and (built_in := _BUILT_IN.match(text, at)):
            read = read_call(text, built_in.end(), built_in.group(1))
            if read is not None:
                return Block(last_repaired([read[0]], beside), read[1])
        if tagged and not text[at:].lstrip().startswith(("{", "[")):
            return Block([unreadable(text[at:])], len(text))
        return self._objects(text, at, broken=beside)

    def _objects(self, text: str, at: int, *, broken: bool) -> Block:
        """The objects from here on; prose behind the last one stays prose."""
        start = skip(text, at)
        found = find_json(text, start) if text.startswith("{", start) else None
        if found is None:
            block = json_calls(text, at, _BORDER, key=self.key)
            return Block(last_repaired(block.calls, broken), block.end)
        calls: list[ReadCall] = []
        end = start
        while found is not None:
            one = json_calls(text[: found.end], start, _BORDER, key=self.key).calls
            calls += [repaired(call, bool(calls)) for call in one]
            end = found.end
            start = skip(text, end, _BETWEEN)
            found = find_json(text, start) if _START.match(text, start) else None
        return Block(last_repaired(calls, broken or bool(text[end:].strip())), end)

    def _without_tags(
        self, content: str, calls: list[ReadCall], tools: Sequence[ToolSpec]
    ) -> tuple[str, list[ReadCall]]:
        """As everywhere; and what starts like a call and is no JSON is a call."""
        content, calls = super()._without_tags(content, calls, tools)
        start = _LIKE_A_CALL.match(content)
        if not calls and start is not None and find_json(content, content.index("{")) is None:
            return "", [unreadable(content)]
        return content, calls

    def _bare(self, call: ReadCall) -> ReadCall:
        """Without a tag is how the format is."""
        return call
