"""Streamed answers become the body that the same server sends without streaming."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.client import SamplingParams
from agentgym.clients.reply import BadReply, read_reply
from agentgym.clients.stream import StreamedReply
from agentgym.errors import EndpointError
from agentgym.metering import Meter, metered
from agentgym.testing.quirky import USAGE, Stream, answer, chunks_of

REQUEST = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}
CALLS = [
    {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"q": "größe"}'}},
    {"id": "b", "type": "function", "function": {"name": "read", "arguments": "{}"}},
]
ASK = [{"role": "user", "content": "Hi"}]


def sse(*events, done=True):
    texts = [e if isinstance(e, str) else f"data: {json.dumps(e)}\n\n" for e in events]
    return "".join([*texts, "data: [DONE]\n\n" if done else ""]).encode()


def delta(finish_reason=None, **fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def piece(index=0, *, call_id=None, name=None, arguments=None):
    function = {"name": name, "arguments": arguments}
    function = {key: value for key, value in function.items() if value is not None}
    entry = {"index": index, "id": call_id, "function": function}
    return delta(tool_calls=[{key: v for key, v in entry.items() if v is not None}])


def assembled(data, *, step=None):
    reply = StreamedReply()
    for at in range(0, len(data), step or len(data)):
        reply.feed(data[at : at + (step or len(data))])
    reply.close()
    return reply.body()


def calls_of(*events, done=True):
    message = assembled(sse(*events, delta("tool_calls"), done=done))["choices"][0]["message"]
    return [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message["tool_calls"]
    ]


# --- one parser for both ----------------------------------------------------------------------


@given(
    content=st.text(),
    reasoning=st.text(),
    with_calls=st.booleans(),
    arguments=st.dictionaries(st.text(), st.text() | st.integers()),
    step=st.integers(1, 40),
)
def test_streamed_and_whole_answers_read_the_same(content, reasoning, with_calls, arguments, step):
    text = json.dumps(arguments, ensure_ascii=False)
    calls = [{**CALLS[0], "function": {"name": "find", "arguments": text}}, CALLS[1]]
    message = {"reasoning_content": reasoning, **({"tool_calls": calls} if with_calls else {})}
    body = answer(content, message=message)
    chunks = [*chunks_of(body), {"choices": [], "usage": USAGE}]
    assert read_reply(assembled(sse(*chunks), step=step), REQUEST) == read_reply(body, REQUEST)


async def test_client_gives_the_same_completion_streamed_or_not(server, make_client):
    server.replies = [answer(None, message={"tool_calls": CALLS}, finish_reason="tool_calls")]
    whole = await make_client().complete(ASK, (), SamplingParams())
    streamed = await make_client(dialect={"stream": True}).complete(ASK, (), SamplingParams())
    assert streamed == whole
    assert "stream" not in server.requests[0]
    assert server.requests[1]["stream"] is True
    assert server.requests[1]["stream_options"] == {"include_usage": True}


# --- tool calls in pieces ---------------------------------------------------------------------


def test_arguments_may_be_split_anywhere():
    pieces = [piece(0, call_id="a", name="find", arguments="")]
    pieces += [piece(0, arguments=char) for char in '{"q": 1}']
    assert calls_of(*pieces) == [("a", "find", '{"q": 1}')]


def test_parallel_calls_may_be_interleaved_and_out_of_order():
    got = calls_of(
        piece(1, call_id="b", name="read", arguments="{"),
        piece(0, call_id="a", name="find", arguments="{"),
        piece(1, arguments="}"),
        piece(0, arguments="}"),
    )
    assert got == [("a", "find", "{}"), ("b", "read", "{}")]


def test_id_and_name_may_be_repeated_in_every_chunk():
    pieces = [piece(0, call_id="a", name="find", arguments=part) for part in ("{", '"q"', ": 1}")]
    assert calls_of(*pieces) == [("a", "find", '{"q": 1}')]


def test_name_may_be_split():
    assert calls_of(piece(call_id="a", name="fi"), piece(name="nd"), piece(arguments="{}")) == [
        ("a", "find", "{}")
    ]


def test_nulls_and_empty_names_change_nothing():
    nulls = {"index": 0, "id": None, "function": {"name": None, "arguments": None}}
    empty = {"index": 0, "id": "", "function": {"name": "", "arguments": ""}}
    assert calls_of(
        piece(call_id="a", name="find", arguments="{"),
        delta(content=None, tool_calls=None),
        delta(tool_calls=[nulls, None]),
        delta(tool_calls=[empty]),
        piece(arguments="}"),
    ) == [("a", "find", "{}")]


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_share_an_index_are_told_apart_by_their_ids(index):
    """Gemini's and some gateways' way: whole calls, all with index 0 or none."""
    got = calls_of(
        piece(index, call_id="a", name="find", arguments='{"q": 1}'),
        piece(index, call_id="b", name="find", arguments='{"q": 2}'),
    )
    assert got == [("a", "find", '{"q": 1}'), ("b", "find", '{"q": 2}')]


def test_calls_without_index_and_id_start_at_their_names():
    got = calls_of(
        piece(None, name="find", arguments="{"),
        piece(None, arguments="}"),
        piece(None, name="read", arguments="{}"),
    )
    assert got == [(None, "find", "{}"), (None, "read", "{}")]


def test_arguments_may_be_an_object():
    assert calls_of(piece(call_id="a", name="find", arguments={"q": 1})) == [
        ("a", "find", {"q": 1})
    ]


def test_legacy_function_call_is_put_together():
    body = assembled(
        sse(
            delta(function_call={"name": "find", "arguments": ""}),
            delta(function_call={"arguments": '{"q"'}),
            delta("function_call", function_call={"arguments": ": 1}"}),
        )
    )
    (call,) = read_reply(body, REQUEST).message["tool_calls"]
    assert call["function"] == {"name": "find", "arguments": '{"q": 1}'}


# --- framing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        sse(": OPENROUTER PROCESSING\n\n", delta(content="hi"), delta("stop")),
        sse("\ufeff", delta(content="hi"), delta("stop")),
        sse(delta(content="hi"), delta("stop")).replace(b"\n", b"\r\n"),
        sse(delta(content="hi"), delta("stop")).replace(b"data: ", b"data:"),
        sse(delta(content="hi"), delta("stop")).replace(b"\n\n", b"\n"),
        sse(delta(content="hi"), delta("stop"), done=False).rstrip(b"\n"),
        sse("id: 7\nretry: 10\nevent: message\n", delta(content="hi"), delta("stop")),
        sse(delta(content="hi"), 'data: {"choices":\ndata: []}\n\n', delta("stop")),
        sse(delta(content="hi"), "data: \n\n", "data: null\n\n", delta("stop")),
        sse({"choices": [{"index": 0, "message": {"content": "hi"}}]}, delta("stop")),
        sse(delta(content="hi"), {"choices": [{"message": {"content": "hi"}}]}),
        sse(delta(content=[{"type": "text", "text": "hi"}]), delta("stop")),
        sse(delta(content="hi"), {"choices": [{"index": 1, "delta": {"content": "other"}}]}),
    ],
)
def test_every_way_to_frame_events_is_read(data):
    assert assembled(data, step=1)["choices"][0]["message"]["content"] == "hi"


def test_usage_is_the_last_one_sent():
    chunks = (delta(content="hi"), {**delta("stop"), "usage": {"prompt_tokens": 1}})
    body = assembled(sse(*chunks, {"choices": [], "usage": USAGE}, {"usage": None}))
    assert body["usage"] == USAGE


def test_unreadable_event_is_a_failure_that_may_pass():
    with pytest.raises(BadReply, match="unreadable") as caught:
        assembled(sse("data: {nonsense\n\n"))
    assert caught.value.retryable


# --- breaking off -----------------------------------------------------------------------------


def test_end_without_done_is_an_end():
    body = assembled(sse(delta(content="hi"), delta("stop"), done=False))
    assert body["choices"][0]["finish_reason"] == "stop"


def test_done_without_finish_reason_is_an_end():
    assert assembled(sse(delta(content="hi")))["choices"][0]["message"]["content"] == "hi"


def test_end_in_the_middle_is_a_failure_that_may_pass():
    with pytest.raises(BadReply, match="middle of the answer") as caught:
        assembled(sse(delta(content="hi"), done=False))
    assert caught.value.retryable


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "overloaded", "code": 503}},
        'event: error\ndata: {"message": "overloaded", "code": 503}\n\n',
        '{"error": {"message": "overloaded", "code": 503}}\n',
        {"choices": [{"index": 0, "delta": {}, "error": {"message": "overloaded", "code": 503}}]},
    ],
)
async def test_error_in_the_middle_is_retried_by_its_code(server, make_client, error):
    broken = Stream(events=[delta(content="half an ans"), error], done=False)
    server.replies = [broken, answer("whole")]
    got = await make_client(dialect={"stream": True}).complete(ASK, (), SamplingParams())
    assert (got.message["content"], got.attempts) == ("whole", 2)


async def test_connection_cut_in_the_middle_is_retried_and_what_came_is_billed(server, make_client):
    server.replies = [Stream(events=[delta(content="half an answer")], cut=True), answer("whole")]
    meter = Meter()
    with metered(meter):
        client = make_client(dialect={"stream": True})
        got = await client.complete(ASK, (), SamplingParams())
    assert (got.message["content"], got.usage.calls, got.usage.retries) == ("whole", 2, 1)
    assert got.usage.estimated
    assert got.usage.completion_tokens > USAGE["completion_tokens"]
    assert meter.by_role == {"policy": got.usage}


async def test_connection_cut_after_the_last_word_is_an_answer(server, make_client):
    server.replies = [Stream(events=[delta(content="hi"), delta("stop")], cut=True)]
    got = await make_client(dialect={"stream": True}).complete(ASK, (), SamplingParams())
    assert (got.message["content"], got.attempts, got.usage.estimated) == ("hi", 1, True)


async def test_stream_that_falls_silent_runs_into_the_time_out(server, make_client):
    server.replies = [Stream(events=[delta(content="hi")], hangs=True)]
    client = make_client(dialect={"stream": True}, timeout_s=1.0, max_retries=0)
    with pytest.raises(EndpointError, match="within the time-out") as caught:
        await client.complete(ASK, (), SamplingParams())
    assert caught.value.usage.estimated


async def test_stream_without_choices_is_an_empty_reply(server, make_client):
    server.replies = [Stream(events=[{"choices": [], "usage": USAGE}]), answer("good")]
    got = await make_client(dialect={"stream": True}).complete(ASK, (), SamplingParams())
    assert (got.message["content"], got.usage.calls) == ("good", 2)


async def test_usage_in_the_stream_is_not_asked_for_again_where_it_is_refused(server, make_client):
    def strict(body):
        if "stream_options" in body:
            return 400, {"error": {"message": "Unknown parameter: 'stream_options'"}}
        return Stream(events=[delta(content="hi"), delta("stop")])

    server.replies = [strict]
    client = make_client(dialect={"stream": True}, max_retries=0)
    for attempts in (2, 1):
        got = await client.complete(ASK, (), SamplingParams())
        assert (got.attempts, got.usage.estimated) == (attempts, True)


async def test_server_that_streams_unasked_is_understood(server, make_client):
    server.replies = [Stream(events=[*chunks_of(answer("hi")), {"choices": [], "usage": USAGE}])]
    got = await make_client().complete(ASK, (), SamplingParams())
    assert (got.message["content"], got.usage.prompt_tokens) == ("hi", 20)


async def test_stream_under_another_content_type_is_understood(server, make_client):
    server.replies = [sse(*chunks_of(answer("hi"))).decode()]
    got = await make_client(dialect={"stream": True}).complete(ASK, (), SamplingParams())
    assert got.message["content"] == "hi"


async def test_server_that_does_not_stream_is_understood(server, make_client):
    server.replies = [lambda body: (200, answer("hi"))]
    got = await make_client(dialect={"stream": True}).complete(ASK, (), SamplingParams())
    assert got.message["content"] == "hi"
