"""Assistant messages written in one line, for tests and scripted policies."""

from __future__ import annotations

import json
from typing import Any

from agentgym.types import Message


def tool_call(name: str, call_id: str | None = None, /, **arguments: Any) -> Message:
    """One entry of `tool_calls`, as a well-behaved server writes it.

    Args:
        name: The tool.
        call_id: Its id; None leaves it out.
        arguments: The arguments by name.
    """
    return raw_call(name, json.dumps(arguments, ensure_ascii=False), call_id)


def raw_call(name: Any, arguments: Any, call_id: Any = None) -> Message:
    """One entry of `tool_calls` with name, arguments and id exactly as given."""
    call: Message = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call if call_id is None else {"id": call_id, **call}


def calling(*calls: Message, content: str | None = None, **annotations: Any) -> Message:
    """An assistant message that makes calls.

    Args:
        calls: From `tool_call` or `raw_call`.
        content: Text beside them.
        annotations: What is known of the message: `finish_reason`, `usage`, ….
    """
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **annotations}
