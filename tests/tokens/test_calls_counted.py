"""What was sampled, read and played: what ran, what was answered, and what counts as malformed."""

from __future__ import annotations

from typing import Any

import pytest
from call_zoo import call_tokenizer, ids_of, stop_ids

from agentgym.testing.envs import CounterEnv
from agentgym.tokens.codec import ChatCodec
from agentgym.types import Episode

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ADD = '{"name": "add", "arguments": {"amount": 2}}'
SUBMIT = '<tool_call>{"name": "submit", "arguments": {}}</tool_call>'


def played(*replies: str, family: str = "qwen2_5", **annotations: Any) -> Episode:
    """An episode of sampled replies; the annotations go with the last one."""
    tokenizer = call_tokenizer(family)
    codec = ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer))
    env = CounterEnv(max_turns=len(replies))
    _, info = env.reset(options={"task_id": "counter/4", "judging": "deferred"})
    for reply in replies:
        ids = [*ids_of(tokenizer, reply), codec.stop_ids[0]]
        more = annotations if reply is replies[-1] else {}
        action = codec.parse(ids, [], info["tools"]).message | more
        _, _, _, _, info = env.step(action)
    episode: Episode = info["episode_record"]
    return episode


def test_calls_in_the_format_run_and_count_for_nothing() -> None:
    episode = played(f"I add. <tool_call>{ADD}</tool_call>\n<tool_call>{ADD}</tool_call>{SUBMIT}")
    assert [c.status for c in episode.turns[0].calls] == ["ok", "ok", "ok"]
    assert episode.outcome == {"value": 4}
    assert episode.turns[0].message["content"] == "I add."
    assert episode.malformed_calls == 0


def test_repaired_call_runs_and_counts_as_malformed() -> None:
    episode = played(f"<tool_call>{ADD}\n{ADD}", SUBMIT)
    first = episode.turns[0]
    assert [(c.status, c.repaired, c.malformed) for c in first.calls] == [
        ("ok", False, False),
        ("ok", True, True),
    ]
    assert episode.outcome == {"value": 4}
    assert (first.malformed, episode.malformed_calls) == (1, 1)
    assert all("repaired" not in call for call in first.message["tool_calls"])


def test_repaired_call_that_the_tool_refuses_counts_once() -> None:
    episode = played('<tool_call>{"name": "add", "arguments": {"amount": "x"}}', SUBMIT)
    assert [c.status for c in episode.turns[0].calls] == ["malformed"]
    assert episode.malformed_calls == 1


@pytest.mark.parametrize(
    "reply", ['<tool_call>{"name": "add", "argu', "The sum is 4.</tool_call>", "<function=add>"]
)
def test_unreadable_call_is_answered_and_never_the_final_answer(reply: str) -> None:
    episode = played(reply, SUBMIT)
    (answer,) = episode.turns[0].replies
    assert answer["role"] == "tool"
    assert "can't be read" in answer["content"]
    assert episode.termination_reason == "submitted"
    assert episode.malformed_calls == 1


@pytest.mark.parametrize(
    "reply", [f"<tool_call>{ADD}", '<tool_call>{"name": "add", "arguments": {"amou']
)
def test_call_that_the_output_limit_ended_is_cut_off_and_not_malformed(reply: str) -> None:
    episode = played(SUBMIT.replace("submit", "read"), reply, cut_off=True)
    assert [c.status for c in episode.turns[1].calls] == ["cut_off"]
    assert (episode.malformed_calls, episode.cut_off_calls) == (0, 1)
    assert episode.outcome == {"value": 0}


def test_reasoning_is_no_part_of_the_message() -> None:
    tokenizer = call_tokenizer("qwen3")
    codec = ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer))
    _, info = CounterEnv().reset()
    reply = codec.parse(
        ids_of(tokenizer, f"<think>Two.</think><tool_call>{ADD}</tool_call>"), [], info["tools"]
    )
    assert reply.reasoning == "Two."
    assert reply.message["content"] == ""
    assert len(reply.message["tool_calls"]) == 1
