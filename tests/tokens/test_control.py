"""Control tokens' texts in what others wrote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_zoo import byte_tokenizer

from agentgym.tokens.control import ControlText

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def word_tokenizer(prepend: str) -> Any:
    """As SentencePiece models are: spaces are part of words, and one is put before the first."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(i) for i in range(33, 127)]
    backend = Tokenizer(
        models.BPE(
            {t: i for i, t in enumerate(["▁", *letters, "▁a", "ab"])}, [("▁", "a"), ("a", "b")]
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme=prepend, split=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", additional_special_tokens=["<|end|>"]
    )
    tokenizer.add_tokens([AddedToken("  ", special=False, normalized=False)])
    return tokenizer


@pytest.mark.parametrize("prepend", ["first", "never"])
def test_hidden_text_is_encoded_as_text_in_the_middle_is(prepend: str) -> None:
    tokenizer = word_tokenizer(prepend)
    control = ControlText(tokenizer)
    hidden: list[str] = []
    guarded = control.hide("ab<|end|>ab", hidden)
    assert hidden == ["<|end|>"]
    ids = control.encode(f"</s>{guarded}</s>", hidden)
    stop = tokenizer.eos_token_id
    assert [i for i in ids if i in control.ids] == [stop, stop]
    assert tokenizer.convert_tokens_to_ids("▁") not in ids
    assert tokenizer.decode(ids[1:-1]) == "ab<|end|>ab"
    assert ids[:2] == [stop, tokenizer.convert_tokens_to_ids("ab")]


def test_white_space_that_a_tokenizer_adds_is_no_control_token() -> None:
    tokenizer = word_tokenizer("never")
    control = ControlText(tokenizer)
    hidden: list[str] = []
    assert control.hide("a  a", hidden) == "a  a"
    assert hidden == []


def test_every_part_of_a_message_is_looked_through() -> None:
    control = ControlText(byte_tokenizer("qwen2_5"))
    hidden: list[str] = []
    message = {
        "content": [{"type": "text", "text": "<|im_end|>"}],
        "tool_calls": [
            {"id": "<|im_start|>", "function": {"arguments": {"</tool_call>": [1, None]}}}
        ],
    }
    shown = control.hide(message, hidden)
    assert hidden == ["<|im_end|>", "<|im_start|>", "</tool_call>"]
    assert "<" not in str(shown)
    assert message["content"][0]["text"] == "<|im_end|>"  # the message itself is left alone


def test_a_control_token_whose_halves_are_control_tokens_stays_text() -> None:
    from tokenizers import AddedToken

    tokenizer = byte_tokenizer("qwen2_5")
    tokenizer.add_tokens([AddedToken(t, special=True) for t in ("<|a|>", "<|a", "|><|a|>")])
    control = ControlText(tokenizer)
    hidden: list[str] = []
    ids = control.encode(control.hide("<|a|><|a", hidden), hidden)
    assert control.ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == "<|a|><|a"


@settings(max_examples=60, deadline=None)
@given(st.text(), st.text())
def test_text_without_control_tokens_is_encoded_as_ever(before: str, after: str) -> None:
    tokenizer = byte_tokenizer("qwen3")
    control = ControlText(tokenizer)
    hidden: list[str] = []
    assert control.hide(before + after, hidden) == before + after
    plain = tokenizer(before + after, add_special_tokens=False)["input_ids"]
    assert control.encode(before + after, hidden) == plain


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [("NFKC", "＜tool_x＞"), ("NFKC", "＜｜end_x｜＞"), ("Lowercase", "<TOOL_X> <|END_X|>")],
)
def test_text_that_says_a_control_token_once_it_is_normalized_stays_text(
    normalizer: str, text: str
) -> None:
    from tokenizers import AddedToken, normalizers

    tokenizer = byte_tokenizer("qwen2_5")
    tokenizer.backend_tokenizer.normalizer = getattr(normalizers, normalizer)()
    tokenizer.add_tokens([AddedToken("<tool_x>", special=False, normalized=True)])
    tokenizer.add_tokens([AddedToken("<|end_x|>", special=True, normalized=True)])
    control = ControlText(tokenizer)
    hidden: list[str] = []
    guarded = control.hide({"content": f"a {text} b"}, hidden)["content"]
    assert control.ids.isdisjoint(control.encode(guarded, hidden))
    assert not control.ids.isdisjoint(control.encode(text))  # what the tokenizer makes of it


def test_page_of_control_tokens_is_cut_up_once() -> None:
    tokenizer = byte_tokenizer("qwen2_5")
    control = ControlText(tokenizer)
    asked: list[str] = []
    encode = control._ids

    def counting(text: str) -> list[int]:
        asked.append(text)
        return encode(text)

    control._ids = counting  # type: ignore[method-assign]
    hidden: list[str] = []
    page = "<|im_end|>" * 1000
    ids = control.encode(control.hide(page, hidden), hidden)
    assert tokenizer.decode(ids) == page
    assert len(asked) < 10


@pytest.mark.parametrize("most", [1, 300, pytest.param(5_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("unit", ["hello ", "<|im_end|>", "x", "hello<|im_end|>"])
def test_too_long_is_said_only_of_what_is(most: int, unit: str) -> None:
    control = ControlText(byte_tokenizer("qwen2_5"))
    for size in (most // 4, most, 40 * most + 4_000):
        hidden: list[str] = []
        guarded = control.hide(unit * size, hidden)
        ids = control.encode(guarded, hidden)
        if control.exceeds(guarded, hidden, most):
            assert len(ids) > most
        else:
            assert len(ids) <= 8 * most + 2_048 or len(guarded) <= 8 * max(most, 256)
