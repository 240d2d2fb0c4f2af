"""A tiny random Llama with a real tool-calling chat template and a tokenizer made for one env.

The tokenizer is byte-level BPE over texts of the env, so it knows every text and an episode's
prompt stays short; the template is the one TRL bundles for Qwen 2.5, with its tool calls.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CONTROL = ("<|im_start|>", "<|im_end|>", "<|pad|>")
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def texts_of(env: Any, *, tasks: int) -> Iterator[str]:
    """What a policy reads at the start of some tasks: messages and tools."""
    for task_id in env.unwrapped.task_ids()[:tasks]:
        messages, info = env.reset(seed=0, options={"task_id": task_id})
        yield from (str(message.get("content")) for message in messages)
        yield json.dumps(info["tools"])


def save_chat_policy(
    folder: Path, texts: Iterable[str], *, context: int, vocabulary: int = 1500, seed: int = 0
) -> Path:
    """Write model and tokenizer: 2 layers, hidden 64, 2 heads of 32."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
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
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations
    templates = Path(spec.submodule_search_locations[0]) / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
