"""`<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen 2.5 and 3.

Source: the models' chat templates; https://github.com/NousResearch/Hermes-Function-Calling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym.tokens.calls.json_calls import Block, json_calls
from agentgym.tokens.calls.tagged import TaggedFormat
from agentgym.types import ToolSpec


class Hermes(TaggedFormat):
    """One JSON object per block."""

    name = "hermes"
    opening = re.compile(r"<tool_call>")
    control = frozenset({"<tool_call>", "</tool_call>", "<think>", "</think>"})
    _border = re.compile(r"(?P<close></tool_call>)|<tool_call>")

    def block(self, text: str, begun: re.Match[str], tools: Sequence[ToolSpec]) -> Block:
        """Read one block."""
        return json_calls(text, begun.end(), self._border, key=self.key)
