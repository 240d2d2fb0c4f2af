"""Text to ids and back by the shortest way.

What transformers does around its backend costs a third of encoding and half of decoding: offsets,
attention masks, looks at every id. Nobody here needs them. A tokenizer that does anything of its
own is asked as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class DirectTokenizer:
    """Encodes and decodes as a tokenizer does, and asks its backend where that is the same.

    Args:
        tokenizer: A transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._encodes = _is_plain(tokenizer, "__call__", "_encode_plus")
        self._decodes = _is_plain(tokenizer, "decode", "_decode")

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with nothing added; shape `(T,)`."""
        tokenizer = self._tokenizer
        if self._encodes:
            backend = tokenizer.backend_tokenizer
            # Left over from who used it last; the usual way clears them.
            if (
                backend.truncation is None
                and backend.padding is None
                and backend.encode_special_tokens == tokenizer.split_special_tokens
            ):
                (found,) = backend.encode_batch_fast([text], add_special_tokens=False)
                ids: list[int] = found.ids
                return ids
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, shape `(T,)`: special tokens, too, and spaces as they are."""
        if self._decodes:
            text: str = self._tokenizer.backend_tokenizer.decode(
                list(ids), skip_special_tokens=False
            )
        else:
            text = self._tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        return text


def _is_plain(tokenizer: Any, *methods: str) -> bool:
    """Whether these methods are transformers' own for tokenizers with a Rust backend."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        getattr(kind, name) is getattr(PreTrainedTokenizerFast, name) for name in methods
    )
