"""Chat messages in Inspect's form: tool calls flat, arguments decoded, content always a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.types import Message


def from_openai(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation.

    Args:
        messages: In OpenAI's form.
    """
    names: dict[str, str] = {}
    found = []
    for number, message in enumerate(messages):
        role = str(message.get("role"))
        role = "system" if role == "developer" else role
        made: dict[str, Any] = {
            "id": f"m{number}",
            "role": role,
            "content": _text(message.get("content")),
        }
        if role == "assistant":
            made["source"] = "generate"
            if calls := [_call(call) for call in message.get("tool_calls") or ()]:
                made["tool_calls"] = calls
                names.update((call["id"], call["function"]) for call in calls)
        elif role == "tool":
            call_id = str(message.get("tool_call_id"))
            made |= {"tool_call_id": call_id, "function": names.get(call_id)}
        elif role in ("user", "system"):
            made["source"] = "input"
        found.append(made)
    return found


def opening_of(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What stood there before the model said anything."""
    first = next((n for n, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    return list(messages[:first])


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    raw = function.get("arguments")
    made: dict[str, Any] = {
        "id": str(call.get("id")),
        "type": "function",
        "function": str(function.get("name")),
        "arguments": {},
    }
    try:
        arguments = json.loads(raw) if isinstance(raw, str) and raw.strip() else raw or {}
    except (ValueError, RecursionError) as error:
        return made | {"parse_error": f"{error}: {raw!r:.500}"}
    if not isinstance(arguments, dict):
        return made | {"parse_error": f"no JSON object: {raw!r:.500}"}
    return made | {"arguments": arguments}


def _text(content: Any) -> str:
    """Content as a text; parts that are no text are named."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(part["text"]) if isinstance(part, dict) and "text" in part else f"[{_kind(part)}]"
            for part in content
        )
    return str(content)


def _kind(part: Any) -> str:
    return str(part.get("type", "part")) if isinstance(part, dict) else type(part).__name__
