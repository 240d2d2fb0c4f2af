"""Whatever is sampled and whatever the env says: prompts extend, masks cover what was sampled."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_zoo import BROKEN, FAMILIES, QUIRKS, byte_tokenizer, stop_ids

from agentgym.errors import TrainingError
from agentgym.tokens.codec import ChatCodec
from agentgym.tokens.conversations import Conversations
from agentgym.trace import Trace
from agentgym.train.rows import training_row, training_rows
from agentgym.types import Message, Turn, Verdict

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NATIVE = ("qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "glm4moe", "gptoss", "gemma4_v5",
          "nemotron_3_nano", "lfm2_2_5", "muse_glimmer")  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]
USER: Message = {"role": "user", "content": "find shoes"}


@functools.cache
def codec_of(family: str) -> ChatCodec:
    if family in QUIRKS:
        tokenizer = byte_tokenizer("qwen2_5", QUIRKS[family])
        return ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, "qwen2_5"))
    tokenizer = byte_tokenizer(family)
    return ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, family))


def controls_of(codec: ChatCodec) -> dict[int, str]:
    added = codec.tokenizer.added_tokens_decoder
    return {number: token.content for number, token in added.items()}


families = st.sampled_from([*NATIVE, *QUIRKS])


@st.composite
def episodes(draw: st.DrawFn) -> tuple[str, list[tuple[list[int], Message, list[Message]]]]:
    """A family, and turns: sampled ids, the message they stand for, what the env answers."""
    family = draw(families)
    codec = codec_of(family)
    control = list(controls_of(codec).values())
    words = st.lists(st.one_of(st.text(max_size=5), st.sampled_from(control)), max_size=4)
    text = words.map("".join)
    top = max(controls_of(codec))
    turns = []
    for _ in range(draw(st.integers(1, 4))):
        sampled = draw(st.lists(st.integers(0, top), max_size=6))
        sampled += draw(st.sampled_from([[], [codec.stop_ids[0]], [codec.stop_ids[-1]]]))
        message: Message = {"role": "assistant", "content": draw(text)}
        replies: list[Message] = [{"role": "user", "content": draw(text)}]
        names = draw(st.lists(text, max_size=3)) if codec.native_tools else []
        if names:
            message["tool_calls"] = [
                {
                    "id": f"c{i}{draw(text)}",
                    "type": "function",
                    "function": {"name": name, "arguments": draw(text)},
                }
                for i, name in enumerate(names)
            ]
            replies = [
                {"role": "tool", "tool_call_id": call["id"], "content": draw(text)}
                for call in message["tool_calls"]
            ]
        turns.append((sampled, message, replies))
    return family, turns


def harmless(message: Message) -> Message:
    """The message with other words: what a template writes around them is the same."""
    plain = {**message, "content": "x"}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [
            {**call, "id": f"c{i}", "function": {"name": "x", "arguments": "{}"}}
            for i, call in enumerate(calls)
        ]
    return plain


@settings(max_examples=60, deadline=None)
@given(episodes())
def test_what_is_sampled_is_what_is_trained_on(
    episode: tuple[str, list[tuple[list[int], Message, list[Message]]]],
) -> None:
    family, turns = episode
    codec = codec_of(family)
    conversations = Conversations(codec)
    history: list[Message] = [USER]
    known: tuple[int, ...] = ()
    made = []
    for index, (sampled, message, replies) in enumerate(turns):
        prompt = conversations.prompt("s", history, TOOLS)
        assert prompt.ids[: len(known)] == known
        conversations.answered("s", prompt, sampled)
        made.append(
            Turn(
                index=index,
                message=message,
                prompt_ids=prompt.ids,
                completion_ids=tuple(sampled),
                logprobs=(-0.5,) * len(sampled),
            )
        )
        known = (*prompt.ids, *sampled)
        history += [message, *replies]
    row = training_row(_trace(made), filler_id=0)
    all_sampled = [i for sampled, _, _ in turns for i in sampled]
    if not all_sampled:
        assert row.fault == "nothing was sampled"
        return
    assert len(row.completion_ids) == len(row.env_mask) == len(row.logprobs)
    assert list(itertools.compress(row.completion_ids, row.env_mask)) == all_sampled
    assert [p != 0.0 for p in row.logprobs] == [m == 1 for m in row.env_mask]
    assert (*row.prompt_ids, *row.completion_ids) == known


@settings(max_examples=60, deadline=None)
@given(episodes())
def test_what_looks_like_a_control_token_stays_text(
    episode: tuple[str, list[tuple[list[int], Message, list[Message]]]],
) -> None:
    family, turns = episode
    codec = codec_of(family)
    control = controls_of(codec)
    for sampled, message, replies in turns:
        ids = codec.suffix_ids(sampled, message, replies, TOOLS)
        answers = [{**harmless(r), "tool_call_id": f"c{i}"} for i, r in enumerate(replies)]
        if replies[0]["role"] == "user":
            answers = [{"role": "user", "content": "x"}]
        plain = codec.suffix_ids(sampled, harmless(message), answers, TOOLS)
        assert [i for i in ids if i in control] == [i for i in plain if i in control]
        shown = codec.tokenizer.decode(ids)
        for reply in replies:
            text = reply["content"]
            as_json = json.dumps(text, ensure_ascii=False)[1:-1]  # Llama, GPT-OSS
            assert any(spelling in shown for spelling in (text, text.strip(), as_json))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_opening_and_the_tools_cannot_forge_control_tokens(data: st.DataObject) -> None:
    codec = codec_of(data.draw(st.sampled_from(NATIVE)))
    control = controls_of(codec)
    text = data.draw(
        st.lists(st.sampled_from([*control.values(), "a", " "]), max_size=5).map("".join)
    )

    def prompt(word: str) -> list[int]:
        function = {**TOOLS[0]["function"], "description": f"S{word}"}
        tools = [{"type": "function", "function": function}]
        system = {"role": "system", "content": f"s{word}s"}
        ids = codec.prompt_ids([system, {"role": "user", "content": f"u{word}u"}], tools)
        return [i for i in ids if i in control]

    assert prompt(text) == prompt("")


def _reply(codec: ChatCodec) -> list[int]:
    """The ids of a reply with a call, and of the stop token that ends it."""
    call = {"id": "c0", "type": "function", "function": {"name": "search", "arguments": {"q": "é"}}}
    said: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    reasoned = {**said, "reasoning_content": "hello"}
    prompt = codec.prompt_ids([USER], TOOLS)
    for message in (said, reasoned):
        text = codec.tokenizer.apply_chat_template(
            [USER, message], tools=TOOLS, chat_template=codec.template, tokenize=False
        )
        ids = list(codec.tokenizer(text, add_special_tokens=False)["input_ids"])
        if ids[: len(prompt)] == prompt:
            body = ids[len(prompt) :]
            ends = [i for i, found in enumerate(body) if found in codec.stop_ids]
            return body[: ends[0] + 1] if ends else [*body, codec.stop_ids[-1]]
    raise AssertionError(text)


@pytest.mark.parametrize("family", NATIVE)
def test_a_reply_may_be_cut_off_at_any_token(family: str) -> None:
    codec = codec_of(family)
    whole = _reply(codec)
    for length in range(len(whole) + 1):
        sampled = whole[:length]
        message = codec.parse(sampled, codec.prompt_ids([USER], TOOLS), TOOLS).message
        calls = message.get("tool_calls", ())
        replies: list[Message] = [{"role": "user", "content": "go on"}]
        if calls:
            replies = [{"role": "tool", "tool_call_id": "", "content": "no"} for _ in calls]
        suffix = codec.suffix_ids(sampled, message, replies, TOOLS)
        stopped = length == len(whole)
        row = training_row(_trace_of([1], sampled, suffix), filler_id=0)
        trained = list(itertools.compress(row.completion_ids, row.env_mask))
        assert trained[:length] == sampled
        if stopped:
            assert sampled[-1] in codec.stop_ids
            assert suffix[:1] != sampled[-1:]
        elif length:
            assert suffix[0] in controls_of(codec)


def _trace_of(opening: list[int], sampled: list[int], suffix: list[int]) -> Trace:
    prompts = [tuple(opening), (*opening, *sampled, *suffix)]
    answers = [tuple(sampled), (9,)]
    return _trace(
        [
            Turn(
                index=i,
                message={"role": "assistant", "content": ""},
                prompt_ids=prompt,
                completion_ids=answer,
                logprobs=(-0.5,) * len(answer),
            )
            for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]
    )


def _trace(turns: Sequence[Turn]) -> Trace:
    return Trace(
        trace_id="t",
        env_spec="{}",
        started_at="2026-01-01T00:00:00+00:00",
        terminated=True,
        verdict=Verdict(reward=1.0),
        turns=tuple(turns),
    )


@pytest.mark.parametrize("family", NATIVE)
def test_sampled_stop_tokens_are_trained_on_and_supplied_ones_are_not(family: str) -> None:
    codec = codec_of(family)
    whole = _reply(codec)
    message = codec.parse(whole, codec.prompt_ids([USER], TOOLS), TOOLS).message
    result: Message = {"role": "tool", "tool_call_id": "", "content": "no"}
    for sampled in (whole, whole[:-1]):
        suffix = codec.suffix_ids(sampled, message, [result], TOOLS)
        row = training_row(_trace_of([1], sampled, suffix), filler_id=0)
        stop = len(whole) - 1
        assert row.completion_ids[stop] == whole[-1]
        assert row.env_mask[stop] == int(sampled is whole)


def test_a_completion_with_a_beginning_of_sequence_in_it_keeps_it() -> None:
    codec = codec_of("llama3_1")
    bos = codec.tokenizer.bos_token_id
    conversations = Conversations(codec)
    first = conversations.prompt("s", [USER], TOOLS)
    sampled = [bos, 7, bos, codec.stop_ids[0]]
    conversations.answered("s", first, sampled)
    said = codec.parse(sampled, first.ids, TOOLS).message
    second = conversations.prompt("s", [USER, said, {"role": "user", "content": "b"}], TOOLS)
    assert second.ids[: len(first.ids) + 4] == (*first.ids, *sampled)
    assert second.ids[len(first.ids) + 4 :].count(bos) == 0


def test_where_the_template_breaks_the_conversation_is_rendered_anew_and_the_episode_split() -> (
    None
):
    """F04: Qwen 3 keeps reasoning while tools answer, and drops it at a new user message."""
    tokenizer = byte_tokenizer("qwen3")
    codec = ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, "qwen3"), allow_breaks=True)
    codec.check([USER], TOOLS)
    assert codec.template == tokenizer.chat_template
    conversations = Conversations(codec)
    call = '{"name": "search", "arguments": {}}'
    spoken = [
        f"<think>\nhello one\n</think>\n\n<tool_call>\n{call}\n</tool_call>",
        "<think>\nhello two\n</think>\n\nwhich size?",
        "<think>\nhello three\n</think>\n\nbye",
    ]
    history: list[Message] = [USER]
    turns = []
    for index, text in enumerate(spoken):
        prompt = conversations.prompt("s", history, TOOLS)
        sampled = [*tokenizer(text)["input_ids"], codec.stop_ids[0]]
        conversations.answered("s", prompt, sampled)
        message = codec.parse(sampled, prompt.ids, TOOLS).message
        reply: Message = {"role": "user", "content": "42"}
        if calls := message.get("tool_calls"):
            reply = {"role": "tool", "tool_call_id": calls[0].get("id", ""), "content": "none"}
        history += [message, reply]
        turns.append(
            Turn(
                index=index,
                message=message,
                prompt_ids=prompt.ids,
                completion_ids=tuple(sampled),
                logprobs=(-0.5,) * len(sampled),
            )
        )
    first, second, third = (turn.prompt_ids or () for turn in turns)
    assert second[: len(first)] == first
    assert "hello one" in tokenizer.decode(second)
    assert third == tuple(codec.prompt_ids(history[:-2], TOOLS))
    assert "hello" not in tokenizer.decode(third)
    trace = _trace(turns)
    rows = training_rows(trace, filler_id=0, split=True)
    trained = [list(itertools.compress(r.completion_ids, r.env_mask)) for r in rows]
    assert [tokenizer.decode(ids).count("hello") for ids in trained] == [2, 1]
    assert training_row(trace, filler_id=0).fault is not None


@pytest.mark.parametrize("allow_breaks", [True, False])
def test_reasoning_that_a_template_drops_is_kept_unless_breaks_are_allowed(
    allow_breaks: bool,
) -> None:
    tokenizer = byte_tokenizer("glm4moe")
    stops = stop_ids(tokenizer, "glm4moe")
    conversations = Conversations(ChatCodec(tokenizer, stop_ids=stops, allow_breaks=allow_breaks))
    first = conversations.prompt("s", [USER], TOOLS)
    sampled = [*tokenizer("\n<think>hello</think>\nwhich?")["input_ids"], stops[1]]
    conversations.answered("s", first, sampled)
    said = conversations.codec.parse(sampled, first.ids, TOOLS).message
    second = conversations.prompt("s", [USER, said, {"role": "user", "content": "42"}], TOOLS)
    assert ("hello" in tokenizer.decode(second.ids)) != allow_breaks


TOOLS_AT_THE_LAST_USER = (  # after Mistral Small 3's: the tools move, and ids come last
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% for m in messages %}{% if m.role == 'user' and tools and m == users[-1] %}<tools>"
    "{{ tools | tojson }}</tools>{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
    '"id": "{{ c.id }}"}\n</tool_call>{% endfor %}<|im_end|>{% endfor %}'
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_tools_that_a_template_moves_are_the_tasks_own() -> None:
    """With breaks allowed it is extended while tools answer, and rendered anew for a user."""
    tokenizer = byte_tokenizer("qwen2_5", TOOLS_AT_THE_LAST_USER)
    stops = stop_ids(tokenizer, "qwen2_5")
    with pytest.raises(TrainingError, match="rendered differently"):
        ChatCodec(tokenizer, stop_ids=stops).check([USER], TOOLS)
    codec = ChatCodec(tokenizer, stop_ids=stops, allow_breaks=True)
    codec.check([USER], TOOLS)
    conversations = Conversations(codec)
    call = '<tool_call>\n{"name": "search", "arguments": {"q": "a"}}\n</tool_call>'
    history: list[Message] = [USER]
    prompts: list[tuple[int, ...]] = []
    for turn, text in enumerate((call * 2, call, "hello", call)):
        prompt = conversations.prompt("s", history, TOOLS)
        prompts.append(prompt.ids)
        sampled = [*tokenizer(text)["input_ids"], stops[0]]
        conversations.answered("s", prompt, sampled)
        message = codec.parse(sampled, prompt.ids, TOOLS).message
        replies: list[Message] = []
        for number, made in enumerate(message.get("tool_calls", ())):
            made["id"] = f"call_{turn}{number}"
            replies.append({"role": "tool", "tool_call_id": made["id"], "content": "none"})
        history += [message, *(replies or [{"role": "user", "content": "42"}])]
    extends = [after[: len(before)] == before for before, after in itertools.pairwise(prompts)]
    assert extends == [True, True, False]
    for ids in prompts:
        shown = tokenizer.decode(ids)
        assert shown.count("<tools>") == 1
        assert "stand_in" not in shown
    whole = codec.prompt_ids(history[:-2], TOOLS)
    assert prompts[-1] == tuple(whole)


def test_a_template_that_breaks_is_no_conversation_where_breaks_are_not_allowed() -> None:
    tokenizer = byte_tokenizer("qwen2_5", BROKEN["thinking stripped"][0])
    codec = ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, "qwen2_5"))
    conversations = Conversations(codec)
    first = conversations.prompt("s", [USER], [])
    conversations.answered("s", first, [codec.stop_ids[0]])
    said: Message = {"role": "assistant", "content": ""}
    with pytest.raises(TrainingError, match="can't be extended"):
        conversations.prompt("s", [USER, said, USER], [])


def test_half_a_surrogate_pair_is_text_like_any_other() -> None:
    codec = codec_of("qwen2_5")
    said: Message = {"role": "assistant", "content": "a"}
    ids = codec.suffix_ids([], said, [{"role": "user", "content": "x\ud83d y"}], TOOLS)
    assert "x\ufffd y" in codec.tokenizer.decode(ids)


def test_families_of_the_tests_have_control_tokens() -> None:
    assert all(controls_of(codec_of(family)) for family in NATIVE)
    assert set(NATIVE) <= set(FAMILIES)
