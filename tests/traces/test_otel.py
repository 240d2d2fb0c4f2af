"""Spans of episodes: pinned names, real times, no content and no secrets; failures cost nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from agentgym.clients import ScriptedClient
from agentgym.errors import ConfigError
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.testing.envs import CounterEnv
from agentgym.trace import EarlierAttempt, Trace
from agentgym.traces import OtelSink, Tee, otel
from agentgym.types import ToolCall, Turn, Usage, Verdict

START_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
TRACE_ID = "0123456789abcdef0123456789abcdef"


def seconds(nanoseconds: int) -> float:
    return round((nanoseconds - START_NS) / 1e9, 6)


def tool_message(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def asks(*calls: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "let me see",
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, name, arguments in calls
        ],
    }


OPENING = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "find it"})
FIRST, LAST = (
    asks(("c1", "search", '{"q": "shoe"}'), ("c2", "sarch", "{")),
    asks(("c3", "buy", "{}")),
)
REPLIES = (tool_message("c1", "3 hits"), tool_message("c2", "no such tool"))
TURNS = (
    Turn(
        index=0,
        message=FIRST,
        replies=REPLIES,
        calls=(
            ToolCall(id="c1", name="search", arguments={"q": "shoe"}, duration_s=0.5),
            ToolCall(id="c2", name="sarch", arguments=None, status="malformed", raw_arguments="{"),
        ),
        finish_reason="tool_calls",
        usage=Usage(prompt_tokens=100, cached_tokens=60, completion_tokens=20, reasoning_tokens=8),
        at_s=2.0,
        policy_s=1.0,
        env_s=0.75,
        replica="http://gpu1/v1",
        weight_version="step-7",
        attempts=2,
    ),
    Turn(
        index=1,
        message=LAST,
        replies=(tool_message("c3", "bought"),),
        calls=(
            ToolCall(id="c3", name="buy", arguments={}, duration_s=0.25),
            ToolCall(id="c4", name="search", arguments={}, status="not_run"),
        ),
        at_s=4.0,
        policy_s=1.5,
        env_s=0.5,
    ),
)


def trace(**facts: Any) -> Trace:
    known: dict[str, Any] = {
        "trace_id": TRACE_ID,
        "env_spec": json.dumps({"id": "agentgym/WebShop-v0"}),
        "task_id": "webshop/17",
        "split": "test",
        "seed": 5,
        "sample": 2,
        "policy": {"model": "tiny", "temperature": 0.5, "top_p": 0.9, "max_tokens": 64, "seed": 3},
        "tools": ({"type": "function", "function": {"name": "search"}},),
        "messages": (*OPENING, FIRST, *REPLIES, LAST, *TURNS[1].replies),
        "turns": TURNS,
        "terminated": True,
        "verdict": Verdict(
            reward=0.75, correct=True, components={"price": 0.5}, reason="well done"
        ),
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "stage_s": {"init": 1.0, "run": 4.0, "eval": 0.5},
        "usage": {"policy": Usage(prompt_tokens=300, completion_tokens=40, calls=3, cost_usd=0.5)},
    }
    return Trace(**{**known, **facts})


def spans_of(*traces: Trace, **options: Any) -> list[Any]:
    exporter = InMemorySpanExporter()
    with OtelSink(exporter, **options) as sink:
        for each in traces:
            sink.write(each)
    assert (sink.sent, sink.lost) == (len(traces), 0)
    return sorted(exporter.get_finished_spans(), key=lambda span: (span.start_time, span.name))


def test_an_episode_is_one_agent_with_a_chat_per_turn_and_a_tool_per_call():
    root, *inner = spans_of(trace())
    assert [(span.name, span.kind) for span in (root, *inner)] == [
        ("invoke_agent agentgym/WebShop-v0", SpanKind.INTERNAL),
        ("chat tiny", SpanKind.CLIENT),
        ("execute_tool search", SpanKind.INTERNAL),
        ("execute_tool", SpanKind.INTERNAL),  # a tool that doesn't exist is text of the policy's
        ("chat tiny", SpanKind.CLIENT),
        ("execute_tool buy", SpanKind.INTERNAL),  # the call that was not run has none
    ]
    assert root.parent is None
    assert {span.parent.span_id for span in inner} == {root.context.span_id}
    assert {span.context.trace_id for span in (root, *inner)} == {int(TRACE_ID, 16)}
    assert root.resource.attributes["service.name"] == "agentgym"


def test_spans_lie_where_things_happened():
    root, *inner = spans_of(trace())
    assert [(seconds(s.start_time), seconds(s.end_time)) for s in inner] == [
        (2.0, 3.0),
        (3.25, 3.75),  # the env took its turn 0.75 s before the next question
        (3.75, 3.75),
        (4.0, 5.5),
        (5.5, 5.75),
    ]
    assert (seconds(root.start_time), seconds(root.end_time)) == (
        0.0,
        6.5,
    )  # the verdict's time too


def test_turns_without_a_time_follow_each_other():
    bare = tuple(turn.model_copy(update={"at_s": None}) for turn in TURNS)
    chats = [s for s in spans_of(trace(turns=bare)) if s.name.startswith("chat")]
    assert [seconds(s.start_time) for s in chats] == [1.0, 2.75]


def test_attributes_are_those_of_the_conventions():
    root, chat, tool, *_ = spans_of(trace())
    given = dict(root.attributes)
    assert given["gen_ai.operation.name"] == "invoke_agent"
    assert given["gen_ai.agent.name"] == "agentgym/WebShop-v0"
    assert given["gen_ai.conversation.id"] == TRACE_ID
    assert given["agentgym.task_id"] == "webshop/17"
    assert given["agentgym.reward"] == 0.75
    assert given["agentgym.stage.eval_s"] == 0.5
    assert given["agentgym.policy.cost_usd"] == 0.5
    assert "error.type" not in given
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.conversation.id": TRACE_ID,
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.seed": 3,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 100,  # cached ones included
        "gen_ai.usage.output_tokens": 20,  # reasoning included
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.reasoning.output_tokens": 8,
        "agentgym.turn": 0,
        "agentgym.attempts": 2,
        "agentgym.replica": "http://gpu1/v1",
        "agentgym.weight_version": "step-7",
    }
    assert dict(tool.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
    }


def test_a_call_that_failed_says_how():
    unreadable = spans_of(trace())[3]
    assert unreadable.attributes["error.type"] == "malformed"
    assert unreadable.status.status_code is StatusCode.ERROR


def test_the_verdict_is_an_event_per_number():
    root = spans_of(trace())[0]
    assert [(event.name, dict(event.attributes)) for event in root.events] == [
        (
            "gen_ai.evaluation.result",
            {
                "gen_ai.evaluation.name": "reward",
                "gen_ai.evaluation.score.value": 0.75,
                "gen_ai.evaluation.score.label": "correct",
            },
        ),
        (
            "gen_ai.evaluation.result",
            {"gen_ai.evaluation.name": "price", "gen_ai.evaluation.score.value": 0.5},
        ),
    ]
    assert {event.timestamp for event in root.events} == {root.end_time}


def test_a_failed_judge_is_an_error_and_no_number():
    verdict = Verdict(reward=None, masked=True, judge_failed=True, failure_class="judge")
    failed = trace(
        verdict=verdict, failure_class="judge", failed_stage="eval", error="Traceback\nno verdict"
    )
    root = spans_of(failed)[0]
    assert root.attributes["error.type"] == "judge"
    assert "agentgym.reward" not in root.attributes
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "no verdict")
    (event,) = root.events
    assert event.attributes["error.type"] == "judge"
    assert "gen_ai.evaluation.score.value" not in event.attributes


def test_an_episode_that_broke_before_its_first_turn_has_one_span():
    verdict = Verdict(reward=None, masked=True, failure_class="infra")
    earlier = EarlierAttempt(failure_class="env", failed_stage="init", error="boom")
    broken = trace(verdict=verdict, failure_class="infra", turns=(), stage_s={}, earlier=(earlier,))
    (root,) = spans_of(broken)
    assert root.end_time == root.start_time
    assert [(e.name, e.attributes["error.type"]) for e in root.events] == [
        ("agentgym.attempt_failed", "env")
    ]
    assert root.attributes["agentgym.attempts"] == 2


def test_no_content_unless_asked_for():
    told = json.dumps(
        [
            (s.name, dict(s.attributes), [dict(e.attributes) for e in s.events])
            for s in spans_of(trace())
        ]
    )
    for text in ("be brief", "find it", "let me see", "shoe", "3 hits", "sarch", "well done"):
        assert text not in told


def test_content_on_request_tells_each_message_once():
    spans = spans_of(trace(), content=True)
    first, last = (s for s in spans if s.name.startswith("chat"))
    assert json.loads(first.attributes["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {"role": "user", "parts": [{"type": "text", "content": "find it"}]},
    ]
    assert json.loads(first.attributes["gen_ai.output.messages"])[0]["parts"][1] == {
        "type": "tool_call",
        "id": "c1",
        "name": "search",
        "arguments": '{"q": "shoe"}',
    }
    assert json.loads(last.attributes["gen_ai.input.messages"])[0]["parts"] == [
        {"type": "tool_call_response", "id": "c1", "result": "3 hits"}
    ]
    search = next(s for s in spans if s.name == "execute_tool search")
    assert search.attributes["gen_ai.tool.call.arguments"] == '{"q": "shoe"}'
    assert search.attributes["gen_ai.tool.call.result"] == '"3 hits"'
    assert spans[0].events[0].attributes["gen_ai.evaluation.explanation"] == "well done"


def test_secrets_never_leave_not_even_with_content(monkeypatch):
    """Keys in tool results and errors stay out (case J10)."""
    monkeypatch.setenv("SHOP_API_KEY", "very-secret-key-1")
    leaky = TURNS[0].model_copy(
        update={"replies": (tool_message("c1", "very-secret-key-1 and given-secret-2"), REPLIES[1])}
    )
    verdict = Verdict(reward=None, masked=True, failure_class="infra", reason="very-secret-key-1")
    broken = trace(
        turns=(leaky, TURNS[1]),
        verdict=verdict,
        failure_class="infra",
        error="KeyError: 'very-secret-key-1', Bearer abcdefghijklmnop1234567",
    )
    spans = spans_of(broken, content=True, secrets=["given-secret-2"])
    told = "".join(span.to_json() for span in spans)
    assert "[redacted]" in told
    for secret in ("very-secret-key-1", "given-secret-2", "abcdefghijklmnop1234567"):
        assert secret not in told


@pytest.mark.parametrize("content", [False, True])
def test_no_name_or_id_carries_a_secret_out(content):
    secret = "hunter2-and-more"
    call = ToolCall(id=secret, name=secret, arguments={})
    turn = Turn(index=0, message=asks((secret, secret, "{}")), calls=(call,), finish_reason=secret)
    told = trace(
        task_id=secret,
        group=secret,
        policy={"model": secret},
        env_spec=json.dumps({"id": secret}),
        turns=(turn,),
        termination_reason=secret,
    )
    spans = spans_of(told, content=content, secrets=[secret])
    assert len(spans) == 3
    assert all(secret not in span.to_json() for span in spans)


def test_what_the_protocol_cannot_hold_is_sent_as_near_as_can_be():
    """A lone surrogate would cost the whole request, others' spans included."""
    root = spans_of(trace(seed=2**70, task_id="a\ud800", turns=(), group=str(2**63)))[0]
    assert root.attributes["agentgym.seed"] == str(2**70)
    assert root.attributes["agentgym.task_id"] == "a\ufffd"
    exact = spans_of(trace(seed=-(2**63) + 1, turns=()))[0]
    assert exact.attributes["agentgym.seed"] == -(2**63) + 1


def test_a_trace_whose_id_is_no_opentelemetry_id_gets_one():
    (first, *_), (second, *_) = (spans_of(trace(trace_id=name)) for name in ("x", "0" * 32))
    assert first.context.trace_id != second.context.trace_id
    assert first.attributes["gen_ai.conversation.id"] == "x"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ('{"id": "agentgym/WebShop-v0"}', "agentgym/WebShop-v0"),
        ('{"entry_point": "mine.shop:Shop"}', "Shop"),
        ("{}", "env"),
        ("null", "env"),
        ("no JSON", "env"),
    ],
)
def test_the_agent_is_named_after_its_environment(spec, name):
    assert spans_of(trace(env_spec=spec))[0].name == f"invoke_agent {name}"


def test_service_name_is_the_environments(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "night-run")
    assert spans_of(trace())[0].resource.attributes["service.name"] == "night-run"


# --- failures ------------------------------------------------------------------------------------


class Broken(SpanExporter):
    """Fails, one way or another."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def export(self, spans: Any) -> SpanExportResult:
        if self.error is not None:
            raise self.error
        return SpanExportResult.FAILURE


@pytest.mark.parametrize("error", [None, RuntimeError("boom")])
def test_what_the_exporter_cannot_send_is_counted_and_told_once(error, caplog):
    with caplog.at_level(logging.WARNING), OtelSink(Broken(error)) as sink:
        for _ in range(100):
            sink.write(trace())
    assert (sink.sent, sink.lost) == (0, 100)
    (record,) = caplog.records
    assert ("boom" if error else "gives no reason") in record.getMessage()


def test_a_trace_that_cannot_be_told_costs_no_other(caplog):
    with caplog.at_level(logging.WARNING), OtelSink(InMemorySpanExporter()) as sink:
        sink.write(trace(started_at="yesterday"))
        sink.write(trace())
    assert (sink.sent, sink.lost) == (1, 1)
    assert "Invalid isoformat string: 'yesterday'" in caplog.text


def test_traces_that_come_faster_than_they_are_taken_are_dropped_and_counted(monkeypatch, caplog):
    monkeypatch.setattr(otel, "MOST_WAITING", 3)
    let_go = threading.Event()

    class Slow(InMemorySpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            let_go.wait(60)
            return super().export(spans)

    with caplog.at_level(logging.WARNING), OtelSink(Slow()) as sink:
        for _ in range(10):
            sink.write(trace())
        let_go.set()
    assert (sink.sent, sink.lost) == (3, 7)
    assert "3 traces wait already" in caplog.text


def test_after_close_a_trace_is_counted_as_lost_and_closing_again_is_fine():
    sink = OtelSink(InMemorySpanExporter())
    sink.close()
    sink.close()
    sink.write(trace())
    assert (sink.sent, sink.lost) == (0, 1)


def test_another_protocol_is_refused(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="'grpc'; spans are sent as http/protobuf only"):
        OtelSink()


# --- a real collector ----------------------------------------------------------------------------


class Collector:
    """Takes OTLP over HTTP and keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.headers: list[Any] = []

    async def take(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest()
        message.ParseFromString(await request.read())
        self.headers.append(request.headers)
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return web.Response(body=b"", content_type="application/x-protobuf")

    async def start(self) -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_post("/v1/traces", self.take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]


SUBMIT = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "function": {"name": "submit", "arguments": "{}"}}],
}


async def test_a_run_reaches_a_real_collector_at_the_standard_variables(monkeypatch, tmp_path):
    collector = Collector()
    runner, port = await collector.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=rl")
    try:
        sink = OtelSink()
        engine = Engine(CounterEnv, client=ScriptedClient([SUBMIT]), writer=sink)
        async with engine:
            traces = [t async for t in engine.run([EpisodeRequest(seed=k) for k in range(40)])]
        await asyncio.to_thread(sink.close)
    finally:
        await runner.cleanup()
    assert (sink.sent, sink.lost) == (40, 0)
    roots = [span for span in collector.spans if span.name.startswith("invoke_agent")]
    assert {span.trace_id.hex() for span in roots} == {t.trace_id for t in traces}
    assert len(collector.spans) == 120  # root, chat and tool
    assert collector.headers[0]["x-team"] == "rl"


async def test_a_collector_that_refuses_us_is_told_on_with_its_status(monkeypatch, caplog):
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401)

    collector = Collector()
    collector.take = refuse
    runner, port = await collector.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    sink = OtelSink()
    sink.write(trace())
    with caplog.at_level(logging.WARNING, logger="agentgym"):
        await asyncio.to_thread(sink.close)
    await runner.cleanup()
    assert (sink.sent, sink.lost) == (0, 1)
    assert "code: 401, reason: Unauthorized" in caplog.text


@pytest.mark.e2e  # the exporter waits a second before it tries again
async def test_a_collector_that_is_down_fails_no_episode(monkeypatch, caplog, unused_tcp_port):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")  # enough for one attempt more

    class Kept:
        def __init__(self) -> None:
            self.traces: list[Trace] = []

        def write(self, trace: Trace) -> None:
            self.traces.append(trace)

    sink, kept = OtelSink(), Kept()
    tee = Tee(kept, sink)
    engine = Engine(CounterEnv, client=ScriptedClient([SUBMIT]), writer=tee)
    async with engine:
        traces = [t async for t in engine.run([EpisodeRequest(seed=k) for k in range(5)])]
    with caplog.at_level(logging.WARNING):
        await asyncio.to_thread(tee.close)
    assert all(t.scored for t in traces)
    assert kept.traces == traces
    assert (sink.sent, sink.lost) == (0, 5)
    ours = [r for r in caplog.records if r.name.startswith(("agentgym", "opentelemetry"))]
    assert len(ours) == 1
    assert "spans are lost on the way to OpenTelemetry" in ours[0].getMessage()
    assert "Connection refused" in ours[0].getMessage()
