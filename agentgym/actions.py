"""Reading an action: what enters the conversation, what is only recorded, how calls are replayed.

Servers differ in how they write a tool call (arguments as text or object, ids missing or
repeated, content null or empty). Here every dialect becomes the one form that every server accepts
back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from agentgym.errors import ActionError
from agentgym.types import Action, Message, Turn, Usage, clean_json, clean_text

ANNOTATIONS = frozenset(
    {
        "finish_reason", "cut_off", "reasoning", "usage", "policy_s", "attempts",
        "prompt_ids", "completion_ids", "logprobs",
    }
)  # fmt: skip
"""Fields of a `Turn` that an action may carry beside the message itself."""

_REPLAYED = ("role", "content", "name", "refusal")
_USAGE_KEYS = frozenset(Usage.model_fields)
_USAGE_DETAILS = (
    ("prompt_tokens_details", "cached_tokens", "cached_tokens"),
    ("completion_tokens_details", "reasoning_tokens", "reasoning_tokens"),
)
"""Where OpenAI's usage object has what `Usage` has at the top."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


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
    """Annotations as `Turn` takes them; usage may be an OpenAI usage object's dict."""
    usage = annotations.get("usage")
    if isinstance(usage, Mapping):
        known = {k: v for k, v in usage.items() if k in _USAGE_KEYS and v is not None}
        for details, key, ours in _USAGE_DETAILS:
            found = usage.get(details)
            if isinstance(found, Mapping) and found.get(key) is not None:
                known.setdefault(ours, found[key])
        annotations["usage"] = known
    try:
        probe = Turn(index=0, message={}, **annotations)
    except ValidationError as error:
        raise ActionError(f"the action's annotations are wrong: {error}") from error
    return {key: getattr(probe, key) for key in annotations}


def normalized_call(call: Message, call_id: str) -> Message:
    """A tool call as it is replayed: unique id, arguments as the JSON text of an object.

    Servers decode the arguments of past calls and refuse the conversation where they can't, or
    where a name has characters that no tool's name has. What the model really wrote is in the trace
    and in the error it is answered with.
    """
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    return {
        "id": call_id,
        "type": "function",
        "function": {
            "name": _NOT_IN_NAMES.sub("_", name)[:64] if isinstance(name, str) and name else "_",
            "arguments": _arguments_text(function.get("arguments")),
        },
    }


def _arguments_text(raw: Any) -> str:
    if isinstance(raw, str) and "\\u" not in raw:
        text, value = clean_text(raw), _decoded(raw)
        return text if isinstance(value, dict) else "{}"
    value = clean_json(_decoded(raw) if isinstance(raw, str) else raw)
    if not isinstance(value, dict):
        return "{}"
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return "{}"


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
