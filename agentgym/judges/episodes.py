"""Episodes from conversations: for gold sets, attack suites and transcripts from elsewhere.

An environment records an episode while it happens. A conversation that was written by hand, or came
from another system, has only its messages; the turns follow from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentgym.types import (
    Episode,
    Message,
    Task,
    ToolCall,
    ToolSpec,
    TruncationReason,
    Turn,
    nests_too_deep,
)


def episode_from_messages(
    messages: Sequence[Message],
    *,
    task: Task,
    env_id: str = "transcript",
    tools: Sequence[ToolSpec] = (),
    truncation_reason: TruncationReason | None = None,
    outcome: Mapping[str, Any] | None = None,
) -> Episode:
    """The episode that a finished conversation is the record of.

    Args:
        messages: OpenAI format, opening messages included.
        task: With its hidden reference, if the judge is to see one.
        env_id: Where the conversation comes from.
        tools: OpenAI tool list.
        truncation_reason: Which limit cut it; None if it ended by itself.
        outcome: Final state for verifiers.
    """
    turns = turns_of(messages)
    cut = truncation_reason is not None
    last = turns[-1].message if turns else {}
    answered = not cut and not last.get("tool_calls")
    return Episode(
        env_id=env_id,
        task=task,
        tools=tuple(tools),
        messages=tuple(messages),
        turns=turns,
        terminated=not cut,
        truncated=cut,
        termination_reason=None if cut else "answered" if answered else "finished",
        truncation_reason=truncation_reason,
        answer=str(last.get("content") or "") if answered else None,
        outcome=dict(outcome or {}),
    )


def turns_of(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """The turns of a conversation: each assistant message with what came before the next one."""
    starts = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    ends = [*starts[1:], len(messages)]
    return tuple(
        Turn(
            index=index,
            message=messages[start],
            replies=tuple(messages[start + 1 : end]),
            calls=tuple(_calls(messages[start])),
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=False))
    )


def _calls(message: Message) -> Iterator[ToolCall]:
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        arguments = _arguments(function.get("arguments"))
        yield ToolCall(
            id=str(call.get("id") or f"call_{number}"),
            name=str(function.get("name") or ""),
            arguments=arguments,
            raw_arguments=function.get("arguments"),
            status="malformed" if arguments is None else "ok",
        )


def _arguments(given: Any) -> dict[str, Any] | None:
    """Arguments as an object; None if they are none."""
    try:
        value = json.loads(given) if isinstance(given, str) and given.strip() else given or {}
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not nests_too_deep(value) else None
