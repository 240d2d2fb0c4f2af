"""A model of any shape with random weights and a real tool-calling template, made on the spot.

The tokenizer is byte-level BPE over texts of an environment; the template is the one that TRL
bundles for Qwen 2.5.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CONTROL = ("<|im_start|>", "<|im_end|>", "<|pad|>")
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
    },
    "0.5B": {  # Qwen 2.5 0.5B's
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 151_936,
    },
    "1B": {  # Llama 3.2 1B's
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
    },
}
"""Shapes by name; without a vocabulary of their own they have the tokenizer's."""


def texts_of(env: Any, *, tasks: int) -> Iterator[str]:
    """What a policy reads at the start of some tasks, and calls as it writes them."""
    for task_id in env.unwrapped.task_ids()[:tasks]:
        messages, info = env.reset(seed=0, options={"task_id": task_id})
        yield from (str(message.get("content")) for message in messages)
        for spec in info["tools"]:
            yield json.dumps(spec)
            name = spec["function"]["name"]
            yield f'<tool_call>\n{{"name": "{name}", "arguments": {{"query": "'


def save_model(folder: Path, texts: Iterable[str], *, shape: str, context: int, dtype: str) -> Path:
    """Write model and tokenizer.

    Args:
        folder: Where to.
        texts: What the tokenizer is made from.
        shape: One of `SHAPES`.
        context: Tokens of the longest episode.
        dtype: `float32` or `bfloat16`.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=[*CONTROL, *TOOL_TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    (trl,) = importlib.util.find_spec("trl").submodule_search_locations
    template = Path(trl) / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": len(tokenizer), **SHAPES[shape]},
        max_position_embeddings=context,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype=dtype,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    return folder
