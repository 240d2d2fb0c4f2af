"""Running the calls of one turn: in order, each answered exactly once, whatever happens midway.

A policy's faults (unreadable arguments, unknown names, calls cut off by the output limit, calls
after the end) are answered with a text that says how to mend them, and recorded under a status of
their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentgym.actions import TextCall, normalized_call, recorded
from agentgym.errors import MalformedCall, SimulatorError, ToolError
from agentgym.running import RunningEpisode, TurnRecord
from agentgym.tools import ToolBox
from agentgym.types import CallStatus, Message, ToolCall, clean_text

_CUT_OFF_CALL = (
    "Error: the output limit ended this call, so it was not executed. "
    "Call it again with shorter arguments."
)
_UNREADABLE_CALL = (
    "Error: this call can't be read, so it was not executed. Call a tool again, by its name and "
    "with complete arguments, in the format for tool calls."
)


class _Asked(NamedTuple):
    """What is known of a call before it runs; fields as in `ToolCall`."""

    id: str
    name: str
    raw_arguments: Any
    original_id: str | None = None
    repaired: bool = False


def cut_off_reply() -> Message:
    """The answer to text that the output limit ended before it could be an action or an answer."""
    text = "Your message was ended by the output limit. Answer again, shorter."
    return {"role": "user", "content": text}


async def run_tool_calls(
    toolbox: ToolBox, running: RunningEpisode, record: TurnRecord, *, on_loop: bool
) -> Sequence[Message]:
    """Run a message's `tool_calls`, rewriting them into the form that is replayed.

    Args:
        toolbox: The tools there are.
        running: The episode.
        record: The turn; its message and calls are filled in.
        on_loop: See `Tool.call`.

    Returns:
        One tool message per call, in order.
    """
    given = record.message["tool_calls"]
    entries = [normalized_call(call, running.new_call_id(call.get("id"))) for call in given]
    record.message["tool_calls"] = entries
    replies: list[Message] = []
    for position, (entry, call) in enumerate(zip(entries, given, strict=True)):
        function = call.get("function")
        raw = function.get("arguments") if isinstance(function, Mapping) else None
        asked = function.get("name") if isinstance(function, Mapping) else None
        given_id = None if call.get("id") is None else str(recorded(call["id"]))
        last = position == len(entries) - 1
        text = await _run_call(
            toolbox,
            running,
            record,
            _Asked(
                id=entry["id"],
                name=clean_text(asked) if isinstance(asked, str) else "",
                raw_arguments=recorded(raw),
                original_id=given_id if given_id != entry["id"] else None,
                repaired=call.get("repaired") is True,
            ),
            cut_off=record.cut_off and last,
            on_loop=on_loop,
        )
        replies.append({"role": "tool", "tool_call_id": entry["id"], "content": text})
    return replies


async def run_text_calls(
    toolbox: ToolBox,
    running: RunningEpisode,
    record: TurnRecord,
    calls: Sequence[TextCall],
    *,
    on_loop: bool,
) -> Sequence[Message]:
    """Run calls found in text by an env's grammar; one user message answers them all."""
    texts = []
    for found in calls:
        call = _Asked(
            id=running.new_call_id(None),
            name=found.name,
            raw_arguments=dict(found.arguments),
        )
        texts.append(
            await _run_call(toolbox, running, record, call, cut_off=False, on_loop=on_loop)
        )
    return ({"role": "user", "content": "\n".join(texts)},)


async def _run_call(
    toolbox: ToolBox,
    running: RunningEpisode,
    record: TurnRecord,
    call: _Asked,
    *,
    cut_off: bool,
    on_loop: bool,
) -> str:
    """Run one call, record how it went, and return what the policy is told."""
    status: CallStatus = "ok"
    arguments = None
    started = time.perf_counter()
    try:
        if running.is_ending:
            status, text = "not_run", "Not executed: the episode is over."
        elif cut_off:
            status, text = "cut_off", _CUT_OFF_CALL
        else:
            status = "malformed"
            if not call.name:
                raise MalformedCall(_UNREADABLE_CALL)
            tool = toolbox.find(call.name)
            arguments = tool.read(call.raw_arguments)
            status = "ok"
            text = await tool.call(arguments, on_loop=on_loop)
    except MalformedCall as error:
        text, status = str(error), "malformed"
    except ToolError as error:
        text, status = str(error), "error"
    except SimulatorError as error:
        text, status = "Error: the tool gave no result.", "error"
        running.fail_by_simulator(error)
    record.calls.append(
        ToolCall(
            **call._asdict(),
            arguments=arguments,
            status=status,
            duration_s=time.perf_counter() - started,
        )
    )
    return text
