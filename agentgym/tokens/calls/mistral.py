"""`[TOOL_CALLS]`: Mistral, in its three spellings.

A list of JSON objects (tokenizers up to version 7), `name[ARGS]{…}` per call (version 11 and
later), and the same with `[CALL_ID]` between. Nothing closes a call but the end of the message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym.tokens.calls.json_calls import Block, json_arguments, json_calls
from agentgym.tokens.calls.reading import last_repaired, unreadable
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.types import ToolSpec

_NAMED = re.compile(r"\s*([\w./:-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?P<args>\[ARGS\])?\s*(?=\{)")
_BORDER = re.compile(r"(?P<close>\Z|(?=\[TOOL_CALLS\]))")


class Mistral(TaggedFormat):
    """A list after the tag, or one call per tag."""

    name = "mistral"
    opening = re.compile(r"\[TOOL_CALLS\]")
    control = frozenset({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"})
    think = ("[THINK]", "[/THINK]")

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read what follows one tag."""
        at = begun.end()
        if named := _NAMED.match(text, at):
            call, end = json_arguments(text, named.end(), _BORDER, named.group(1))
            return Block(last_repaired([call], named["args"] is None), end)
        if text[at:].lstrip().startswith(("[", "{")):
            return json_calls(text, at, _BORDER, listed=True)
        border = _BORDER.search(text, at)
        stop = border.start() if border else len(text)
        return Block([unreadable(text[at:stop])], stop)
