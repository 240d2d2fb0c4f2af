"""Reading an action: what enters the conversation, what is only recorded, how calls are replayed.

Servers differ in how they write a tool call (arguments as text or object, ids missing or
repeated, content null or empty). Here every dialect becomes the one form that every server accepts
back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from agentgym.errors import ActionError
from agentgym.types import Action, Message, Turn, Usage, clean_json

ANNOTATIONS = frozenset(
    {
        "finish_reason", "cut_off", "reasoning", "usage", "policy_s", "attempts",
        "prompt_ids", "completion_ids", "logprobs",
    }
)  # fmt: skip
"""Fields of a `Turn` that an action may carry beside the message itself."""

_REPLAYED = ("role", "content", "name", "refusal")
_USAGE_KEYS = frozenset(Usage.model_fields)


class TextCall(NamedTuple):
    """A call found in plain text by an env's own grammar."""

    name: str
    arguments: Mapping[str, Any]


def read_action(action: Action) -> tuple[Message, dict[str, Any]]:
    """Split an action into the message that enters the history and what is known about it.

    Args:
        action: A member of `AssistantSpace`.

    Raises:
        ActionError: If an annotation has the wrong type.
    """
    if isinstance(action, str):
        return {"role": "assistant", "content": clean_json(action)}, {}
    annotations = {key: action[key] for key in ANNOTATIONS & action.keys()}
    if "reasoning" not in annotations and action.get("reasoning_content"):
        annotations["reasoning"] = action["reasoning_content"]
    if annotations:
        annotations = _checked(annotations)
    message = {key: action[key] for key in _REPLAYED if key in action}
    message["role"] = "assistant"
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    content = clean_json(content) or ""
    calls = action.get("tool_calls")
    message["content"] = None if calls and not content.strip() else content
    if calls:
        message["tool_calls"] = calls
    return message, annotations


def _checked(annotations: dict[str, Any]) -> dict[str, Any]:
    """Annotations as `Turn` takes them; usage may be a dict with further fields."""
    usage = annotations.get("usage")
    if isinstance(usage, Mapping):
        known = {k: v for k, v in usage.items() if k in _USAGE_KEYS and v is not None}
        annotations["usage"] = known
    try:
        probe = Turn(index=0, message={}, **annotations)
    except ValidationError as error:
        raise ActionError(f"the action's annotations are wrong: {error}") from error
    return {key: getattr(probe, key) for key in annotations}


def normalized_call(call: Message, call_id: str) -> Message:
    """A tool call as it is replayed: unique id, arguments as one JSON string."""
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    raw = function.get("arguments")
    if isinstance(raw, str):
        arguments = clean_json(raw) if raw.strip() not in ("", "null") else "{}"
    else:
        arguments = _json({} if raw is None else clean_json(raw))
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name if isinstance(name, str) else "", "arguments": arguments},
    }


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return "{}"  # the call is malformed and answered as such; the raw value is in the trace
