"""Conversations are written once, and never as they no longer are."""

from __future__ import annotations

import copy
import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.client import Dialect
from agentgym.clients import prompts
from agentgym.clients.prompts import Prompts
from agentgym.clients.reply import BadReply
from agentgym.clients.wire import replayed

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "found"},
]


def read(text):
    return json.loads(b"".join(text.pieces))


@pytest.fixture
def written(monkeypatch):
    """The messages that were written, one entry for each time."""
    seen = []

    def note(message, dialect):
        seen.append(message)
        return replayed(message, dialect)

    monkeypatch.setattr(prompts, "replayed", note)
    return seen


def test_a_turn_writes_only_what_is_new(written):
    kept = Prompts(Dialect())
    kept.messages("s", TALK[:1])
    assert read(kept.messages("s", TALK)) == TALK
    assert read(kept.messages("s", copy.deepcopy(TALK))) == TALK
    assert written == TALK


@pytest.mark.parametrize(
    "change",
    [
        lambda talk: talk[0].update(content="Bye"),
        lambda talk: talk[1]["tool_calls"][0]["function"].update(arguments='{"a": 2}'),
        lambda talk: talk[1]["tool_calls"].append({**CALL, "id": "d"}),
        lambda talk: talk.pop(),
        lambda talk: talk.clear(),
        lambda talk: talk.insert(0, {"role": "system", "content": "s"}),
    ],
)
def test_a_message_that_was_changed_where_it_stands_is_written_as_it_is_now(change):
    kept = Prompts(Dialect())
    talk = copy.deepcopy(TALK)
    kept.messages("s", talk)
    change(talk)
    assert read(kept.messages("s", talk)) == talk


def test_sessions_are_kept_apart_and_none_keeps_nothing(written):
    kept = Prompts(Dialect())
    for session in ("a", "b", None, None):
        assert read(kept.messages(session, TALK[:1])) == TALK[:1]
    assert len(written) == 4
    kept.forget("a")
    kept.forget("a")
    kept.messages("a", TALK[:1])
    kept.messages("b", TALK[:1])
    assert len(written) == 5


def test_sessions_that_nobody_releases_are_bounded(monkeypatch):
    monkeypatch.setattr(prompts, "_MOST_BYTES", 10_000)
    kept = Prompts(Dialect())
    for number in range(100):
        kept.messages(f"s{number}", [{"role": "user", "content": "x" * 1000}])
    assert len(kept._sessions) <= 10
    kept.messages("huge", [{"role": "user", "content": "x" * 20_000}])
    assert kept._size == len(kept._sessions) == 0
    kept.messages("small", TALK)
    assert len(kept._sessions) == 1


def test_sessions_that_were_silent_for_long_are_forgotten():
    now = [0.0]
    kept = Prompts(Dialect(), clock=lambda: now[0])
    kept.messages("old", TALK)
    now[0] = 10_000.0
    kept.messages("new", TALK)
    assert list(kept._sessions) == ["new"]


def test_a_tool_list_is_written_once_for_all_and_again_once_it_changes():
    kept = Prompts(Dialect())
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"required": []}}}]
    first = kept.tools(tools)
    assert kept.tools(copy.deepcopy(tools)) is first
    tools[0]["function"]["parameters"]["required"].append("x")
    assert read(kept.tools(tools)) == tools
    for number in range(40):
        kept.tools([{"type": str(number)}])
    assert len(kept._tools) == 16


def called(arguments):
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def assert_sent_as_if_nothing_were_kept(kept, talk, tools):
    """Compared as text, which tells 1 from True, and has an order of keys."""
    asked = [replayed(message) for message in talk]
    assert json.dumps(read(kept.messages("s", talk))) == json.dumps(asked)
    assert json.dumps(read(kept.tools(tools))) == json.dumps(tools)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_values_that_are_equal_but_written_differently_are_kept_apart(before, now):
    kept = Prompts(Dialect())
    for value in (before, now):
        talk = [called(value), {"role": "user", "content": [value]}]
        assert_sent_as_if_nothing_were_kept(kept, talk, [{"function": {"parameters": value}}])


def test_what_nothing_tells_a_change_of_is_written_each_time():
    kept = Prompts(Dialect())
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "c", "function": MappingProxyType(function)}
    talk = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    for name in ("f", "g"):
        function["name"] = name
        assert_sent_as_if_nothing_were_kept(kept, talk, [])


def test_fields_that_are_not_sent_may_hold_anything(written):
    deep = {}
    for _ in range(5000):
        deep = {"a": deep}
    kept = Prompts(Dialect())
    for note in (deep, {1, 2}, object()):
        assert_sent_as_if_nothing_were_kept(kept, [{**TALK[0], "annotations": note}], [])
    assert len(written) == 1


def test_arguments_that_are_no_json_are_a_fault_of_the_request_and_nothing_is_kept_of_it():
    kept = Prompts(Dialect())
    for _ in range(2):
        with pytest.raises(BadReply, match="can't be written as JSON"):
            kept.messages("s", [TALK[0], called({"a": {1, 2}})])
    assert read(kept.messages("s", TALK)) == TALK


texts = st.text(max_size=5)
leaves = texts | st.integers(-2, 2) | st.booleans() | st.none() | st.sampled_from([0.0, -0.0, 1.0])
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=2) | st.dictionaries(texts, v, max_size=2), max_leaves=4
)
messages = st.builds(lambda c: {"role": "user", "content": c}, values) | st.builds(called, values)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.lists(messages, max_size=4))))
def test_whatever_came_before_what_is_sent_is_what_was_asked(calls):
    kept = Prompts(Dialect())
    for session, talk in calls:
        asked = json.dumps([replayed(message) for message in talk])
        assert json.dumps(read(kept.messages(session, talk))) == asked
