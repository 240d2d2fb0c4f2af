"""Cases F01 to F08 and F19 as they were reported, on the token path from prompt to training row."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import pytest
from template_zoo import BUNDLED, FAMILIES, byte_tokenizer, stop_ids

from agentgym.errors import TrainingError
from agentgym.tokens.codec import ChatCodec
from agentgym.tokens.conversations import Conversations
from agentgym.trace import Trace
from agentgym.train.rows import TrainingRow, training_row
from agentgym.types import Message, ToolSpec, Turn, Verdict

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SEARCH: ToolSpec = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}
USER: Message = {"role": "user", "content": "find shoes"}
CALL = '<tool_call>\n{"name": "search", "arguments": {"q": "a"}}\n</tool_call>'


@functools.cache
def codec_of(family: str) -> ChatCodec:
    tokenizer = byte_tokenizer(family)
    return ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, family))


def ids_of(codec: ChatCodec, text: str) -> list[int]:
    return list(codec.tokenizer(text, add_special_tokens=False)["input_ids"])


def episode(
    codec: ChatCodec,
    said: Sequence[Sequence[int]],
    replies: Sequence[str],
    tools: Sequence[ToolSpec],
) -> tuple[list[Turn], TrainingRow]:
    """What is sampled turn by turn, what the environment says between, and the row of it."""
    conversations = Conversations(codec)
    history: list[Message] = [USER]
    turns: list[Turn] = []
    for index, sampled in enumerate(said):
        prompt = conversations.prompt("s", history, tools)
        conversations.answered("s", prompt, sampled)
        message = codec.parse(sampled, prompt.ids, tools).message
        turns.append(
            Turn(
                index=index,
                message=message,
                prompt_ids=prompt.ids,
                completion_ids=tuple(sampled),
                logprobs=(-0.5,) * len(sampled),
            )
        )
        calls = message.get("tool_calls") or ()
        shown = [{**call, "id": f"c{index}{n}"} for n, call in enumerate(calls)]
        history.append({**message, **({"tool_calls": shown} if shown else {})})
        text = replies[index] if index < len(replies) else ""
        history += [{"role": "tool", "tool_call_id": c["id"], "content": text} for c in shown]
        if not shown:
            history.append({"role": "user", "content": text})
        so_far = training_row(trace_of(turns), filler_id=0)
        lengths = {len(so_far.completion_ids), len(so_far.env_mask), len(so_far.logprobs)}
        assert len(lengths) == 1  # F02: after every turn
    return turns, training_row(trace_of(turns), filler_id=0)


def trace_of(turns: Sequence[Turn]) -> Trace:
    return Trace(
        trace_id="t",
        env_spec="{}",
        started_at="2026-01-01T00:00:00+00:00",
        terminated=True,
        verdict=Verdict(reward=1.0),
        turns=tuple(turns),
    )


def trained(row: TrainingRow) -> list[int]:
    return list(itertools.compress(row.completion_ids, row.env_mask))


def test_f01_and_f02_spelling_that_no_tokenizer_chooses_survives_every_turn() -> None:
    """F01: "he" + "llo" stays two ids. F02: also where its neighbour would merge with it."""
    codec = codec_of("qwen2_5")
    he, llo, hello = codec.tokenizer.convert_tokens_to_ids(["he", "llo", "hello"])
    stop = codec.stop_ids[0]
    said = [[he, llo, stop], [he], [llo, stop]]
    turns, row = episode(codec, said, ["llo", "llo", "llo"], [])
    assert trained(row) == [he, llo, stop, he, llo, stop]
    again = ids_of(codec, codec.tokenizer.decode(row.completion_ids))
    assert len(again) < len(row.completion_ids)  # what decoding and encoding would make of them
    assert hello in again
    for turn, after in itertools.pairwise(turns):
        so_far = (turn.prompt_ids or ()) + (turn.completion_ids or ())
        assert (after.prompt_ids or ())[: len(so_far)] == so_far


def test_f03_separator_after_the_stop_token_is_kept_beside_an_empty_message() -> None:
    codec = codec_of("qwen2_5")
    (newline,) = ids_of(codec, "\n")
    sampled = [*ids_of(codec, CALL), codec.stop_ids[0]]
    (first, second), row = episode(codec, [sampled, sampled], ["none"], [SEARCH])
    assert first.message["content"] == ""
    seen = len(first.prompt_ids or ()) + len(sampled)
    assert (second.prompt_ids or ())[seen] == newline
    assert row.fault is None


@pytest.mark.parametrize("family", BUNDLED)
def test_f04_reasoning_is_in_the_row_as_it_was_in_the_prompt_or_the_start_is_refused(
    family: str,
) -> None:
    codec = codec_of(family)
    tools = [SEARCH] if codec.native_tools else []
    if codec.fault is not None:
        with pytest.raises(TrainingError, match=r"_training\.jinja"):
            codec.check([USER], tools)
        return
    codec.check([USER], tools)
    said = [
        [*ids_of(codec, f"<think>\nhello {n}\n</think>\n\nsay{n}"), codec.stop_ids[-1]]
        for n in range(3)
    ]
    turns, row = episode(codec, said, ["a", "b"], tools)
    assert row.fault is None
    whole = (*row.prompt_ids, *row.completion_ids)
    for turn in turns:
        known = (turn.prompt_ids or ()) + (turn.completion_ids or ())
        assert whole[: len(known)] == known
    assert trained(row) == list(itertools.chain.from_iterable(said))


def test_f05_parallel_results_are_rendered_together() -> None:
    codec = codec_of("qwen2_5")
    sampled = [*ids_of(codec, f"{CALL}\n{CALL}"), codec.stop_ids[0]]
    (first, second), _ = episode(codec, [sampled, sampled], ["none"], [SEARCH])
    between = codec.tokenizer.decode(
        (second.prompt_ids or ())[len(first.prompt_ids or ()) + len(sampled) :]
    )
    assert between.count("<|im_start|>user") == 1
    assert between.count("<tool_response>") == 2
    call = {"type": "function", "function": {"name": "search", "arguments": {"q": "a"}}}
    said: Message = {"role": "assistant", "content": "", "tool_calls": [call, call]}
    result: Message = {"role": "tool", "content": "none"}
    whole = codec.tokenizer.apply_chat_template(
        [USER, said, result, result], tools=[SEARCH], tokenize=False, add_generation_prompt=True
    )
    assert whole.endswith("<|im_end|>" + between)


def test_f07_sampled_stop_tokens_are_trained_on_and_supplied_ones_are_not() -> None:
    codec = codec_of("qwen2_5")
    stop = codec.stop_ids[0]
    cut = ids_of(codec, "hello")
    turns, row = episode(codec, [[*cut, stop], cut, [*cut, stop]], ["a", "b"], [])
    stops = [m for i, m in zip(row.completion_ids, row.env_mask, strict=True) if i == stop]
    # sampled, of the user's message, supplied after the cut, of the user's message, sampled
    assert stops == [1, 0, 0, 0, 1]
    assert turns[1].completion_ids == tuple(cut)


@pytest.mark.parametrize("family", ["llama3_1", "qwen3", "gemma4_v5", "glm4moe", "gptoss"])
def test_f19_special_tokens_that_were_sampled_shift_no_mask(family: str) -> None:
    codec = codec_of(family)
    special = codec.tokenizer.convert_tokens_to_ids(FAMILIES[family].special[0])
    said = [[special, 7, special, codec.stop_ids[0]], [7, special, 8]]
    turns, row = episode(codec, said, ["hello"], [SEARCH])
    assert trained(row) == [*said[0], *said[1]]
    second = turns[1].prompt_ids or ()
    between = second[len(turns[0].prompt_ids or ()) + 4 :]
    assert row.completion_ids[4 : 4 + len(between)] == list(between)
    assert row.env_mask[4 : 4 + len(between)] == [0] * len(between)
