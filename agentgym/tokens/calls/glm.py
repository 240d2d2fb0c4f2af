"""`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM 4.5 on.

Nothing but the closing tag tells that a call has all its arguments, so without it, or the next
call, the call can't be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentgym.tokens.calls.json_calls import Block
from agentgym.tokens.calls.reading import ReadCall, schema_of, unreadable
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.tokens.calls.values import typed
from agentgym.types import ToolSpec

_NAME = re.compile(r"\s*([^\s<]+)\s*(?=<arg_key>|</tool_call>|<tool_call>|\Z)")
_PAIR = re.compile(
    r"\s*<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
    r"(?=\s*(?:<arg_key>|</?tool_call>|\Z))",
    re.DOTALL,
)
_BROKEN_PAIR = re.compile(
    r"\s*<arg_key>(?P<key>[^<]*?)(?:</arg_key>)?\s*<arg_value>(?P<value>(?:(?!<tool_call>).)*?)"
    r"(?:</arg_value>|(?=<arg_key>|</tool_call>))",
    re.DOTALL,
)
_CLOSE = re.compile(r"\s*</tool_call>")
_OVER = re.compile(r"\s*(?=<tool_call>)")
_BORDER = re.compile(r"</tool_call>|(?=<tool_call>)")


class Glm(TaggedFormat):
    """One call per block, keys and values in turn."""

    name = "glm"
    opening = re.compile(r"<tool_call>")
    control = frozenset(
        {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}
        | {"<think>", "</think>"}
    )

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read one block."""
        head = _NAME.match(text, begun.end())
        arguments: dict[str, Any] = {}
        broken = False
        if head is not None:
            name, at = head.group(1), head.end()
            schema = schema_of(tools, name)
            while True:
                ended = text.find("</arg_value>", at) >= 0  # far quicker than the pattern
                pair = _PAIR.match(text, at) if ended else None
                if pair is None:
                    pair = _BROKEN_PAIR.match(text, at)
                    broken = broken or pair is not None
                if pair is None:
                    break
                key = pair["key"].strip()
                broken = broken or key in arguments
                arguments[key] = typed(pair["value"], schema, key)
                at = pair.end()
            if close := _CLOSE.match(text, at):
                return Block([ReadCall(name, arguments, broken)], close.end())
            if _OVER.match(text, at):
                return Block([ReadCall(name, arguments, repaired=True)], at)
        border = _BORDER.search(text, begun.end())
        stop, end = (border.start(), border.end()) if border else (len(text), len(text))
        return Block([unreadable(text[begun.end() : stop])], end)
