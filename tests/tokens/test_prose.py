"""Replies where nothing can be called: a text grammar's actions, and the reasoning before them."""

from __future__ import annotations

import pytest
from template_zoo import byte_tokenizer, stop_ids

from agentgym.envs.webshop.env import read_action
from agentgym.tokens.codec import ChatCodec, ParsedReply
from agentgym.types import Message, ToolSpec

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SEARCH: ToolSpec = {"type": "function", "function": {"name": "search", "parameters": {}}}
THOUGHT, ACTION = "I could search[boots]", "search[red shoes]"
HARMONY = (
    f"<|channel|>analysis<|message|>{THOUGHT}<|end|>"
    f"<|start|>assistant<|channel|>final<|message|>{ACTION}"
)
MUSE = f" to=self<|message|>{THOUGHT}<|eom|><|start|>assistant to=user<|message|>{ACTION}"


def parsed(family: str, reply: str, tools: list[ToolSpec]) -> ParsedReply:
    tokenizer = byte_tokenizer(family)
    codec = ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, family))
    prompt = codec.prompt_ids([{"role": "user", "content": "shop"}], tools)
    sampled = tokenizer(reply, add_special_tokens=False)["input_ids"]
    return codec.parse([*sampled, codec.stop_ids[0]], prompt, tools)


@pytest.mark.parametrize(
    ("family", "reply", "tools"),
    [
        ("qwen3", f"<think>\n{THOUGHT}\n</think>\n\n{ACTION}", []),
        ("qwen3_5_think", f"{THOUGHT}\n</think>\n\n{ACTION}", []),  # its prompt opens them
        ("nemotron_3_nano", f"{THOUGHT}</think>{ACTION}", []),
        ("deepseek_r1_distill", f"{THOUGHT}\n</think>\n\n{ACTION}", [SEARCH]),  # renders no calls
        ("gemma4_v5", f"<|channel>thought\n{THOUGHT}<channel|>{ACTION}", []),
        ("gptoss", HARMONY, []),
        ("muse_glimmer", MUSE, []),
    ],
)
def test_reasoning_before_an_action_in_text_is_no_part_of_it(
    family: str, reply: str, tools: list[ToolSpec]
) -> None:
    found = parsed(family, reply, tools)
    assert found.message == {"role": "assistant", "content": ACTION}
    assert found.reasoning == THOUGHT
    assert read_action(found.message["content"]) == ("search", "red shoes")


@pytest.mark.parametrize("family", ["qwen3_5_think", "deepseek_r1_distill"])
def test_reasoning_that_never_ends_is_no_answer(family: str) -> None:
    found = parsed(family, THOUGHT, [])
    assert (found.message["content"], found.reasoning) == ("", THOUGHT)


@pytest.mark.parametrize(
    ("family", "tag"),
    [(f, "<think>") for f in ("qwen3", "glm4moe", "lfm2_v2", "llama3_1", "gemma3", "phi3")]
    + [("gemma4_v5", "<|channel>thought")],
)
def test_tag_of_reasoning_at_the_end_of_what_others_wrote_opens_none(family: str, tag: str) -> None:
    """A page that ends in `<think>` would swallow the policy's answer."""
    tokenizer = byte_tokenizer(family)
    codec = ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, family))
    said = tokenizer(ACTION, add_special_tokens=False)["input_ids"]
    prompt = codec.prompt_ids([{"role": "user", "content": f"shop {tag}"}], [SEARCH])
    assert codec.parse(said, prompt, [SEARCH]).message["content"] == ACTION
    after: Message = {"role": "assistant", "content": "a"}
    prompt += codec.suffix_ids([], after, [{"role": "user", "content": tag}], [SEARCH])
    assert codec.parse(said, prompt, []).message["content"] == ACTION


@pytest.mark.parametrize("tools", [[], [SEARCH]])
@pytest.mark.parametrize("begins", ["", "<think>\n"])
def test_tag_of_reasoning_within_reasoning_that_the_prompt_opened_is_part_of_it(
    tools: list[ToolSpec], begins: str
) -> None:
    found = parsed("qwen3_5_think", f"{begins}so <think> or {THOUGHT}\n</think>\n\n{ACTION}", tools)
    assert found.message == {"role": "assistant", "content": ACTION}
    assert found.reasoning == f"so <think> or {THOUGHT}"


@pytest.mark.parametrize("family", ["qwen3", "gptoss", "llama3_1", "gemma3"])
@pytest.mark.parametrize("reply", ["search[<tool_call>]", " as it is \n", ""])
def test_text_is_text(family: str, reply: str) -> None:
    found = parsed(family, reply, [])
    assert found.message == {"role": "assistant", "content": reply}
    assert found.reasoning is None
