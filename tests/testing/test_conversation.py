"""check_conversation refuses what strict servers and templates refuse, and says where."""

from __future__ import annotations

import pytest

from agentgym.testing import EnvCheckError, check_conversation
from agentgym.testing.messages import calling, raw_call, tool_call

USER = {"role": "user", "content": "hi"}
CALL = calling(tool_call("add", "c1", amount=1))
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "1"}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [USER],
        [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, USER],
        [USER, CALL, ANSWER, {"role": "assistant", "content": "done"}],
        [USER, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}],
        [
            USER,
            calling(tool_call("a", "x"), tool_call("a", "y")),
            {**ANSWER, "tool_call_id": "x"},
            {**ANSWER, "tool_call_id": "y"},
            USER,
        ],
    ],
)
def test_valid_conversations_pass(messages):
    check_conversation(messages)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([USER, CALL], "message 1: the conversation ends before tool calls .'c1'. are answered"),
        ([USER, CALL, USER], "message 2: tool calls .'c1'. have no tool message"),
        ([USER, CALL, ANSWER, ANSWER], "message 3: answers 'c1', which no call directly before"),
        ([USER, ANSWER], "message 1: answers 'c1', which no call"),
        ([USER, CALL, {**ANSWER, "tool_call_id": "c2"}], "'c1' is the next in order"),
        ([USER, CALL, ANSWER, CALL, ANSWER], "message 3: tool call id 'c1' was used before"),
        ([USER, calling(tool_call("a", "x"), tool_call("a", "x"))], "'x' was used before"),
        ([USER, calling(tool_call("a"))], "tool call id is None"),
        ([USER, calling(raw_call("a", "{", "x"))], "not JSON .*servers decode"),
        ([USER, calling(raw_call("a", "", "x"))], "not JSON"),
        ([USER, calling(raw_call("a", '{"a": NaN}', "x"))], "NaN is not JSON"),
        ([USER, calling(raw_call("a", "[1]", "x"))], "not a JSON object"),
        ([USER, calling(raw_call("a", {}, "x"))], "arguments are not a string"),
        ([USER, calling(raw_call("a b", "{}", "x"))], "name 'a b' doesn't match"),
        ([USER, calling({"id": "x", "function": {}})], "type is not 'function'"),
        ([USER, {"role": "assistant", "content": "x", "tool_calls": []}], "not empty"),
        ([USER, {"role": "assistant", "content": None}], "content is null"),
        ([{"role": "user", "content": None}], "content is null"),
        ([{"role": "user", "content": 3}], "content is a int"),
        ([{"role": "user", "content": []}], "content parts"),
        ([{"role": "narrator", "content": "x"}], "role is 'narrator'"),
        ([USER, {"role": "system", "content": "x"}], "message 1: a system message stands after"),
        ([{**USER, "tool_calls": []}], "a user message can't have tool_calls"),
        ([{"role": "user", "content": "\ud83d"}], "message 0 can't be encoded"),
        ([{**USER, "x": float("nan")}], "message 0 can't be encoded"),
        ([{**USER, "x": {1}}], "message 0 can't be encoded"),
        (["hi"], "message 0: is a str"),
    ],
)
def test_each_fault_is_named_with_its_place(messages, fault):
    with pytest.raises(EnvCheckError, match=fault):
        check_conversation(messages)


def test_the_last_calls_may_wait_where_that_is_said():
    check_conversation([USER, CALL], unanswered=True)
    with pytest.raises(EnvCheckError):
        check_conversation([USER, CALL, USER], unanswered=True)
