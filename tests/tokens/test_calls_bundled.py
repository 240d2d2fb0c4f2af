"""Every chat template that TRL bundles: what it renders for a call is read back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from call_zoo import (
    FORMAT_OF,
    SILENT,
    TOOLS,
    USER,
    call_tokenizer,
    called,
    ids_of,
    render,
    rendered,
    stop_ids,
)
from template_zoo import TEMPLATES

from agentgym.tokens.calls import CallReader, Reading

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

FAMILIES = (*FORMAT_OF, "mistral")
ONE_CALL = ("gptoss", "llama3_1", "llama3_2")
NO_TEXT_BESIDE = (*ONE_CALL, "muse_glimmer")
NESTED = {"q": "a", "filters": {"brand": ["x", "y"], "max": 1.5}}
TYPED = {"q": "75001", "n": 3, "price": 2.5, "exact": True, "tags": ["a", "b"]}


def reader_of(family: str) -> CallReader:
    tokenizer = call_tokenizer(family)
    return CallReader(tokenizer, stop_ids=stop_ids(tokenizer), template_kwargs={})


def read_back(family: str, message: Any) -> Reading:
    prompt, sampled = rendered(call_tokenizer(family), message)
    return reader_of(family).read(sampled, prompt, TOOLS)


def made(reading: Reading) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in reading.calls]


def test_every_bundled_template_is_accounted_for() -> None:
    bundled = {p.stem for p in TEMPLATES.glob("*.jinja") if not p.stem.endswith("_training")}
    assert bundled == {*FORMAT_OF, *SILENT}


@pytest.mark.parametrize("family", FAMILIES)
def test_format_is_chosen_by_what_the_template_renders(family: str) -> None:
    calls = reader_of(family).format
    assert calls is not None
    assert calls.name == FORMAT_OF.get(family, "mistral")


@pytest.mark.parametrize(
    "family", [f for f in FORMAT_OF if (TEMPLATES / f"{f}_training.jinja").exists()]
)
def test_training_form_of_a_template_has_the_format_of_the_template(family: str) -> None:
    calls = reader_of(f"{family}_training").format
    assert calls is not None
    assert calls.name == FORMAT_OF[family]


def test_template_that_somebody_changed_keeps_its_format() -> None:
    tokenizer = copy.deepcopy(call_tokenizer("qwen2_5"))
    tokenizer.chat_template = tokenizer.chat_template.replace("You are Qwen", "You are a shopper")
    reader = CallReader(tokenizer, stop_ids=stop_ids(tokenizer), template_kwargs={})
    assert tokenizer.chat_template != call_tokenizer("qwen2_5").chat_template
    assert reader.format is not None
    assert reader.format.name == "hermes"


@pytest.mark.parametrize("family", SILENT)
def test_template_that_leaves_calls_out_has_no_format(family: str) -> None:
    assert reader_of(family).format is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arguments", [{"q": "café 靴"}, {}, NESTED, TYPED])
def test_rendered_call_is_read_back(family: str, arguments: dict[str, Any]) -> None:
    reading = read_back(family, called(("search", arguments)))
    assert made(reading) == [("search", arguments)]
    assert (reading.malformed, reading.content.strip()) == (0, "")


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ONE_CALL])
def test_rendered_calls_are_read_back_in_order(family: str) -> None:
    calls = (("search", {"q": "a"}), ("list_orders", {}), ("search", {"q": "b"}))
    reading = read_back(family, called(*calls))
    assert made(reading) == list(calls)
    assert reading.malformed == 0


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in NO_TEXT_BESIDE])
def test_text_beside_a_call_is_content(family: str) -> None:
    reading = read_back(family, called(("search", {"q": "a"}), content="Let me look."))
    assert reading.content == "Let me look."
    assert made(reading) == [("search", {"q": "a"})]
    assert reading.malformed == 0


@pytest.mark.parametrize(
    "family",
    [f for f in FAMILIES if f in ("glm4moe", "gptoss", "muse_glimmer", "gemma4_v5", "lfm2_2_5")]
    + [f for f in FAMILIES if f.startswith(("qwen3_5", "qwen3_6", "qwen3_8")) or f == "qwen3"]
    + [f for f in FAMILIES if f.startswith("nemotron")],
)
def test_rendered_reasoning_is_told_apart(family: str) -> None:
    thought = {"reasoning_content": "Shoes, then.", "thinking": "Shoes, then."}
    reading = read_back(family, called(("search", {"q": "a"}), **thought))
    assert reading.reasoning == "Shoes, then."
    assert reading.content.strip() == ""
    assert made(reading) == [("search", {"q": "a"})]


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_answer_is_an_answer(family: str) -> None:
    tokenizer = call_tokenizer(family)
    prompt, sampled = rendered(tokenizer, {"role": "assistant", "content": "Size 42 it is."})
    reading = reader_of(family).read(sampled, prompt, TOOLS)
    assert reading.content.strip() == "Size 42 it is."
    assert reading.calls == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_text_stays_text_where_there_are_no_tools(family: str) -> None:
    tokenizer = call_tokenizer(family)
    ids = ids_of(tokenizer, "say yes or no")
    assert reader_of(family).read(ids, [], ()) == Reading("say yes or no")


WELL_FORMED = [
    called(("search", {"q": "a"})),
    called(("search", {"q": "caf\u00e9"}), content="Let me look."),
    called(("search", {"q": "a"}), ("search", {"q": "b"})),
    {"role": "assistant", "content": "Size 42 it is."},
]
TRL_FAMILIES = [f for f in FORMAT_OF if f not in ("deepseekv3", "diffusion_gemma", "muse_glimmer")]


def renders(family: str, message: Any) -> bool:
    """Whether the template renders the message, and as calls beside text."""
    calls = len(message.get("tool_calls", ()))
    if family in ONE_CALL and calls > 1:
        return False
    return not (family in NO_TEXT_BESIDE and calls and message["content"])


@pytest.mark.parametrize(
    ("family", "message"),
    [(f, m) for f in TRL_FAMILIES for m in WELL_FORMED if renders(f, m)],
)
def test_well_formed_replies_are_read_as_trl_reads_them(family: str, message: Any) -> None:
    from trl.chat_template_utils import add_response_schema, parse_response

    tokenizer = call_tokenizer(family)
    add_response_schema(tokenizer)
    prompt, sampled = rendered(tokenizer, message)
    theirs = parse_response(tokenizer, list(sampled), prefix=prompt, tools=TOOLS)
    ours = reader_of(family).read(sampled, prompt, TOOLS)
    wanted = [
        (c["function"]["name"], c["function"]["arguments"]) for c in theirs.get("tool_calls") or ()
    ]
    assert made(ours) == wanted
    assert ours.content.strip() == theirs["content"].strip()


def test_stop_tokens_are_cut_and_tags_are_kept() -> None:
    tokenizer = call_tokenizer("qwen3")
    sampled = ids_of(tokenizer, '<tool_call>{"name": "search", "arguments": {}}</tool_call>')
    assert set(tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])) < set(sampled)
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for ending in ([], [stop], [stop, stop]):
        reading = reader_of("qwen3").read([*sampled, *ending], [], TOOLS)
        assert made(reading) == [("search", {})]
        assert (reading.content, reading.malformed) == ("", 0)


def test_control_tokens_without_meaning_are_left_out_of_an_answer() -> None:
    tokenizer = call_tokenizer("qwen3")
    sampled = ids_of(tokenizer, "yes<|im_start|>")
    assert reader_of("qwen3").read(sampled, [], TOOLS).content == "yes"


def test_tag_of_another_family_is_no_answer_although_it_is_a_control_token() -> None:
    tokenizer = copy.deepcopy(call_tokenizer("llama3_1"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool_call>"]})
    sampled = ids_of(tokenizer, '<tool_call>{"name": ')
    reader = CallReader(tokenizer, stop_ids=stop_ids(tokenizer), template_kwargs={})
    (call,) = reader.read(sampled, [], TOOLS).calls
    assert call.name == ""


def test_reasoning_that_the_prompt_opened_is_reasoning() -> None:
    tokenizer = call_tokenizer("qwen3_5_think")
    prompt = ids_of(tokenizer, render(tokenizer, [USER], going_on=True))
    inside = "<tool_call>\n<function=search>\n</function>\n</tool_call>"
    sampled = ids_of(tokenizer, f"Maybe {inside}?\n</think>\n\nNo need.")
    reading = reader_of("qwen3_5_think").read(sampled, prompt, TOOLS)
    assert reading == Reading("No need.", f"Maybe {inside}?", ())
