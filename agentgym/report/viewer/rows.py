"""What the list shows of an episode, and what its page needs of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from agentgym.report.viewer.external import External
from agentgym.trace import Trace
from agentgym.types import Message, Turn, Usage

COLUMNS = (
    "file",
    "id",
    "env",
    "task",
    "split",
    "group",
    "sample",
    "seed",
    "model",
    "reward",
    "correct",
    "completed",
    "externalName",
    "external",
    "externallySolved",
    "masked",
    "truncated",
    "failureClass",
    "failedStage",
    "gates",
    "components",
    "turns",
    "calls",
    "malformed",
    "cutOff",
    "tokensIn",
    "tokensCached",
    "tokensOut",
    "cost",
    "seconds",
    "ended",
    "earlier",
    "started",
    "opening",
)
"""Names of a row's values; the page's script reads rows by them."""

_OPENING_CHARS = 200
_MAX_SAFE_INTEGER = 2**53 - 1
"""JavaScript has no greater whole numbers; they become text."""
_LONG_NUMBER = re.compile(r"[:,\[]-?\d{16}")


def row_of(trace: Trace, file: int, external: External | None = None) -> list[Any]:
    """One episode in the order of `COLUMNS`.

    Args:
        trace: The episode.
        file: The number of its file.
        external: What an evaluation's external score says of it, where one does.
    """
    verdict, policy = trace.verdict, trace.usage.get("policy")
    if policy is None:
        policy = sum((t.usage for t in trace.turns if t.usage), Usage(calls=0))
    counted = policy.calls > 0
    return [
        file,
        trace.trace_id,
        _env_id(trace.env_spec),
        trace.task_id,
        trace.split,
        trace.group,
        trace.sample,
        None if trace.seed is None else str(trace.seed),
        _model(trace),
        verdict.reward,
        verdict.correct,
        verdict.completed,
        *(external or (None, None, None)),
        verdict.masked,
        trace.truncated,
        trace.failure_class or (verdict.failure_class if verdict.masked else None),
        trace.failed_stage,
        [name for name, tripped in verdict.gates.items() if tripped],
        verdict.components,
        len(trace.turns),
        sum(len(turn.calls) for turn in trace.turns),
        trace.malformed_calls,
        any(turn.cut_off for turn in trace.turns),
        policy.prompt_tokens if counted else None,
        policy.cached_tokens if counted else None,
        policy.completion_tokens if counted else None,
        sum(trace.usage.values(), Usage(calls=0)).cost_usd,
        sum(trace.stage_s.values()) if trace.stage_s else None,
        _ended(trace),
        len(trace.earlier),
        trace.started_at,
        _opening(trace.messages),
    ]


def body_json(trace: Trace) -> str:
    """The episode as its page gets it.

    Token ids and log-probabilities are left out, which nobody reads and which make most of a
    trace's size; their number and mean stay.
    """
    turns = tuple(
        turn.model_copy(update={"prompt_ids": None, "completion_ids": None, "logprobs": None})
        for turn in trace.turns
    )
    line = trace.model_copy(update={"turns": turns}).to_json_line().rstrip("\n")
    if _LONG_NUMBER.search(line):
        line = json.dumps(json.loads(line, parse_int=_safe_number), ensure_ascii=False)
    return f'{{"trace":{line},"ids":{json.dumps([_ids(turn) for turn in trace.turns])}}}'


def conversation_texts(trace: Trace) -> Iterator[str]:
    """Every text in which the page's search looks: what was said, called, judged, and went wrong.

    The script of a page on disk has the same rule, in `store.js`.
    """
    yield from _texts(list(trace.messages))
    yield from (turn.reasoning for turn in trace.turns if turn.reasoning)
    yield from (text for text in (trace.answer, trace.verdict.reason, trace.error) if text)
    for attempt in trace.earlier:
        yield from _texts(attempt.model_dump())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _ids(turn: Turn) -> dict[str, Any] | None:
    if turn.completion_ids is None:
        return None
    known = [value for value in turn.logprobs or () if value == value]  # without NaN
    return {
        "prompt": len(turn.prompt_ids or ()),
        "sampled": len(turn.completion_ids),
        "mean_logprob": sum(known) / len(known) if known else None,
    }


def _safe_number(digits: str) -> int | str:
    value = int(digits)
    return value if abs(value) <= _MAX_SAFE_INTEGER else digits


def _env_id(spec: str) -> str:
    """The env's id, or the specification itself where it is no JSON object."""
    try:
        return str(json.loads(spec)["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return spec[:100]


def _model(trace: Trace) -> str | None:
    model = trace.policy.get("model")
    return None if model is None else str(model)


def _ended(trace: Trace) -> str:
    """How it came to its end."""
    if trace.failed_stage is not None:
        return f"failed in {trace.failed_stage}"
    if trace.truncation_reason is not None:
        return f"truncated: {trace.truncation_reason}"
    return trace.termination_reason or ("truncated" if trace.truncated else "terminated")


def _opening(messages: tuple[Message, ...]) -> str | None:
    """The beginning of the first message of a user."""
    for message in messages:
        if message.get("role") == "user":
            content = message.get("content")
            text = content if isinstance(content, str) else " ".join(_texts(content))
            return " ".join(text[: 4 * _OPENING_CHARS].split())[:_OPENING_CHARS]
    return None
