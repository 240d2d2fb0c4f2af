"""Which format a model writes: the one that reads back what its chat template renders.

The template decides, not the model's name, and not the template's exact text: a template somebody
changed still renders calls in its family's format, and a template that drops calls renders none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from agentgym.tokens.calls.channels import Harmony, Muse
from agentgym.tokens.calls.deepseek import DeepSeek
from agentgym.tokens.calls.gemma import Gemma
from agentgym.tokens.calls.glm import Glm
from agentgym.tokens.calls.hermes import Hermes
from agentgym.tokens.calls.invoke import dsml
from agentgym.tokens.calls.llama import Llama
from agentgym.tokens.calls.mistral import Mistral
from agentgym.tokens.calls.pythonic import Pythonic
from agentgym.tokens.calls.qwen_xml import QwenXml
from agentgym.tokens.calls.reading import CallFormat, ReadCall
from agentgym.types import Message, ToolSpec

FORMATS: tuple[CallFormat, ...] = (
    Hermes(), QwenXml(), Glm(), Llama(), Harmony(), Muse(), Gemma(), Pythonic(), DeepSeek(), dsml(),
    Mistral(),
)  # fmt: skip
"""Every format there is a reader for."""

_NAME, _KEY, _VALUE, _RESULT = "probe_tool", "probe_key", "probe value", "probe result"
_TOOL: ToolSpec = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}
_ID = "abcdefgh1"  # Mistral's templates want nine letters or digits
Render = Callable[[Sequence[Message], Sequence[ToolSpec], bool], str]
"""Messages, tools and whether the assistant is to go on, to the template's text; may raise."""


def format_of(render: Render, *, without: Callable[[str, CallFormat], str]) -> CallFormat | None:
    """The format that a chat template has its model write calls in.

    Args:
        render: The chat template.
        without: Takes control tokens that a format doesn't need out of a text.

    Returns:
        The format; None if the template shows no calls or no results of tools, or the calls can't
        be read.
    """
    for arguments in ({_KEY: _VALUE}, json.dumps({_KEY: _VALUE})):  # DeepSeek 3 wants text
        reply = _rendered_call(render, arguments)
        if reply is not None:
            wanted = (ReadCall(_NAME, {_KEY: _VALUE}),)
            read = (f for f in FORMATS if f.read(without(reply, f), [_TOOL]).calls == wanted)
            return next(read, None)
    return None


def _rendered_call(render: Render, arguments: Any) -> str | None:
    """What the model should sample to make a call; None if the template can't show one."""
    user: Message = {"role": "user", "content": "."}
    function = {"name": _NAME, "arguments": arguments}
    calls = [{"id": _ID, "type": "function", "function": function}]
    called: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    result: Message = {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": _RESULT}
    try:
        prompt = render([user], [_TOOL], True)
        closed = render([user, called], [_TOOL], False)
        answered = render([user, called, result], [_TOOL], False)
    except Exception:  # a template may raise anything, and then it can't show a call
        return None
    if _RESULT not in answered:
        return None
    return closed[_shared(prompt, closed) :]


def _shared(one: str, other: str) -> int:
    """How many characters two texts start with in common, a tag begun in both not counted."""
    pairs = zip(one, other, strict=False)
    size = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    tag, end = one.rfind("<", 0, size), one.rfind(">", 0, size)
    return tag if tag > end else size
