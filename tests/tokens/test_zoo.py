"""Every template that TRL bundles, and quirks alone: ids put together are the template's own."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from template_zoo import BROKEN, BUNDLED, QUIRKS, byte_tokenizer, stop_ids, template_text
from transformers import AutoTokenizer

from agentgym.errors import TrainingError
from agentgym.tokens import codec as codec_module
from agentgym.tokens import training_forms
from agentgym.tokens.codec import ChatCodec
from agentgym.types import Message, ToolSpec

pytestmark = [
    pytest.mark.thorough,  # every template that TRL bundles
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

TOOLS: list[ToolSpec] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search.",
            "parameters": {
                "type": "object",
                "properties": {"q": {"type": "string", "description": "Words."}},
                "required": ["q"],
            },
        },
    }
]
OPENING: list[Message] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "find shoes"},
]
REFUSED = {"deepseekv3", "idefics3", "llava_next", "smolvlm"}
SWAPPED = {"deepseek_r1_distill", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6"}
NO_SYSTEM = {"gemma"}
"""Templates that refuse a system message."""
NATIVE = [
    family
    for family in BUNDLED
    if re.match("qwen2_5$|qwen3|glm|gptoss|lfm2_(2|v2)|llama3_|muse|nemo|gemma4|diffusion", family)
]
ONE_CALL = {"gptoss", "llama3_1", "llama3_2"}
"""Templates that take one call per message."""
CALL_ONLY = {"llama3_1", "llama3_2", *(f for f in BUNDLED if f.startswith(("gemma4", "diffusion")))}
"""Templates that drop the text beside a call, or move it behind the call."""


@functools.cache
def codec_of(family: str, *, template: str | None = None, **kwargs: Any) -> ChatCodec:
    tokenizer = byte_tokenizer(family, template)
    return ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, family), **kwargs)


def opening_of(family: str) -> list[Message]:
    return OPENING[1:] if family in NO_SYSTEM else OPENING


def rendered(codec: ChatCodec, messages: list[Message], tools: Any, *, generation: bool) -> str:
    """The template's own rendering, by transformers."""
    text: str = codec.tokenizer.apply_chat_template(
        messages,
        tools=tools or None,
        chat_template=codec.template,
        tokenize=False,
        add_generation_prompt=generation,
        **codec._kwargs,
    )
    return text


def ids_of(codec: ChatCodec, text: str) -> list[int]:
    return list(codec.tokenizer(text, add_special_tokens=False)["input_ids"])


def sampled_of(codec: ChatCodec, history: list[Message], message: Message, tools: Any) -> list[int]:
    """What a perfect policy samples for a message: the template's own ids, stop token included."""
    prompt = rendered(codec, history, tools, generation=True)
    closed = rendered(codec, [*history, message], tools, generation=False)
    assert closed.startswith(prompt)
    ids = ids_of(codec, closed)[len(ids_of(codec, prompt)) :]
    stop = next((i for i, found in enumerate(ids) if found in codec.stop_ids), None)
    return ids if stop is None else ids[: stop + 1]


def called(*queries: str, content: str = "") -> Message:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "search", "arguments": {"q": q}}}
        for i, q in enumerate(queries)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def results(*texts: str) -> list[Message]:
    return [
        {"role": "tool", "name": "search", "tool_call_id": f"c{i}", "content": text}
        for i, text in enumerate(texts)
    ]


def as_the_policy_says_it(
    codec: ChatCodec, history: list[Message], message: Message, tools: Any
) -> Message:
    """The message, with reasoning if the opening of an assistant message asks for some."""
    prompt = rendered(codec, history, tools, generation=True)
    inline = f"<think>\nhm, hello\n</think>\n\n{message['content']}"
    for said in (
        message,
        {**message, "reasoning_content": "hm, hello"},
        {**message, "content": inline},
    ):
        if rendered(codec, [*history, said], tools, generation=False).startswith(prompt):
            return said
    raise AssertionError(prompt)


def put_together(
    codec: ChatCodec, opening: list[Message], turns: list[tuple[Message, list[Message]]], tools: Any
) -> tuple[list[int], list[Message]]:
    history = list(opening)
    ids = codec.prompt_ids(history, tools)
    for message, replies in turns:
        said = as_the_policy_says_it(codec, history, message, tools)
        sampled = sampled_of(codec, history, said, tools)
        ids = [*ids, *sampled, *codec.suffix_ids(sampled, message, replies, tools)]
        history += [said, *replies]
    return ids, history


WITH_TOOLS = [
    (family, content, count)
    for family in NATIVE
    for content in ("", "let me look")
    for count in (1, 2, 3)
    if not (content and family in CALL_ONLY) and not (count > 1 and family in ONE_CALL)
]


@pytest.mark.parametrize(("family", "content", "count"), WITH_TOOLS)
def test_with_tools_the_ids_put_together_equal_the_template_of_the_whole(
    family: str, content: str, count: int
) -> None:
    codec = codec_of(family)
    codec.check(OPENING, TOOLS)
    queries = [f"q{i}" for i in range(count)]
    turns = [
        (called(*queries, content=content), results(*queries)),
        (called("again"), results("nothing\nfound")),
        (called("déjà vu", content=content), results('{"hello": "wörld"}')),
    ]
    ids, history = put_together(codec, OPENING, turns, TOOLS)
    assert ids == ids_of(codec, rendered(codec, history, TOOLS, generation=True))


IN_TEXT = [
    *((family, False, False) for family in BUNDLED if family not in REFUSED),
    *((family, True, with_tools) for family in NATIVE for with_tools in (False, True)),
]


@pytest.mark.parametrize(("family", "native", "with_tools"), IN_TEXT)
def test_in_text_the_ids_put_together_equal_the_template_of_the_whole(
    family: str, native: bool, with_tools: bool
) -> None:
    tools = TOOLS if with_tools else []
    codec = codec_of(family, native_tools=native)
    codec.check(opening_of(family), tools)
    turns: list[tuple[Message, list[Message]]] = [
        ({"role": "assistant", "content": "search[hello]"}, [{"role": "user", "content": "none"}]),
        ({"role": "assistant", "content": "which size?"}, [{"role": "user", "content": "42 🥾"}]),
    ]
    ids, history = put_together(codec, opening_of(family), turns, tools)
    if codec.drops_reasoning:  # prompts of ids keep it
        kept = codec.tokenizer.decode(ids)
        ids = ids_of(codec, re.sub(r"<think>\nhm, hello\n?</think>", "<think></think>", kept))
    whole = rendered(codec, history, tools, generation=True)
    if family == "gptoss":  # what ends an answer is written otherwise once something follows
        whole = re.sub(r"(hello]|size\?)<\|end\|>", r"\1<|return|>", whole)
    assert ids == ids_of(codec, whole)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_think", "glm4moe", "nemotron_3_nano"])
def test_a_templates_own_switches_reach_it(family: str, thinking: bool) -> None:
    codec = codec_of.__wrapped__(family, template_kwargs={"enable_thinking": thinking})
    codec.check(OPENING, TOOLS)
    turns = [(called("a"), results("b")), (called("hello"), results("c"))]
    ids, history = put_together(codec, OPENING, turns, TOOLS)
    assert ids == ids_of(codec, rendered(codec, history, TOOLS, generation=True))
    assert ids != codec_of.__wrapped__(
        family, template_kwargs={"enable_thinking": not thinking}
    ).prompt_ids(history, TOOLS)


@pytest.mark.parametrize("family", BUNDLED)
def test_a_template_is_used_as_it_is_or_swapped_or_refused(family: str) -> None:
    codec = codec_of(family)
    assert (codec.fault is not None) == (family in REFUSED)
    form = template_text(family, training=family in SWAPPED)
    assert codec.template == form


def test_a_swap_is_told_by_one_line(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        tokenizer = byte_tokenizer("qwen3")
        tokenizer.name_or_path = "told-once"
        ChatCodec(tokenizer, stop_ids=stop_ids(tokenizer, "qwen3"))
    told = [r.getMessage() for r in caplog.records if "told-once" in r.getMessage()]
    assert len(told) == 1
    assert "\n" not in told[0]
    assert "form for training" in told[0]
    assert "standin" not in told[0]


def test_reasoning_that_is_kept_against_the_templates_habit_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codec = codec_of.__wrapped__("glm4moe", native_tools=False)
    codec.tokenizer.name_or_path = "keeps-reasoning"
    codec.check(OPENING, [])
    assert [r for r in caplog.records if "'keeps-reasoning' leaves out earlier" in r.getMessage()]


@pytest.mark.parametrize("family", sorted(SWAPPED))
def test_what_is_saved_with_the_model_needs_no_swap(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codec = codec_of.__wrapped__(family)  # its tokenizer is changed
    codec.adopt()
    codec.tokenizer.save_pretrained(tmp_path)
    caplog.clear()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    again = ChatCodec(loaded, stop_ids=codec.stop_ids)
    again.check(OPENING, TOOLS)
    assert again.template == codec.template
    assert again.native_tools == codec.native_tools
    assert not caplog.records
    assert again.prompt_ids(OPENING, TOOLS) == codec.prompt_ids(OPENING, TOOLS)


@pytest.mark.parametrize("quirk", QUIRKS)
def test_a_quirk_is_kept(quirk: str) -> None:
    codec = codec_of("qwen2_5", template=QUIRKS[quirk])
    codec.check(OPENING, [])
    turns: list[tuple[Message, list[Message]]] = [
        ({"role": "assistant", "content": "one"}, [{"role": "user", "content": " two\n"}] * 2),
        ({"role": "assistant", "content": "hello"}, [{"role": "user", "content": ""}]),
    ]
    ids, history = put_together(codec, OPENING, turns, [])
    assert ids == ids_of(codec, rendered(codec, history, [], generation=True))


@pytest.mark.parametrize("fault", BROKEN)
def test_what_cannot_be_extended_is_refused_in_one_line_with_the_remedy(fault: str) -> None:
    template, reason = BROKEN[fault]
    codec = codec_of("qwen2_5", template=template)
    with pytest.raises(TrainingError, match="training.jinja") as refused:
        codec.check(OPENING, [])
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_template_that_leaves_out_what_a_user_says_is_refused_also_where_it_may_break(
    family: str,
) -> None:
    """One that takes lists of parts renders an empty message for a text, and raises nothing."""
    codec = codec_of(family, allow_breaks=True)
    if family == "deepseekv3":
        codec.check(OPENING, TOOLS)
        return
    with pytest.raises(TrainingError, match="list of parts") as refused:
        codec.check(OPENING[1:], [])
    assert "\n" not in str(refused.value)


def test_template_that_refuses_the_opening_is_told_with_the_roles() -> None:
    with pytest.raises(TrainingError, match="system → user: System role not supported"):
        codec_of("gemma").check(OPENING, [])


def test_messages_that_the_template_refuses_are_an_error_of_ours() -> None:
    codec = codec_of("gemma3")
    said: Message = {"role": "assistant", "content": "a"}
    twice: list[Message] = [{"role": "user", "content": "b"}] * 2
    with pytest.raises(TrainingError, match="assistant → user → user: .*must alternate"):
        codec.suffix_ids([], said, twice, [])


def test_arguments_reach_a_template_as_it_wants_them() -> None:
    as_text = called("a")
    as_text["tool_calls"][0]["function"]["arguments"] = '{"q": "a"}'
    for family in NATIVE:
        codec = codec_of(family)
        history = [*OPENING, as_text, *results("b")]
        as_object = [*OPENING, called("a"), *results("b")]
        ids = codec.prompt_ids(history, TOOLS)
        assert ids == codec.prompt_ids(as_object, TOOLS)
        assert "\\" not in codec.tokenizer.decode(ids)


NINE_LETTERS = (  # after Mistral's own
    "{% macro nine(id) %}{% if id | length != 9 %}{{ raise_exception('ids have length 9!') }}"
    "{% endif %}{{ id }}{% endmacro %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'tool' %}{{ nine(m.tool_call_id) }} {{ m.name }}: {% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ nine(c.id) }}"
    "[ARGS]{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_ids_of_calls_reach_a_template_as_it_wants_them() -> None:
    codec = codec_of("qwen2_5", template=NINE_LETTERS)
    assert codec.native_tools
    codec.check(OPENING, TOOLS)
    first, second, third = called("a", "b"), results("c", "d"), called("e")
    for message in (*first["tool_calls"], *third["tool_calls"]):
        message["id"] = f"call_{message['id']}"
    for message in second:
        message["tool_call_id"] = f"call_{message['tool_call_id']}"
    ids = [*codec.prompt_ids(OPENING, TOOLS), *codec.suffix_ids([], first, second, TOOLS)]
    shown = codec.tokenizer.decode(ids)
    answered = re.findall(r"tool\n([a-z0-9]{9}) search: ([cd])", shown)
    assert [text for _, text in answered] == ["c", "d"]
    whole = codec.tokenizer.decode(codec.prompt_ids([*OPENING, first, *second], TOOLS))
    assert re.findall(r"CALL_ID\]([a-z0-9]{9})", whole) == [call for call, _ in answered]
    assert whole.endswith(shown[-60:])


def test_without_trl_there_is_no_form_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (training_forms, codec_module):
        monkeypatch.setattr(module, "templates_folder", lambda: None)
    training_forms._table.cache_clear()
    try:
        assert training_forms.training_form(template_text("qwen3")) is None
        codec = codec_of.__wrapped__("qwen3")
        assert codec.fault is not None
        with pytest.raises(TrainingError, match="install TRL"):
            codec.check(OPENING, TOOLS)
        codec_of.__wrapped__("qwen2_5").check(OPENING, TOOLS)
    finally:
        training_forms._table.cache_clear()


def table_row(family: str) -> str:
    """A template's line in docs/tokens.md."""
    codec = codec_of(family)
    calls = "native" if codec.native_tools else "text"
    swapped = codec.template != codec.tokenizer.chat_template
    how = "refused" if codec.fault else "swapped" if swapped else "as it is"
    kept = "kept" if codec.drops_reasoning else ""
    return f"| `{family}` | {calls} | {how} | {kept} |"


def test_the_table_of_templates_in_the_docs_is_what_happens() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tokens.md").read_text("utf-8")
    told = [line for line in page.splitlines() if line.startswith("| `")]
    assert told == [table_row(family) for family in BUNDLED]
