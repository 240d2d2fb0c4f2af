"""Chat messages in Inspect's form: tool calls flat, arguments decoded, content always a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.types import Message

_ROLES = frozenset({"system", "user", "assistant", "tool"})
_MOST_LEVELS = 100
"""Of arguments; Inspect's reader gives up at about twice as many."""


def from_openai(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation.

    Args:
        messages: In OpenAI's form.
    """
    names: dict[str, str] = {}
    found = []
    for number, message in enumerate(messages):
        role = str(message.get("role"))
        role = "system" if role == "developer" else role if role in _ROLES else "user"
        made: dict[str, Any] = {
            "id": f"m{number}",
            "role": role,
            "content": _text(message.get("content")),
        }
        if role == "assistant":
            made["source"] = "generate"
            raw = message.get("tool_calls") or []
            if calls := [_call(call) for call in (raw if isinstance(raw, list | tuple) else [raw])]:
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


def _call(call: Any) -> dict[str, Any]:
    """A call, whatever it is: what can't be read is a parse error with its text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        call, function = {}, {"arguments": repr(call)}
    raw = function.get("arguments")
    made: dict[str, Any] = {
        "id": str(call.get("id")),
        "type": "function",
        "function": str(function.get("name")),
        "arguments": {},
    }
    try:
        is_text = isinstance(raw, str) and raw.strip()
        arguments = json.loads(str(raw), parse_constant=_no_number) if is_text else raw or {}
    except (ValueError, RecursionError) as error:
        return made | {"parse_error": f"{error}: {raw!r:.500}"}
    if not isinstance(arguments, dict):
        return made | {"parse_error": f"no JSON object: {raw!r:.500}"}
    if _levels(arguments) > _MOST_LEVELS:
        return made | {"parse_error": f"nested more than {_MOST_LEVELS} deep: {raw!r:.500}"}
    return made | {"arguments": arguments}


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _levels(value: Any) -> int:
    """How deep containers lie in each other; counted without recursion."""
    levels, inside = 0, [value]
    while inside and levels <= _MOST_LEVELS:
        held = [one for one in inside if isinstance(one, dict | list)]
        inside = [item for one in held for item in (one.values() if isinstance(one, dict) else one)]
        levels += bool(held)
    return levels


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
