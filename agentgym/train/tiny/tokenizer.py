"""A word-level tokenizer for the shop's tiny level: every word, phrase and product id is one token.

The tiny level uses a few hundred words in all, so a whole episode fits in some 150 tokens and a
policy of a few hundred thousand parameters can read it. Buttons and set phrases are one token
each, and so is every product id, which makes copying an id from a results page a single choice
rather than ten.

Decoding puts one space between tokens and none inside the brackets of an action, so what the policy
writes is exactly the text the environment's grammar reads. (Pages are never decoded.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|end|>"
"""Ends every message; the policy's stop token."""
PAD = "<|pad|>"
UNKNOWN = "<|unknown|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

PHRASES = (
    ", and price lower than",
    "Back to Search",
    "back to search",
    "Buy Now",
    "buy now",
    "Next >",
    "next >",
    "< Prev",
    "< prev",
    "Rating: N.A.",
)
"""Word groups that are one token."""

_TOKEN = "|".join(
    (
        r"<\|\w+\|>",
        *(re.escape(phrase) for phrase in PHRASES),
        r"\(Total results: \d+\)",
        r"\d+\.00 dollars",
        r"\[SEP\]",
        r"\w+\[",
        r"\]",
        r"[^\s,\[\]]+",
    )
)
"""A token, the longest forms first."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Each message on its own, so that a longer conversation always extends a shorter one."""


def make_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer that knows every word of some texts.

    Args:
        texts: All that the policy may ever read or write; other words become one unknown token.

    Returns:
        The tokenizer, with chat template, padding and stop token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Split(Regex(_TOKEN), behavior="removed", invert=True)
    words: dict[str, None] = {}
    for text in texts:
        for word, _ in split.pre_tokenize_str(text):
            words[word] = None
    specials = [PAD, UNKNOWN, END, *ROLES]
    vocabulary = {word: i for i, word in enumerate([*specials, *sorted(set(words) - {*specials})])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="##", cleanup=False),  # one space between tokens
            decoders.Fuse(),
            decoders.Replace("[ ", "["),
            decoders.Replace(" ]", "]"),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=CHAT_TEMPLATE,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
