"""Chat-completions requests, made of our records.

What goes out is what the strictest server accepts: every sampling parameter in it, arguments as a
JSON string exactly once, content null only where the dialect wants it, nothing but UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.client import Dialect, SamplingParams
from agentgym.clients.reply import BadReply
from agentgym.clients.written import Written
from agentgym.types import Message, ToolSpec, clean_json

_as_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_REPLAYED = ("role", "content", "tool_calls", "tool_call_id")


def replayed(message: Message, dialect: Dialect | None = None) -> Message:
    """The part of a message that goes back into a prompt.

    Reasoning and annotations stay out, except under the field that the dialect names; arguments are
    a JSON string exactly once; content is a string, and beside calls without text what the dialect
    wants.

    Raises:
        BadReply: If a call's arguments can't be written as JSON.
    """
    dialect = dialect or Dialect()
    kept = sent_fields(dialect) if message.get("role") == "assistant" else _REPLAYED
    sent = {key: message[key] for key in kept if message.get(key) is not None}
    calls = sent.pop("tool_calls", None)
    if calls:
        sent["tool_calls"] = [_replayed_call(call) for call in calls]
    if not sent.get("content"):
        sent["content"] = None if calls and dialect.empty_content == "null" else ""
    return sent


def sent_fields(dialect: Dialect) -> tuple[str, ...]:
    """The fields of a message that say what is sent of it."""
    if dialect.replay_reasoning == "never":
        return _REPLAYED
    return (*_REPLAYED, dialect.replay_reasoning)


def _replayed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        try:
            arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise _not_json(error) from error
    arguments = arguments.strip()
    return {
        "id": _as_text(call.get("id")),
        "type": "function",
        "function": {"name": _as_text(function.get("name")), "arguments": arguments or "{}"},
    }


def _as_text(value: Any) -> str | None:
    """A field that is text on the wire, whatever a server made of it."""
    return None if value is None else str(value)


def request_body(
    model: str,
    messages: Sequence[Message] | Written,
    tools: Sequence[ToolSpec] | Written,
    sampling: SamplingParams,
    dialect: Dialect | None = None,
) -> dict[str, Any]:
    """A chat-completions request with every sampling parameter in it.

    A parameter left out is filled in from the model's own generation config by some servers, which
    changes what is sampled; so neutral values are sent too.

    Args:
        model: The model's name.
        messages: The conversation.
        tools: OpenAI tool list.
        sampling: How to sample.
        dialect: What of it the server takes.
    """
    dialect = dialect or Dialect()
    if not isinstance(messages, Written):
        messages = [replayed(message, dialect) for message in messages]
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        **_numbers(sampling),
    }
    if dialect.temperature:
        body["temperature"] = sampling.temperature
    if tools and dialect.tools:
        body["tools"] = tools if isinstance(tools, Written) else list(tools)
    _add_wishes(body, sampling, dialect)
    if dialect.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return body


def token_request_body(
    model: str,
    prompt: Written,
    stop_ids: Sequence[int],
    sampling: SamplingParams,
    dialect: Dialect,
) -> dict[str, Any]:
    """A completions request in token ids, with every sampling parameter in it.

    Args:
        model: The model's name.
        prompt: The ids.
        stop_ids: Ids that end the turn; the last of what is sampled may be one.
        sampling: How to sample.
        dialect: Whether the server takes a seed.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "temperature": sampling.temperature,
        **_numbers(sampling),
        "n": 1,
        "stop_token_ids": list(stop_ids),
        "logprobs": 0,  # of the sampled ids, and of no others
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # beside the log-probabilities; nobody reads texts
        "add_special_tokens": False,
        "skip_special_tokens": False,
    }
    _add_wishes(body, sampling, dialect)
    return body


def _numbers(sampling: SamplingParams) -> dict[str, Any]:
    """What every request says, but for the temperature, which not every server takes."""
    return {
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "max_tokens": sampling.max_tokens,
    }


def _add_wishes(body: dict[str, Any], sampling: SamplingParams, dialect: Dialect) -> None:
    """What a request says only where it is asked for."""
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None and dialect.seed:
        body["seed"] = sampling.seed
    if sampling.json_schema is not None:
        body["response_format"] = _json_format(sampling.json_schema)


def _json_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    form = {"name": "answer", "schema": schema, "strict": _is_closed(schema)}
    return {"type": "json_schema", "json_schema": form}


def _is_closed(schema: Any) -> bool:
    """Whether a schema may be sent as strict: every object lists all its fields and requires them.

    https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
    """
    if isinstance(schema, list):
        return all(_is_closed(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(fields):
            return False
    return all(_is_closed(value) for value in schema.values())


def encoded(body: Mapping[str, Any]) -> bytes:
    """A request as JSON in UTF-8; what UTF-8 has no form for is replaced.

    Raises:
        BadReply: If it can't be encoded; trying again won't help.
    """
    return b"".join(pieces_of(body))


def pieces_of(body: Mapping[str, Any]) -> list[bytes]:
    """The pieces of `encoded`, which are put together only when the request is sent.

    Raises:
        BadReply: If it can't be encoded; trying again won't help.
    """
    pieces = [b"{"]
    rest = {}
    for key, value in body.items():
        if isinstance(value, Written):
            pieces += (written(key), b":", *value.pieces, b",")
        else:
            rest[key] = value
    # There is more than messages and tools: a model, at the least.
    return [*pieces, written(rest)[1:]]


def written(value: Any) -> bytes:
    """A value as JSON in UTF-8; what UTF-8 has no form for is replaced.

    Raises:
        BadReply: If it can't be encoded; trying again won't help.
    """
    try:
        try:
            return _as_json(value).encode()
        except UnicodeEncodeError:
            return _as_json(clean_json(value)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_json(error) from error


def _not_json(error: Exception) -> BadReply:
    text = f"the request can't be written as JSON, so it was not sent: {error}"
    return BadReply(text, retryable=False)


def check_answered(messages: Sequence[Message]) -> None:
    """Check that each tool call is answered exactly once, directly after its message.

    Strict servers refuse a conversation in which one isn't, at a later turn and in words that
    don't lead back to who left it out.

    Raises:
        BadReply: Naming the message by its position.
    """
    waiting: list[Any] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            given = message.get("tool_call_id")
            if given not in waiting:
                fault = f"message {index} answers tool call {given!r}, which doesn't wait for it"
                raise BadReply(f"{fault}; each call has exactly one answer", retryable=False)
            waiting.remove(given)
            continue
        _check_none_waits(waiting, index)
        waiting = [call.get("id") for call in message.get("tool_calls") or ()]
    _check_none_waits(waiting, len(messages))


def _check_none_waits(waiting: Sequence[Any], index: int) -> None:
    if waiting:
        raise BadReply(
            f"no tool message before message {index} answers the tool calls {waiting}; each call "
            "has exactly one answer, directly after it",
            retryable=False,
        )
