"""Whether a list of messages is a conversation that every OpenAI-compatible server accepts.

Servers differ in what they forgive. The rules here are the union of what the strict ones and common
chat templates refuse, so that a conversation which passes can be sent anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_ROLES = ("system", "developer", "user", "assistant", "tool")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class EnvCheckError(AssertionError):
    """A check failed; the message says which one, what happened and what to do."""


def check_conversation(messages: Sequence[Mapping[str, Any]], *, unanswered: bool = False) -> None:
    """Check that messages form a valid OpenAI conversation.

    Each tool call has an id of its own, arguments that are a JSON object, and exactly one tool
    message, in place and in order; system messages stand first; content is text (or content parts)
    and null only beside tool calls; everything can be encoded as strict JSON in UTF-8.

    Args:
        messages: The whole conversation.
        unanswered: Whether the last message may be an assistant message whose calls have no answers
            yet.

    Raises:
        EnvCheckError: Naming the message by its position.
    """
    seen: set[str] = set()
    waiting: list[str] = []
    opening = True
    for index, message in enumerate(messages):
        _check_encodable(message, index)
        role = message.get("role")
        _require(role in _ROLES, index, f"role is {role!r}; allowed: {', '.join(_ROLES)}")
        if waiting and role != "tool":
            _fail(index, f"tool calls {waiting} have no tool message directly after them")
        if role in ("system", "developer"):
            _require(opening, index, f"a {role} message stands after others; templates refuse that")
        else:
            opening = False
        _check_content(message, index)
        if role == "tool":
            _check_answer(message, index, waiting)
        elif role == "assistant":
            waiting = _check_calls(message, index, seen)
        else:
            _require("tool_calls" not in message, index, f"a {role} message can't have tool_calls")
    if waiting and not unanswered:
        _fail(len(messages) - 1, f"the conversation ends before tool calls {waiting} are answered")


def _check_encodable(message: Any, index: int) -> None:
    _require(isinstance(message, dict), index, f"is a {type(message).__name__}, not a dict")
    try:
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise EnvCheckError(f"message {index} can't be encoded as JSON: {error}") from error


def _check_content(message: Mapping[str, Any], index: int) -> None:
    content = message.get("content")
    if content is None:
        legal = message["role"] == "assistant" and bool(message.get("tool_calls"))
        _require(legal, index, "content is null; only an assistant message with tool_calls may")
    elif isinstance(content, list):
        parts = all(isinstance(part, dict) and "type" in part for part in content)
        _require(parts and content != [], index, "content parts must be dicts with a type")
    else:
        _require(isinstance(content, str), index, f"content is a {type(content).__name__}")


def _check_answer(message: Mapping[str, Any], index: int, waiting: list[str]) -> None:
    given = message.get("tool_call_id")
    _require(bool(waiting), index, f"answers {given!r}, which no call directly before it waits for")
    _require(
        given == waiting[0], index, f"answers {given!r} where {waiting[0]!r} is the next in order"
    )
    waiting.pop(0)


def _check_calls(message: Mapping[str, Any], index: int, seen: set[str]) -> list[str]:
    if "tool_calls" not in message or message["tool_calls"] is None:
        return []
    calls = message["tool_calls"]
    _require(isinstance(calls, list) and calls != [], index, "tool_calls must be a list, not empty")
    waiting = []
    for call in calls:
        call_id = call.get("id")
        _require(isinstance(call_id, str) and call_id != "", index, f"tool call id is {call_id!r}")
        _require(call_id not in seen, index, f"tool call id {call_id!r} was used before")
        seen.add(call_id)
        waiting.append(call_id)
        _require(call.get("type") == "function", index, f"call {call_id}: type is not 'function'")
        _check_function(call.get("function"), call_id, index)
    return waiting


def _check_function(function: Any, call_id: str, index: int) -> None:
    _require(isinstance(function, dict), index, f"call {call_id}: function is not a dict")
    name, arguments = function.get("name"), function.get("arguments")
    legal = isinstance(name, str) and _NAME.fullmatch(name)
    _require(bool(legal), index, f"call {call_id}: name {name!r} doesn't match {_NAME.pattern}")
    _require(isinstance(arguments, str), index, f"call {call_id}: arguments are not a string")
    try:
        value = json.loads(arguments, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise EnvCheckError(
            f"message {index}: call {call_id}: arguments are not JSON ({error}): "
            f"{arguments!r:.200}; servers decode the arguments of past calls and refuse the rest"
        ) from error
    _require(isinstance(value, dict), index, f"call {call_id}: arguments are not a JSON object")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _require(holds: bool, index: int, fault: str) -> None:
    if not holds:
        _fail(index, fault)


def _fail(index: int, fault: str) -> None:
    raise EnvCheckError(f"message {index}: {fault}")
