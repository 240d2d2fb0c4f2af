"""For every format: no text makes it raise, every call survives, no cut makes another call."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from call_zoo import TOOLS, call_tokenizer, called, rendered, stop_ids
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.tokens.calls import FORMATS, CallReader
from agentgym.tokens.calls.reading import TAG

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ONE_EACH = (
    "deepseekv3", "gemma4_v5", "glm4moe", "gptoss", "lfm2_v2", "llama3_1", "mistral",
    "muse_glimmer", "nemotron_3_nano", "qwen3", "qwen3_6",
)  # fmt: skip
PIECES = (
    "<tool_call>", "</tool_call>", "<function=search>", "</function>", "<parameter=q>", "\n",
    "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>",
    '{"name": "search", ', '"arguments": ', '"parameters": ', '{"q": "a"}', "}", "{", "[", "]", '"',
    "<|python_tag|>", "search.call(", "q='a'", ")", "search(", ",", "'", "\\", "```json", "```",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<|tool_call>", "<tool_call|>",
    "call:search", '<|"|>', "q:", "<|channel>thought", "<channel|>", "<|tool_call_start|>",
    "<|tool_call_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜DSML｜function_calls>",
    '<｜DSML｜invoke name="search">', '<｜DSML｜parameter name="q" string="true">',
    "</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>", "<|start|>assistant",
    "<|channel|>analysis", "<|channel|>commentary", " to=functions.search", " to=self",
    " to=search",
    "<|message|>", "<|end|>", "<|call|>", "<|eom|>", "<atem:function_calls>", "</atem:invoke>",
    '<atem:invoke name="search">', '<atem:parameter name="q">', "</atem:parameter>", "NaN", "1e999",
)  # fmt: skip
replies = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=25).map("".join)

# No format but JSON can hold its own tags in a value.
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<｜["), max_size=20)
words = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
numbers = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "q": text,
        "n": st.integers(-(10**9), 10**9),
        "price": st.floats(-1e6, 1e6),
        "exact": st.booleans(),
        "filters": st.dictionaries(words, values, max_size=3),
        "tags": st.lists(values, max_size=3),
    },
)


@functools.cache
def reader_of(family: str) -> CallReader:
    tokenizer = call_tokenizer(family)
    return CallReader(tokenizer, stop_ids=stop_ids(tokenizer), template_kwargs={})


@given(replies)
@settings(max_examples=150)
def test_no_text_makes_a_reader_raise_or_leaves_a_tag_in_an_answer(text: str) -> None:
    for calls in FORMATS:
        reading = calls.read(text, TOOLS)
        assert not TAG.search(reading.content)
        assert json.dumps([call.as_message() for call in reading.calls])
        for call in reading.calls:
            assert call.name or isinstance(call.arguments, str)


@pytest.mark.parametrize("family", ONE_EACH)
@given(arguments=arguments)
@settings(max_examples=12)
def test_every_call_survives_the_template_and_the_reader(
    family: str, arguments: dict[str, Any]
) -> None:
    prompt, sampled = rendered(call_tokenizer(family), called(("search", arguments)))
    (call,) = reader_of(family).read(sampled, prompt, TOOLS).calls
    assert (call.name, call.arguments, call.repaired) == ("search", arguments, False)


@pytest.mark.parametrize("family", ONE_EACH)
@given(before=st.lists(st.sampled_from(PIECES), max_size=3), behind=st.sampled_from(PIECES))
@settings(max_examples=40)
def test_call_among_tags_of_any_kind_is_made_or_told_and_never_lost(
    family: str, before: list[str], behind: str
) -> None:
    reader = reader_of(family)
    assert reader.format is not None
    _, sampled = rendered(call_tokenizer(family), called(("search", {"q": "zebra"})))
    text = "".join(before) + reader._text([i for i in sampled if i not in reader._stop_ids])
    reading = reader.format.read(text + behind, TOOLS)
    told = [call.arguments for call in reading.calls]
    assert "zebra" in f"{told} {reading.reasoning} {reading.content}"
    assert "zebra" not in reading.content


@pytest.mark.parametrize("family", ONE_EACH)
@pytest.mark.parametrize(
    "key", ["x-api-key", "$filter", "filter[size]", "max price", "a.b", "Größe"]
)
def test_names_of_parameters_need_not_be_words(family: str, key: str) -> None:
    """As tools made from an OpenAPI description have them."""
    if family == "lfm2_v2" and " " in key:  # keys as Python has them: words behind each other?
        key = key.replace(" ", "-")
    wanted = {key: "a b", "filters": {key: "c"}}
    prompt, sampled = rendered(call_tokenizer(family), called(("search", wanted)))
    (call,) = reader_of(family).read(sampled, prompt, TOOLS).calls
    assert (call.name, call.arguments, call.repaired) == ("search", wanted, False)


@pytest.mark.parametrize("family", ONE_EACH)
@pytest.mark.parametrize("name", ["github-search", "shop.search", "shop/search", "shop:search"])
def test_names_of_tools_need_not_be_words(family: str, name: str) -> None:
    prompt, sampled = rendered(call_tokenizer(family), called((name, {"q": "a"})))
    (call,) = reader_of(family).read(sampled, prompt, TOOLS).calls
    assert (call.name, call.arguments, call.repaired) == (name, {"q": "a"}, False)


@pytest.mark.parametrize("family", ONE_EACH)
@given(arguments=arguments, cuts=st.lists(st.floats(0, 1), min_size=6, max_size=6))
@settings(max_examples=12)
def test_no_cut_makes_a_call_with_other_arguments(
    family: str, arguments: dict[str, Any], cuts: list[float]
) -> None:
    prompt, sampled = rendered(call_tokenizer(family), called(("search", arguments)))
    for cut in cuts:
        kept = sampled[: int(len(sampled) * cut)]
        for call in reader_of(family).read(kept, prompt, TOOLS).calls:
            assert call.name in ("", "search")
            if call.name:
                assert call.arguments == arguments
