"""A tokenizer for the contest, made on the spot, with a real tool-calling chat template.

Byte-level BPE over the workload's own texts, so prompts have about as many tokens as with a large
model's; the template is the one that TRL bundles for Qwen 2.5.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from agentgym.testing.fleet.workload import Workload

_SPECIAL = (
    *("<|im_start|>", "<|im_end|>", "<|pad|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)


def make_tokenizer(workload: Workload, *, episodes: int = 64) -> Any:
    """The tokenizer; the same one whenever it is made from the same workload."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(workload, episodes), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    folder = importlib.util.find_spec("trl").submodule_search_locations[0]
    template = Path(folder) / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def _texts(workload: Workload, episodes: int) -> list[str]:
    texts = []
    for number in range(episodes):
        texts += [message["content"] for message in workload.opening(number)]
        texts += [workload.answer(number, 0)["content"], workload.observation(number, 0)]
    return texts
