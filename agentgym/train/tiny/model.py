"""The tiny policy itself: a Llama of half a million parameters, kept in a folder under 1 MB.

Weights are rounded to float16 on disk, which halves the file; everywhere else they are float32, so
the rounded weights are the policy, exactly. Attention heads have 32 dimensions, the fewest that
vLLM's CPU attention takes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_CONTEXT = 1024
"""Tokens of the longest episode; eight turns of the tiny level take some 600."""


def new_model(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0) -> LlamaForCausalLM:
    """A policy with random weights, float32."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def save_policy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write model and tokenizer; the weights of `model` itself are rounded to float16 too."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: tensor.half() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        half.pop("lm_head.weight")
    model.save_pretrained(folder, state_dict=half)
    tokenizer.save_pretrained(folder)
    # What reads the folder must compute in float32, however the file is stored.
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    config["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
