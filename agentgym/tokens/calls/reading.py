"""What a reply says: its text, its reasoning, and the calls it makes.

Reading is tolerant and counting is strict. A call that isn't written exactly as the format says,
and whose meaning is certain all the same, is read and marked `repaired`: it runs, and counts as
malformed. A call whose name or arguments aren't certain has no name, so that the environment
answers it as malformed. Whitespace between the parts of a call means nothing in any format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from agentgym.types import Message, ToolSpec

TAG = re.compile(
    r"</?tool_calls?>|<(?:function|parameter)=[^>\n]*>?|</?arg_(?:key|value)>"  # XML
    r"|\[/?TOOL_CALLS\]|\[ARGS\]|<\|python_tag\|>"  # Mistral, Llama
    r"|<\|?tool_call\|?>|<\|tool_call_(?:start|end)\|>"  # Gemma, LFM
    r"|<｜tool▁(?:calls?▁(?:begin|end)|sep)｜>|</?｜DSML｜|</?atem:"  # DeepSeek, Muse
    r"|<\|(?:channel|message|constrain|call)\|>|\bto=functions\."  # Harmony
)
"""A tag of any format. None may be left in what passes for an answer, since a call in the wrong
format is no answer either."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """One call as it was read."""

    name: str
    """The tool asked for; empty if the call can't be read."""
    arguments: Any
    """Usually an object; otherwise whatever stood in its place, or text that can't be read."""
    repaired: bool = False
    """Whether it was not written as the format says."""

    @property
    def malformed(self) -> bool:
        """Whether it counts as malformed, whatever the tool will make of its arguments."""
        return self.repaired or not self.name

    def as_message(self) -> Message:
        """The entry of a message's `tool_calls`; `repaired` is there only where it is so."""
        call: Message = {
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }
        return {**call, "repaired": True} if self.repaired else call


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole reply as it was read."""

    content: str
    """The text outside reasoning and calls."""
    reasoning: str | None = None
    """The text of the reasoning; None if there is none."""
    calls: tuple[ReadCall, ...] = field(default=())
    """The calls, in order."""

    @property
    def malformed(self) -> int:
        """Calls that count as malformed."""
        return sum(call.malformed for call in self.calls)


class CallFormat(Protocol):
    """How a family of models writes calls; readers keep no state."""

    @property
    def name(self) -> str:
        """The format's name, such as `hermes`."""
        ...

    @property
    def control(self) -> frozenset[str]:
        """Control tokens that the format needs, which decoding must keep."""
        ...

    @property
    def think(self) -> tuple[str, str]:
        """What opens and closes the reasoning where a prompt may open it; else empty."""
        ...

    def read(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Read a reply; never raises.

        Args:
            text: What was sampled, its tags included and its stop token not. Where the prompt
                opened the reasoning, its opening tag comes first.
            tools: What may be called; their schemas give types where the format has none.
        """
        ...

    def prose(self, text: str) -> Reading:
        """Read a reply where nothing can be called: text is text, and only thoughts are apart.

        Args:
            text: As for `read`.
        """
        ...


def without_thoughts(text: str, opens: str, closes: str) -> Reading:
    """What a reply says and what it thinks, both as they are written.

    Args:
        text: As for `CallFormat.read`; thoughts that end without having begun began in the prompt.
        opens: What opens the reasoning.
        closes: What closes it; reasoning that never ends is all there is.
    """
    parts: list[str] = []
    thoughts: list[str] = []
    if not 0 <= text.find(opens) < text.find(closes):
        before, closed, rest = text.partition(closes)
        if closed:
            thoughts.append(before)
            text = rest
    while text:
        said, opened, text = text.partition(opens)
        parts.append(said)
        if opened:
            thought, _, text = text.partition(closes)
            thoughts.append(thought)
    return told("".join(parts), thoughts)


def told(content: str, thoughts: Sequence[str]) -> Reading:
    """A reading without calls."""
    reasoning = "\n".join(found for part in thoughts if (found := part.strip()))
    return Reading(content.strip() if thoughts else content, reasoning or None)


def unreadable(text: str) -> ReadCall:
    """The call that stands for text that can't be read."""
    return ReadCall("", text.strip())


def repaired(call: ReadCall, really: bool = True) -> ReadCall:
    """The call, marked if it really was repaired; one that can't be read stays as it is."""
    return replace(call, repaired=True) if really and call.name else call


def last_repaired(calls: Iterable[ReadCall], really: bool = True) -> list[ReadCall]:
    """The calls, the last one marked if something around it was broken."""
    marked = list(calls)
    if marked:
        marked[-1] = repaired(marked[-1], really)
    return marked


def schema_of(tools: Sequence[ToolSpec], name: str) -> dict[str, Any]:
    """The JSON schema of a tool's parameters; empty where there is none."""
    for tool in tools:
        function = tool.get("function") or {}
        if function.get("name") == name:
            found = function.get("parameters")
            return found if isinstance(found, dict) else {}
    return {}


def tool_names(tools: Sequence[ToolSpec]) -> frozenset[str]:
    """The names that may be called."""
    return frozenset((tool.get("function") or {}).get("name") or "" for tool in tools) - {""}
