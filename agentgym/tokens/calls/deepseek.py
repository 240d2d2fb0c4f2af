"""`<｜tool▁call▁begin｜>…<｜tool▁sep｜>…<｜tool▁call▁end｜>`: DeepSeek 3, R1 and 3.1.

DeepSeek 3 writes the call's type before the separator, and name and fenced arguments behind it;
3.1 writes the name before it and the bare arguments behind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym.tokens.calls.json_calls import Block, json_arguments
from agentgym.tokens.calls.reading import ReadCall, last_repaired, repaired, unreadable
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.types import ToolSpec

_CALL = re.compile(r"\s*<｜tool▁call▁begin｜>\s*([^\s<]*)\s*<｜tool▁sep｜>")
_FENCED = re.compile(r"[ \t]*([^\s`<{]+)[ \t]*\n?\s*```(?:json)?\s*")
_BORDER = re.compile(r"(?P<close><｜tool▁call▁end｜>)|<｜tool▁calls?▁(?:begin|end)｜>")
_BEGIN = re.compile(r"\s*<｜tool▁call▁begin｜>")
_CLOSE = re.compile(r"\s*<｜tool▁calls▁end｜>")


class DeepSeek(TaggedFormat):
    """Any number of calls per block."""

    name = "deepseek"
    opening = re.compile(r"<｜tool▁calls▁begin｜>|<｜tool▁call▁begin｜>")
    control = frozenset(
        {
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
        }
        | {"<｜tool▁call▁end｜>", "<think>", "</think>"}
    )

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read one block."""
        wrapped = "calls" in begun.group()
        at = begun.end() if wrapped else begun.start()
        calls: list[ReadCall] = []
        while (head := _CALL.match(text, at)) is not None:
            name, start = head.group(1), head.end()
            fenced = _FENCED.match(text, start)
            kind = name
            if fenced is not None:
                name, start = fenced.group(1), fenced.end()
            behind = "```" if fenced else ""
            call, at = json_arguments(text, start, _BORDER, name, behind=behind)
            calls.append(repaired(call, fenced is not None and kind != "function"))
        close = _CLOSE.match(text, at)
        if close is None and (not calls or _BEGIN.match(text, at)):
            return Block([*calls, unreadable(text[at:])], len(text))
        whole = wrapped and close is not None
        return Block(last_repaired(calls, not whole), close.end() if close else at)
