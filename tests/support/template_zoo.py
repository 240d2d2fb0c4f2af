"""Tokenizers made on the spot for the chat templates that TRL bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trl

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
HERMES = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
         "<|eom_id|>", "<|python_tag|>")  # fmt: skip
GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
       "<|endoftext|>")  # fmt: skip

FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # template: special tokens, added but not special tokens, stop tokens (eos first)
    "qwen2_5": (CHATML, HERMES, ("<|im_end|>", "<|endoftext|>")),
    "qwen3": (CHATML, HERMES, ("<|im_end|>", "<|endoftext|>")),
    "qwen3_instruct_2507": (CHATML, HERMES, ("<|im_end|>", "<|endoftext|>")),
    "llama3_1": (LLAMA, (), ("<|eot_id|>", "<|eom_id|>")),
    "glm4moe": (GLM, HERMES, ("<|endoftext|>", "<|user|>", "<|observation|>")),
}


def byte_tokenizer(family: str, template: str | None = None) -> Any:
    """One token per byte, "hello" also as "he" + "llo", and the family's control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special, added, stops = FAMILIES[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    vocabulary = [*alphabet, "he", "ll", "llo", "hello"]
    backend = Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=stops[0],
        pad_token=stops[-1],
        additional_special_tokens=list(special),
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    tokenizer.chat_template = template or (TEMPLATES / f"{family}.jinja").read_text("utf-8")
    return tokenizer


def stop_ids(tokenizer: Any, family: str) -> list[int]:
    return list(tokenizer.convert_tokens_to_ids(list(FAMILIES[family][2])))
