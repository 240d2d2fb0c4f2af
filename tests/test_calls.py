"""Calls of a turn: every dialect read, each call answered once, faults told apart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.core import AgentEnv, TextCall
from agentgym.errors import MalformedCall, ToolError
from agentgym.judge import Score
from agentgym.testing.conversation import check_conversation
from agentgym.testing.envs import CounterEnv, QuizEnv
from agentgym.testing.messages import calling, raw_call, tool_call
from agentgym.tools import Tool
from agentgym.types import Task, Turn

# Text as models and files have it; st.text() alone hardly ever draws a surrogate.
broken = st.text() | st.lists(st.sampled_from("a\ud83d\udf78\ud800é"), max_size=9).map("".join)


class Free:
    inline = True

    async def score(self, episode):
        return Score(total=1.0, correct=True)


class Notes(AgentEnv):
    """Writes notes; `write[…]` works as text, too."""

    def __init__(self, **kwargs):
        self.log = []
        tools = [Tool(f, inline=True) for f in (self.write, self.list_notes, self.deny, self.stop)]
        super().__init__(tools=tools, judge=Free(), **kwargs)

    def choose_task(self, options):
        return Task(task_id="notes/0")

    async def start(self, task):
        self.log = []
        return ({"role": "user", "content": "Write."},)

    def parse_text(self, text):
        if text.startswith("write["):
            if not text.endswith("]"):
                raise MalformedCall("Error: the bracket isn't closed. Write write[…].")
            return [TextCall("write", {"text": part}) for part in text[6:-1].split("|")]
        return None

    def write(self, text: str) -> str:
        self.log.append(text)
        return f"wrote {text}"

    def list_notes(self) -> list[str]:
        self.log.append(None)
        return [note for note in self.log if note is not None]

    def deny(self) -> str:
        raise ToolError("Error: not allowed.")

    def stop(self) -> str:
        self.finish()
        return "stopped"


@pytest.fixture
def env():
    env = Notes()
    env.reset()
    return env


def statuses(env):
    return [call.status for record in env.running.records for call in record.calls]


@pytest.mark.parametrize("arguments", ["", " ", None, "null", "{}", {}, "absent"])
def test_parameterless_tools_run_whatever_stands_for_no_arguments(env, arguments):
    """A01, A02: run exactly once, not malformed, and replayed as an empty object."""
    call = raw_call("list_notes", arguments, "c1")
    if arguments == "absent":
        del call["function"]["arguments"]
    observation, *_ = env.step(calling(call))
    assert observation == ({"role": "tool", "tool_call_id": "c1", "content": "[]"},)
    assert env.log == [None]
    assert statuses(env) == ["ok"]
    assert env.running.messages[-2]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("arguments", ["", " ", None, "null"])
def test_missing_arguments_of_a_tool_that_needs_some_are_malformed(env, arguments):
    """A01: an error that teaches, the gate records it, the raw value is kept."""
    observation, _, terminated, truncated, _ = env.step(calling(raw_call("write", arguments, "c1")))
    text = observation[0]["content"]
    assert "text is missing" in text
    assert '{"text": "<string>"}' in text
    assert (terminated, truncated, env.log) == (False, False, [])
    assert env.running.records[0].turn(0).malformed == 1
    assert env.running.records[0].calls[0].raw_arguments == arguments
    check_conversation(env.running.messages)
    assert env.step("done")[4]["verdict"].gates["malformed_call"]


@pytest.mark.parametrize("arguments", [{"text": "x"}, '{"text": "x"}'])
def test_arguments_come_as_object_or_text_and_leave_as_text(env, arguments):
    """A04: never encoded twice."""
    env.step(calling(raw_call("write", arguments, "c1")))
    assert env.log == ["x"]
    replayed = env.running.messages[-2]["tool_calls"][0]["function"]["arguments"]
    assert replayed == '{"text": "x"}'


@pytest.mark.parametrize(
    "reason", ["stop", None, "", "eos", "function_call", "tool-calls", "tool_calls"]
)
def test_calls_run_whatever_the_finish_reason(env, reason):
    """A10."""
    action = calling(tool_call("write", text="x"), finish_reason=reason)
    assert env.step(action)[1:4] == (0.0, False, False)
    assert env.log == ["x"]


@pytest.mark.parametrize(
    "cut", [{"finish_reason": "length"}, {"cut_off": True, "finish_reason": "tool_calls"}]
)
def test_a_call_cut_off_by_the_output_limit_does_not_run(env, cut):
    """A11, A12: counted apart from malformed; calls before it were complete and run."""
    partial = raw_call("write", '{"text": "hel', "c2")
    observation, *_ = env.step(calling(tool_call("write", "c1", text="whole"), partial, **cut))
    assert env.log == ["whole"]
    assert "output limit" in observation[1]["content"]
    assert statuses(env) == ["ok", "cut_off"]
    turn = env.running.records[0].turn(0)
    assert (turn.cut_off, turn.malformed) == (True, 0)
    check_conversation(env.running.messages)
    assert not env.step("done")[4]["verdict"].gates["malformed_call"]


def test_text_cut_off_by_the_output_limit_is_no_answer(env):
    """A12: the policy is asked again rather than judged by half a sentence."""
    observation, _, terminated, *_ = env.step(
        {"content": "The answer is", "finish_reason": "length"}
    )
    assert not terminated
    assert "shorter" in observation[0]["content"]


def test_repeated_and_missing_ids_are_rewritten(env):
    """A13: within a turn and across the episode."""
    first = calling(
        tool_call("write", "c1", text="x"),
        tool_call("write", "c1", text="y"),
        tool_call("write", text="z"),
    )
    env.step(first)
    env.step(calling(tool_call("write", "c1", text="w")))
    assert env.log == ["x", "y", "z", "w"]
    calls = [call for record in env.running.records for call in record.calls]
    assert len({call.id for call in calls}) == 4
    assert [call.original_id for call in calls] == [None, "c1", None, "c1"]
    assert calls[0].id == "c1"
    check_conversation(env.running.messages)


@pytest.mark.parametrize("given_id", [7, "", None, "\ud83d", 0.5, ["c1"]])
def test_ids_that_are_no_text_are_rewritten(env, given_id):
    """A13, A19."""
    env.step(calling({**tool_call("write", text="x"), "id": given_id}))
    assert env.log == ["x"]
    check_conversation(env.running.messages)


def test_the_same_tool_twice_in_a_turn_runs_twice_in_order(env):
    """A14."""
    action = calling(tool_call("write", text="X"), tool_call("write", text="Y"))
    observation, *_ = env.step(action)
    assert [m["content"] for m in observation] == ["wrote X", "wrote Y"]
    assert env.log == ["X", "Y"]


def test_calls_after_the_finishing_one_are_answered_and_not_run(env):
    """A15."""
    action = calling(tool_call("write", text="a"), tool_call("stop"), tool_call("write", text="b"))
    observation, _, terminated, *_ = env.step(action)
    assert terminated
    assert env.log == ["a"]
    assert observation[2]["content"] == "Not executed: the episode is over."
    assert statuses(env) == ["ok", "ok", "not_run"]
    check_conversation(env.running.messages)


def test_a_failing_call_and_the_cap_leave_one_answer_per_call():
    """A15: the second of three parallel calls fails and the cap strikes."""
    env = Notes(max_turns=1)
    env.reset()
    action = calling(tool_call("write", text="a"), tool_call("deny"), tool_call("write", text="b"))
    observation, _, _, truncated, info = env.step(action)
    assert truncated
    assert [m["content"] for m in observation] == ["wrote a", "Error: not allowed.", "wrote b"]
    assert statuses(env) == ["ok", "error", "ok"]
    assert not info["verdict"].gates["malformed_call"]
    check_conversation(env.running.messages)


def test_an_unknown_tool_is_answered_with_the_names_there_are(env):
    observation, *_ = env.step(calling(tool_call("wriet", text="x")))
    assert "no tool 'wriet'" in observation[0]["content"]
    assert "write, list_notes, deny, stop" in observation[0]["content"]
    assert statuses(env) == ["malformed"]


@pytest.mark.parametrize("name", ["do it!", "", None, 3, "a" * 100, "\ud83d", "functions.write"])
def test_impossible_names_are_replayed_as_legal_ones_and_recorded_as_given(env, name):
    """Servers refuse a conversation with such a name in it."""
    env.step(calling(raw_call(name, "{}")))
    check_conversation(env.running.messages)
    assert statuses(env) == ["malformed"]
    if name == "do it!":
        assert env.running.records[0].calls[0].name == "do it!"


@pytest.mark.parametrize("arguments", ['{"text": "x', "[1]", '"x"', "3", '{"text": NaN}', [1], 3])
def test_unreadable_arguments_are_malformed_and_replayed_as_an_empty_object(env, arguments):
    """A01, A12: a server that decodes past arguments accepts the next request."""
    observation, *_ = env.step(calling(raw_call("write", arguments)))
    assert observation[0]["content"].startswith("Error: ")
    assert statuses(env) == ["malformed"]
    assert env.log == []
    check_conversation(env.running.messages)
    assert env.running.records[0].calls[0].raw_arguments == arguments


def nested(levels, *, leaf="1"):
    return '{"text":' * levels + leaf + "}" * levels


@pytest.mark.parametrize("leaf", ["1", '"\\u00e9"'])
@pytest.mark.parametrize("levels", [101, 300, 600, 900, 5000])
def test_arguments_nested_too_deep_are_malformed_as_text_and_as_object(env, levels, leaf):
    """Recursive readers give up at some depth, each at its own and some by crashing."""
    deep = {}
    for _ in range(levels):
        deep = {"text": deep}
    for arguments in (nested(levels, leaf=leaf), deep, {"text": [[deep]]}):
        observation, *_ = env.step(calling(raw_call("write", arguments)))
        assert observation[0]["content"].startswith("Error: ")
        assert env.running.messages[-2]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert set(statuses(env)) == {"malformed"}
    check_conversation(env.running.messages)
    Turn.model_validate_json(env.running.records[1].turn(0).model_dump_json())


@pytest.mark.parametrize("raw", [{"text": {1, 2}}, {"text": object()}, b"x", {"text": 10**5000}])
def test_arguments_without_json_form_are_malformed_and_recorded_as_text(env, raw):
    call = {"id": raw, "type": "function", "function": {"name": "write", "arguments": raw}}
    env.step(calling(call))
    assert statuses(env) == ["malformed"]
    assert isinstance(env.running.records[0].calls[0].raw_arguments, str)
    check_conversation(env.running.messages)


@pytest.mark.thorough
def test_ten_thousand_calls_of_one_id_are_each_answered_once(env):
    observation, *_ = env.step(calling(*[raw_call("list_notes", "{}", call_id="c")] * 10_000))
    ids = [message["tool_call_id"] for message in observation]
    assert len(set(ids)) == 10_000
    assert ids[:3] == ["c", "c_2", "c_3"]


def test_a_refusal_doesnt_repeat_what_it_refuses_at_length(env):
    many = json.dumps({f"{number}{'y' * 1000}": 1 for number in range(1000)})
    for call in (raw_call("x" * 100_000, "{}"), raw_call("write", many)):
        observation, *_ = env.step(calling(call))
        assert len(observation[0]["content"]) < 1500


def test_surrogates_are_mended_on_the_way_in(env):
    """A19: pairs joined, lone ones replaced, wherever the model puts them."""
    call = raw_call("write", '{"text": "\\ud83c\\udf78 \\ud83d"}')
    env.step(calling(call, content="ok \ud83d end"))
    assert env.log == ["🍸 \ufffd"]
    assert env.running.messages[-2]["content"] == "ok \ufffd end"
    check_conversation(env.running.messages)
    json.dumps(env.running.messages, ensure_ascii=False).encode()
    env.step("text \ud83d")
    assert env.running.messages[-1]["content"] == "text \ufffd"


def test_content_is_null_only_beside_calls(env):
    """Some servers refuse an empty text beside calls, others a null without them."""
    env.step(calling(tool_call("list_notes"), content=" \n"))
    assert env.running.messages[-2]["content"] is None
    env.step({"content": None})
    assert env.running.messages[-1] == {"role": "assistant", "content": ""}


def test_content_parts_become_text(env):
    env.step({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": None}, 3]})
    assert env.running.messages[-1]["content"] == "a"


@pytest.mark.parametrize("part", [{"text": 5}, {"text": {"value": "x"}}, {"text": ["x"]}, None, 3])
def test_content_parts_that_hold_no_text_are_left_out(env, part):
    env.step({"content": [part, {"type": "text", "text": "a"}]})
    assert env.running.messages[-1]["content"] == "a"


@pytest.mark.parametrize("value", [5, None, float("nan"), {"a": float("nan")}, object()])
def test_fields_of_another_type_stay_out_of_the_conversation(env, value):
    env.step({"content": "a", "name": value, "refusal": value})
    assert env.running.messages[-1] == {"role": "assistant", "content": "a"}


def test_names_are_mended_like_any_text(env):
    env.step({"content": "a", "name": "bot \ud83d"})
    assert env.running.messages[-1]["name"] == "bot \ufffd"


def test_an_empty_list_of_calls_is_no_call(env):
    *_, terminated, _, info = env.step({"content": "bye", "tool_calls": []})
    assert terminated
    assert info["termination_reason"] == "answered"
    assert "tool_calls" not in env.running.messages[-1]


def test_text_calls_are_answered_by_one_message(env):
    observation, *_ = env.step("write[a|b]")
    assert observation == ({"role": "user", "content": "wrote a\nwrote b"},)
    assert statuses(env) == ["ok", "ok"]


def test_malformed_text_teaches_and_counts(env):
    observation, *_ = env.step("write[a")
    assert "isn't closed" in observation[0]["content"]
    assert env.running.records[0].turn(0).malformed == 1
    assert env.step("done")[4]["verdict"].gates["malformed_call"]


def test_cut_off_text_is_not_malformed(env):
    observation, *_ = env.step({"content": "write[a", "cut_off": True})
    assert "output limit" in observation[0]["content"]
    assert env.running.records[0].turn(0).malformed == 0


def test_the_policy_decides_when_to_stop_without_an_answer():
    env = QuizEnv()
    env.reset(seed=0)
    *_, info = env.step("")
    assert info["verdict"].gates["no_answer"]
    assert info["verdict"].reward == -0.5


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | broken,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
arguments = anything | st.text(max_size=30) | st.builds(json.dumps, anything)
names = st.sampled_from(["add", "read", "reset_to", "submit"]) | anything
calls = st.builds(raw_call, names, arguments, anything) | st.dictionaries(
    st.sampled_from(["id", "function", "type", "x"]), anything
)
actions = st.one_of(
    st.text(max_size=20),
    st.fixed_dictionaries(
        {"role": st.just("assistant")},
        optional={
            "content": st.none() | broken,
            "tool_calls": st.none() | st.lists(calls, max_size=5),
            "cut_off": st.booleans(),
            "finish_reason": st.none() | st.sampled_from(["stop", "length", "tool_calls", "?"]),
        },
    ),
)


@given(st.lists(actions, max_size=6))
def test_no_action_breaks_the_conversation(steps):
    """Whatever a policy says, each call is answered once and the reward stays a finite number."""
    env = CounterEnv(max_turns=5)
    env.reset(seed=0)
    for action in steps:
        asked = len(action.get("tool_calls") or ()) if isinstance(action, dict) else 0
        observation, reward, terminated, truncated, info = env.step(action)
        check_conversation(env.running.messages)
        assert observation in env.observation_space
        assert sum(m["role"] == "tool" for m in observation) == asked
        assert len(env.running.records[-1].calls) == asked
        assert -1.0 <= reward <= 1.0
        if terminated or truncated:
            assert info["verdict"].reward == reward
            break
