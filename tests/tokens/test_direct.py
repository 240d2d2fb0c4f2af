"""Encoding and decoding by a tokenizer's backend, against the tokenizer itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_zoo import byte_tokenizer
from transformers import PreTrainedTokenizerFast

from agentgym.tokens.direct import DirectTokenizer

PIECES = st.sampled_from([*"ab  \n.é日\U0001f642", "<|im_end|>", "<|im_start|>"])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer("qwen2_5")


def usual(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@settings(max_examples=60, deadline=None)
@given(text=st.lists(PIECES).map("".join))
def test_same_ids_and_the_same_text(tokenizer: Any, text: str) -> None:
    direct = DirectTokenizer(tokenizer)
    ids = direct.encode(text)
    assert ids == usual(tokenizer, text)
    plain = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    assert direct.decode(tuple(ids)) == tokenizer.decode(ids, **plain)


@pytest.mark.parametrize(
    "left_over",
    [
        {"padding": "max_length", "max_length": 30},
        {"truncation": True, "max_length": 2},
        {"split_special_tokens": True},
    ],
)
def test_what_the_last_user_asked_for_is_forgotten(tokenizer: Any, left_over: Any) -> None:
    text = "ab<|im_end|>ab"
    expected = usual(tokenizer, text)
    direct = DirectTokenizer(tokenizer)
    tokenizer(text, **left_over)
    assert direct.encode(text) == expected
    assert direct.encode(text) == expected


def test_tokenizer_with_ways_of_its_own_is_asked_itself(tokenizer: Any) -> None:
    class Loud(PreTrainedTokenizerFast):  # type: ignore[misc]  # transformers has no types
        def _encode_plus(self, text: Any, *args: Any, **kwargs: Any) -> Any:
            return super()._encode_plus(str(text).upper(), *args, **kwargs)

        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return str(super()._decode(*args, **kwargs)) + "!"

    direct = DirectTokenizer(Loud(tokenizer_object=tokenizer.backend_tokenizer))
    assert direct.encode("ab") == usual(tokenizer, "AB")
    assert direct.decode(direct.encode("ab")) == "AB!"
