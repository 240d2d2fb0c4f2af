"""TextInTextOut: an agent environment as a text game."""

from __future__ import annotations

import json

import gymnasium
import pytest
from gymnasium.utils.passive_env_checker import check_action_space, check_observation_space
from hypothesis import given
from hypothesis import strategies as st

from agentgym.core import TextCall
from agentgym.errors import ConfigError
from agentgym.testing.conversation import check_conversation
from agentgym.testing.envs import CounterEnv, QuizEnv, SlowCounterEnv
from agentgym.testing.messages import calling, raw_call
from agentgym.wrappers import TextInTextOut
from agentgym.wrappers.text import read_action_text, render_action

ADD = '<tool_call>{"name": "add", "arguments": {"amount": 2}}</tool_call>'


class Grammar(CounterEnv):
    def parse_text(self, text):
        return [TextCall("add", {"amount": int(text)})] if text.isdigit() else None


def test_observations_are_the_text_of_the_new_messages():
    env = TextInTextOut(CounterEnv(), describe_tools=False)
    text, info = env.reset(options={"task_id": "counter/2"})
    assert text == "You operate a counter.\n\nBring the counter from 0 to 2, then submit."
    assert info["tools"]
    text, reward, terminated, truncated, _ = env.step(ADD)
    assert text == "<tool_response>\nThe counter stands at 2.\n</tool_response>"
    assert (reward, terminated, truncated) == (0.0, False, False)
    submit = '<tool_call>{"name": "submit"}</tool_call>'
    assert env.step(f"Done. {submit}")[1] == 1.0
    assert env.unwrapped.running.messages[-2]["content"] == "Done."


def test_several_calls_give_several_responses_in_order():
    env = TextInTextOut(CounterEnv())
    env.reset(seed=0)
    text = env.step(ADD + "\n" + ADD)[0]
    assert text.index("stands at 2") < text.index("stands at 4")
    assert text.count("<tool_response>") == 2


def test_tools_are_described_where_the_env_has_no_grammar_of_its_own():
    text, info = TextInTextOut(CounterEnv()).reset(seed=0)
    assert all(json.dumps(t["function"]) in text for t in info["tools"])
    assert "<tool_call>" in text
    assert "<tools>" not in TextInTextOut(Grammar()).reset(seed=0)[0]
    assert "<tools>" in TextInTextOut(Grammar(), describe_tools=True).reset(seed=0)[0]


def test_an_envs_own_grammar_passes_through():
    env = TextInTextOut(Grammar())
    env.reset(seed=0)
    assert env.step("3")[0] == "The counter stands at 3."
    assert "stands at 5" in env.step(ADD)[0]


def test_plain_text_is_the_answer():
    env = TextInTextOut(QuizEnv())
    env.reset(options={"task_id": "quiz/Peru"})
    assert env.step("Lima")[:3] == ("", 1.0, True)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ('{"name": "add", "arguments": {"amount": }}', "arguments of add are not valid JSON"),
        ('{"name": "add", "arguments": {"amount": "x"}}', "amount: "),
        ("nonsense", "can't be read"),
        ("[1]", "can't be read"),
        ("", "can't be read"),
        ('{"name": "fly", "arguments": {}}', "no tool 'fly'"),
    ],
)
def test_unreadable_calls_are_malformed_and_answered(block, told):
    env = TextInTextOut(CounterEnv())
    env.reset(seed=0)
    assert told in env.step(f"<tool_call>{block}</tool_call>")[0]
    assert env.unwrapped.running.records[0].turn(0).malformed == 1
    check_conversation(env.unwrapped.running.messages)


def test_a_call_without_a_closing_tag_is_read():
    assert read_action_text('<tool_call>{"name": "read"}')["tool_calls"][0]["function"] == {
        "name": "read",
        "arguments": None,
    }


def test_what_is_no_text_reaches_the_env_as_it_is():
    env = TextInTextOut(CounterEnv())
    env.reset(seed=0)
    message = calling(raw_call("add", '{"amount": 1}'), usage={"prompt_tokens": 3})
    assert "stands at 1" in env.step(message)[0]
    assert env.unwrapped.running.records[0].turn(0).usage.prompt_tokens == 3


@pytest.mark.parametrize("env_class", [CounterEnv, SlowCounterEnv, QuizEnv, Grammar])
def test_a_random_policy_of_strings_runs_every_env(env_class):
    """C01: samples are in the space, and legal."""
    env = TextInTextOut(env_class())
    env.action_space.seed(0)
    text, _ = env.reset(seed=0)
    over = False
    while not over:
        assert text in env.observation_space
        action = env.action_space.sample()
        assert action in env.action_space
        text, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    assert not info["verdict"].gates["malformed_call"]


async def test_the_async_face_speaks_text_too():
    env = TextInTextOut(SlowCounterEnv())
    assert isinstance((await env.areset(seed=0))[0], str)
    assert "stands at 2" in (await env.astep(ADD))[0]


def test_spaces_hold_any_text_and_work_with_gymnasium():
    """C01, C02."""
    env = TextInTextOut(CounterEnv())
    for space in (env.observation_space, env.action_space):
        check_action_space(space)
        check_observation_space(space)
        assert "naïve — 价格 ¥5\n\t😀" * 10_000 in space
        assert space.sample() in space
        assert 3 not in space
        assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(["a"])))) == ["a"]
        space.seed(3)
        first = [space.sample() for _ in range(4)]
        space.seed(3)
        assert [space.sample() for _ in range(4)] == first
    assert env.action_space == TextInTextOut(CounterEnv()).action_space
    assert env.action_space != TextInTextOut(QuizEnv()).action_space


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.text().filter(lambda t: "<tool_call>" not in t and t.strip() == t),
    st.lists(
        st.tuples(
            st.text().filter(lambda t: "</tool_call>" not in t),
            st.dictionaries(st.text(), json_values).filter(
                lambda d: "</tool_call>" not in json.dumps(d)
            ),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_a_message_survives_being_written_as_text(content, calls):
    message = calling(*(raw_call(n, json.dumps(a)) for n, a in calls), content=content or None)
    found = read_action_text(render_action(message))
    assert found["content"] == (content or None)
    assert [
        (c["function"]["name"], c["function"]["arguments"]) for c in found["tool_calls"]
    ] == calls


pieces = st.text() | st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "add"', "}", "\ud83d"]
)


@given(st.lists(pieces).map("".join))
def test_no_text_breaks_the_conversation(text):
    env = TextInTextOut(CounterEnv())
    env.reset(seed=0)
    env.step(text)
    check_conversation(env.unwrapped.running.messages)


def test_other_envs_are_refused():
    with pytest.raises(ConfigError, match="needs an agentgym AgentEnv, got CartPoleEnv"):
        TextInTextOut(gymnasium.make("CartPole-v1"))
