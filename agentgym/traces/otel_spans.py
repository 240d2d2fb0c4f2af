"""A trace as OpenTelemetry spans: names and attributes of the GenAI conventions, v1.41.1.

One root `invoke_agent` per episode, a `chat` per turn and an `execute_tool` per call, at the times
at which they happened. Later versions of the conventions renamed some of this; what is written here
stays what it is until it is changed on purpose. What the conventions have no name for stands under
`agentgym.`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from agentgym.redaction import Redactor
from agentgym.trace import Trace
from agentgym.types import Message, ToolCall, Turn, Usage, clean_text

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

_NOT_EXECUTED = frozenset({"cut_off", "not_run"})
_LONGEST_ERROR = 500  # characters
_MOST_BITS = 63  # of an integer in OTLP; its sign is apart


@dataclass(frozen=True)
class TurnTimes:
    """When a turn happened, seconds from the episode's start."""

    asked_s: float
    answered_s: float
    stepped_s: float
    """When the env took the turn; the tools ran from here on."""
    over_s: float


def turn_times(trace: Trace) -> list[TurnTimes]:
    """When each turn happened.

    A question's time is recorded, and how long answer and env took; what lies between two turns
    beyond that is waiting in the client's queue, which comes before the answer.
    """
    found: list[TurnTimes] = []
    after_s = trace.stage_s.get("init", 0.0)
    for turn, following in zip_longest(trace.turns, trace.turns[1:]):
        asked_s = after_s if turn.at_s is None else turn.at_s
        answered_s = asked_s + (turn.policy_s or 0.0)
        stepped_s = answered_s
        if following is not None and following.at_s is not None:
            stepped_s = max(answered_s, following.at_s - turn.env_s)
        after_s = stepped_s + turn.env_s
        found.append(TurnTimes(asked_s, answered_s, stepped_s, after_s))
    return found


class SpanWriter:
    """Writes traces as spans.

    Args:
        tracer: Makes the spans.
        redact: Takes secrets out of every text.
        content: Whether messages, arguments and the judge's remarks are written, too.
        provider: `gen_ai.provider.name`: whose interface the policy's server has.
    """

    def __init__(self, tracer: Tracer, redact: Redactor, *, content: bool, provider: str) -> None:
        self._tracer = tracer
        self._redact = redact
        self._content = content
        self._provider = provider

    def write(self, trace: Trace) -> None:
        """Make an episode's spans, each of which ends at once."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        start = _nanoseconds(trace.started_at)
        times = turn_times(trace)
        end_s = max(
            sum(trace.stage_s.values()),
            (times[-1].over_s if times else 0.0) + trace.stage_s.get("eval", 0.0),
        )
        root = self._tracer.start_span(
            self._clean(f"invoke_agent {_env_id(trace)}"),
            kind=SpanKind.INTERNAL,
            attributes=self._set(self._root(trace)),
            start_time=start,
        )
        self._inside = set_span_in_context(root)
        for turn, when in zip(trace.turns, times, strict=True):
            self._chat(trace, turn, when, start)
            self._tools(trace, turn, when, start)
        for attempt in trace.earlier:
            facts = {"error.type": attempt.failure_class, "agentgym.stage": attempt.failed_stage}
            root.add_event("agentgym.attempt_failed", self._set(facts), timestamp=start)
        end = start + _ns(end_s)
        for evaluation in self._evaluations(trace):
            root.add_event("gen_ai.evaluation.result", self._set(evaluation), timestamp=end)
        if trace.failure_class is not None:
            root.set_status(Status(StatusCode.ERROR, self._told(trace.error)))
        root.end(end)

    # --- the spans ----------------------------------------------------------------------------

    def _root(self, trace: Trace) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": self._provider,
            "gen_ai.agent.name": _env_id(trace),
            "gen_ai.conversation.id": trace.trace_id,
            "gen_ai.request.model": trace.policy.get("model"),
            "error.type": trace.failure_class,
            "agentgym.task_id": trace.task_id,
            "agentgym.split": trace.split,
            "agentgym.seed": trace.seed,
            "agentgym.group": trace.group,
            "agentgym.sample": trace.sample,
            "agentgym.attempts": len(trace.earlier) + 1,
            "agentgym.turns": len(trace.turns),
            "agentgym.reward": trace.reward,
            "agentgym.masked": not trace.scored,
            "agentgym.correct": trace.verdict.correct,
            "agentgym.gates": [name for name, hit in trace.verdict.gates.items() if hit],
            "agentgym.failed_stage": trace.failed_stage,
            "agentgym.termination_reason": trace.termination_reason,
            "agentgym.truncation_reason": trace.truncation_reason,
        }
        facts |= {f"agentgym.stage.{name}_s": seconds for name, seconds in trace.stage_s.items()}
        for role, usage in trace.usage.items():
            facts |= {f"agentgym.{role}.{name}": n for name, n in _billed(usage).items()}
        return facts

    def _chat(self, trace: Trace, turn: Turn, when: TurnTimes, start: int) -> None:
        from opentelemetry.trace import SpanKind

        policy, model = trace.policy, trace.policy.get("model")
        facts: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._provider,
            "gen_ai.conversation.id": trace.trace_id,
            "gen_ai.request.model": model,
            "gen_ai.request.temperature": policy.get("temperature"),
            "gen_ai.request.top_p": policy.get("top_p"),
            "gen_ai.request.max_tokens": policy.get("max_tokens"),
            "gen_ai.request.seed": policy.get("seed"),
            "gen_ai.response.finish_reasons": [turn.finish_reason] if turn.finish_reason else None,
            "agentgym.turn": turn.index,
            "agentgym.attempts": turn.attempts,
            "agentgym.replica": turn.replica,
            "agentgym.weight_version": turn.weight_version,
            **_usage(turn.usage),
        }
        if self._content:
            facts["gen_ai.input.messages"] = self._json(_parts(_asked(trace, turn)))
            facts["gen_ai.output.messages"] = self._json(_parts([turn.message]))
        span = self._tracer.start_span(
            self._clean(f"chat {model}" if model else "chat"),
            context=self._inside,
            kind=SpanKind.CLIENT,
            attributes=self._set(facts),
            start_time=start + _ns(when.asked_s),
        )
        span.end(start + _ns(when.answered_s))

    def _tools(self, trace: Trace, turn: Turn, when: TurnTimes, start: int) -> None:
        from opentelemetry.trace import SpanKind

        answers = {message.get("tool_call_id"): message for message in turn.replies}
        known = {spec.get("function", {}).get("name") for spec in trace.tools}
        at_s = when.stepped_s
        for call in turn.calls:
            if call.status in _NOT_EXECUTED:
                continue
            # The name of a tool that doesn't exist is text of the policy's.
            is_named = call.status != "malformed" or call.name in known
            facts: dict[str, Any] = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.name if is_named or self._content else None,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call.id,
                "error.type": call.status if call.status != "ok" else None,
            }
            if self._content:
                facts |= self._call_content(call, answers.get(call.id))
            span = self._tracer.start_span(
                self._clean(f"execute_tool {call.name}" if is_named else "execute_tool"),
                context=self._inside,
                kind=SpanKind.INTERNAL,
                attributes=self._set(facts),
                start_time=start + _ns(at_s),
            )
            self._mark(span, call)
            at_s += call.duration_s
            span.end(start + _ns(at_s))

    def _call_content(self, call: ToolCall, answer: Message | None) -> dict[str, Any]:
        arguments = call.raw_arguments if call.arguments is None else call.arguments
        facts = {"gen_ai.tool.call.arguments": self._json(arguments)}
        if answer is not None:
            facts["gen_ai.tool.call.result"] = self._json(answer.get("content"))
        return facts

    def _mark(self, span: Span, call: ToolCall) -> None:
        from opentelemetry.trace import Status, StatusCode

        if call.status != "ok":
            span.set_status(Status(StatusCode.ERROR))

    def _evaluations(self, trace: Trace) -> Iterator[dict[str, Any]]:
        """What the judge said: the reward and its parts, or that it failed."""
        verdict = trace.verdict
        if verdict.judge_failed:
            yield {"gen_ai.evaluation.name": "reward", "error.type": "judge"}
        if verdict.reward is None:
            return
        label = {True: "correct", False: "incorrect", None: None}[verdict.correct]
        yield {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": verdict.reward,
            "gen_ai.evaluation.score.label": label,
            "gen_ai.evaluation.explanation": self._told(verdict.reason) if self._content else None,
        }
        for name, value in verdict.components.items():
            yield {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": value}

    # --- values -------------------------------------------------------------------------------

    def _set(self, facts: Mapping[str, Any]) -> dict[str, AttributeValue]:
        """The attributes that are known, in a form in which they may be sent and can be."""
        return {name: self._clean(value) for name, value in facts.items() if value is not None}

    def _clean(self, value: Any) -> Any:
        """Any text may hold a secret, ids and names that a model chose too."""
        if isinstance(value, str):
            return self._redact.from_text(clean_text(value))
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            return str(value)
        return value

    def _json(self, value: Any) -> str:
        return self._redact(json.dumps(value, ensure_ascii=False, default=repr))

    def _told(self, error: str | None) -> str | None:
        """The line of an error that says what happened, without secrets."""
        if not error:
            return None
        return self._redact.from_text(error.strip().rpartition("\n")[2])[:_LONGEST_ERROR]


def _usage(usage: Usage | None) -> dict[str, int]:
    if usage is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }


def _billed(usage: Usage) -> dict[str, float | None]:
    return {
        "calls": usage.calls,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cost_usd": usage.cost_usd,
    }


def _asked(trace: Trace, turn: Turn) -> Sequence[Message]:
    """What the policy was told since its last message."""
    if turn.index:
        return trace.turns[turn.index - 1].replies
    later = sum(1 + len(each.replies) for each in trace.turns)
    return trace.messages[: max(0, len(trace.messages) - later)]


def _parts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the conventions' form."""
    found = []
    for message in messages:
        parts: list[dict[str, Any]] = []
        if message.get("role") == "tool":
            result = {"type": "tool_call_response", "id": message.get("tool_call_id")}
            parts.append({**result, "result": message.get("content")})
        elif message.get("content"):
            parts.append({"type": "text", "content": message["content"]})
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            named = {"type": "tool_call", "id": call.get("id"), "name": function.get("name")}
            parts.append({**named, "arguments": function.get("arguments")})
        found.append({"role": message.get("role"), "parts": parts})
    return found


def _env_id(trace: Trace) -> str:
    """The environment's id, or the name of the class or function that made it."""
    try:
        spec = json.loads(trace.env_spec)
    except ValueError:
        spec = None
    if not isinstance(spec, dict):
        return "env"
    return str(spec.get("id") or str(spec.get("entry_point") or "env").rpartition(":")[2])


def _nanoseconds(moment: str) -> int:
    return _ns(datetime.fromisoformat(moment).timestamp())


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
