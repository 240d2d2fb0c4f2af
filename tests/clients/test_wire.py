"""Requests and replies: whatever a server sends is an answer or a failure of a known kind."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentgym.client import Completion, Dialect, SamplingParams
from agentgym.clients.reply import BadReply, read_reply
from agentgym.clients.stream import StreamedReply
from agentgym.clients.wire import encoded, replayed, request_body

REQUEST = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)
)


def record(**fields):
    """A dict in which each field is missing, of its own kind, or anything at all."""
    return st.fixed_dictionaries({}, optional={k: v | anything for k, v in fields.items()})


functions = record(name=st.text(), arguments=st.text())
calls = st.lists(record(id=st.text(), index=st.integers(0, 2), function=functions) | anything)
parts = st.lists(record(type=st.just("text"), text=st.text()) | anything)
messages = record(
    role=st.just("assistant"),
    content=st.text() | parts,
    tool_calls=calls,
    function_call=functions,
    reasoning_content=st.text(),
    refusal=st.text(),
)
errors = record(message=st.text(), code=st.integers(100, 599) | st.text(), type=st.text())
usages = record(
    prompt_tokens=st.integers(),
    completion_tokens=st.integers(),
    prompt_tokens_details=record(cached_tokens=st.integers()),
    completion_tokens_details=record(reasoning_tokens=st.integers()),
)
choices = record(index=st.just(0), message=messages, delta=messages, finish_reason=st.text())
bodies = record(choices=st.lists(choices, max_size=2), usage=usages, error=errors) | anything


@given(bodies)
@example({"choices": [{"message": {"content": "a"}, "finish_reason": {}}]})
@example({"choices": [{"message": {"tool_calls": [{"id": math.inf, "function": [None]}]}}]})
@example({"choices": [{"message": {"tool_calls": [{"function": {"name": math.nan}}]}}]})
def test_every_body_is_an_answer_or_a_bad_reply(body):
    try:
        got = read_reply(body, REQUEST)
    except BadReply:
        return
    assert isinstance(got, Completion)
    assert encoded({"messages": [replayed(got.message)]})


@pytest.mark.thorough
@given(st.lists(bodies, max_size=5), st.binary(max_size=20), st.integers(1, 50))
def test_every_stream_is_an_answer_or_a_bad_reply(events, noise, step):
    texts = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    data = b"".join(texts) + noise
    reply = StreamedReply()
    try:
        for at in range(0, len(data), step):
            reply.feed(data[at : at + step])
        reply.close()
        got = read_reply(reply.body(), REQUEST)
    except BadReply:
        return
    assert isinstance(got, Completion)


@pytest.mark.parametrize("arguments", ["", " ", None, "{}", {}])
def test_no_arguments_go_back_as_an_empty_object(arguments):
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    sent = replayed({"role": "assistant", "content": None, "tool_calls": [call]})
    assert sent["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("message", "null", "text"),
    [
        ({"content": None, "tool_calls": [{}]}, None, ""),
        ({"content": "", "tool_calls": [{}]}, None, ""),
        ({"content": "a", "tool_calls": [{}]}, "a", "a"),
        ({"content": None}, "", ""),
        ({"content": None, "tool_calls": []}, "", ""),
    ],
)
def test_content_is_null_only_beside_calls_and_only_where_that_is_wanted(message, null, text):
    for wanted, content in (("null", null), ("text", text)):
        dialect = Dialect(empty_content=wanted)
        assert replayed({"role": "assistant", **message}, dialect)["content"] == content


def test_dialect_decides_what_is_in_a_request():
    dialect = Dialect(tools=False, seed=False, temperature=False, stream=True)
    sampling = SamplingParams(seed=3)
    body = request_body("m", REQUEST["messages"], [{"type": "function"}], sampling, dialect)
    assert not {"tools", "seed", "temperature"} & body.keys()
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
