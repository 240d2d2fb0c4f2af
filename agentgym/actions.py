"""Reading an action: what enters the conversation, what is only recorded, how calls are replayed.

Servers differ in how they write a tool call (arguments as text or object, ids missing or
repeated, content null or empty). Here every dialect becomes the one form that every server accepts
back.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from agentgym.errors import ActionError
from agentgym.types import (
    Action,
    Message,
    Turn,
    Usage,
    clean_json,
    clean_text,
    in_one_line,
    nests_too_deep,
)

ANNOTATIONS = frozenset(
    {
        "finish_reason", "cut_off", "reasoning", "usage", "at_s", "policy_s", "attempts",
        "replica", "weight_version", "prompt_ids", "completion_ids", "logprobs",
    }
)  # fmt: skip
"""Fields of a `Turn` that an action may carry beside the message itself."""

_REPLAYED = frozenset({"name", "refusal"})
"""Fields beside role, content and calls that stay in the conversation, where they are text."""
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
    message: Message = {"role": "assistant", "content": None}
    for key in _REPLAYED & action.keys():
        if isinstance(action[key], str):
            message[key] = clean_text(action[key])
    content = _text_of(action.get("content"))
    calls = action.get("tool_calls")
    message["content"] = None if calls and not content.strip() else content
    if calls:
        message["tool_calls"] = calls
    return message, annotations


def _text_of(content: Any) -> str:
    """The text of a message's content, given as text or as a list of parts."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(text for text in texts if isinstance(text, str))
    return clean_text(content) if content else ""


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
        raise ActionError(f"the action's annotations are wrong: {in_one_line(error)}") from error
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
    value = _decoded(raw) if isinstance(raw, str) else raw
    if not isinstance(value, Mapping) or nests_too_deep(value):
        return "{}"
    try:
        return json.dumps(clean_json(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return "{}"


def _decoded(text: str) -> Any:
    try:
        value = _JSON.decode(text)
    except (ValueError, RecursionError):
        return None
    return None if nests_too_deep(value) else value


def recorded(raw: Any) -> Any:
    """What a model gave, in a form that a trace can hold: as it is, or described if JSON has none.

    Args:
        raw: Arguments or an id, of any type.
    """
    if raw is None or isinstance(raw, str):
        return clean_json(raw)
    try:
        if not nests_too_deep(raw):
            json.dumps(raw)
            return clean_json(raw)
    except (TypeError, ValueError):
        pass
    try:
        return clean_text(reprlib.repr(raw))
    except ValueError:  # an integer that Python won't write out
        return f"<{type(raw).__name__}>"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)
