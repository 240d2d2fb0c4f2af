"""Tokenizers made on the spot for the chat templates that TRL bundles, and for quirks of templates.

Nothing is downloaded: a family's tokenizer has one token per byte, the family's control tokens, and
"hello" both as one token and as "he" + "llo", so that what is sampled and what is canonical differ.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.tokens.training_forms import templates_folder

_FOUND = templates_folder()
assert _FOUND is not None
TEMPLATES: Path = _FOUND
BUNDLED = sorted(
    path.stem for path in TEMPLATES.glob("*.jinja") if not path.stem.endswith("_training")
)


class Family(NamedTuple):
    """What a tokenizer has beside its bytes."""

    special: tuple[str, ...]
    added: tuple[str, ...]
    """Added but not special: matched in text, kept when decoding without special tokens."""
    stops: tuple[str, ...]
    """The end-of-sequence token first."""
    bos: str | None = None


_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")
_GEMMA = ("<start_of_turn>", "<end_of_turn>", "<eos>")
_LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
          "<|python_tag|>")  # fmt: skip
_GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
        "<|endoftext|>")  # fmt: skip
_PHI = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>")
_COHERE = ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>",
           "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>")  # fmt: skip
_BY_PREFIX = {  # special tokens, stop tokens, beginning of sequence
    "qwen": (_CHATML, _CHATML_STOPS, None),
    "lfm": (_CHATML, _CHATML_STOPS, "<|startoftext|>"),
    "nemotron": (_CHATML, _CHATML_STOPS, None),
    "llama": (_LLAMA, ("<|eot_id|>", "<|eom_id|>"), "<|begin_of_text|>"),
    "glm": (_GLM, ("<|endoftext|>", "<|user|>", "<|observation|>"), None),
    "gemma4": (("<eos>",), ("<eos>", "<turn|>", "<|tool_response>"), "<bos>"),
    "diffusion_gemma": (("<eos>",), ("<eos>", "<turn|>", "<|tool_response>"), "<bos>"),
    "gemma": (_GEMMA, ("<eos>", "<end_of_turn>"), "<bos>"),
    "gptoss": ((), ("<|return|>", "<|call|>", "<|endoftext|>"), "<|startoftext|>"),
    "deepseek": ((), ("<｜end▁of▁sentence｜>",), "<｜begin▁of▁sentence｜>"),
    "phi": (_PHI, ("<|endoftext|>", "<|end|>"), None),
    "cohere": (_COHERE, ("<|END_OF_TURN_TOKEN|>",), "<BOS_TOKEN>"),
    "muse": ((), ("<|eot|>",), "<|begin_of_text|>"),
    "idefics": ((), ("<end_of_utterance>",), "<|begin_of_text|>"),
    "smolvlm": ((), ("<end_of_utterance>",), "<|im_start|>"),
    "llava": ((), ("</s>",), "<s>"),
}
_SPECIAL = re.compile(r"<\|[\w▁-]+\|?>|<[\w▁-]+\|>|<｜[\w▁]+｜>|<end_of_utterance>")
_TAGS = re.compile(r"</?(?:tool_call|tool_response|think)>")


def _family(name: str) -> Family:
    prefix = max((p for p in _BY_PREFIX if name.startswith(p)), key=len)
    special, stops, bos = _BY_PREFIX[prefix]
    text = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    found = (*special, *stops, *((bos,) if bos else ()), *_SPECIAL.findall(text))
    return Family(
        tuple(dict.fromkeys(found)), tuple(dict.fromkeys(_TAGS.findall(text))), stops, bos
    )


FAMILIES: dict[str, Family] = {name: _family(name) for name in BUNDLED}


def template_text(family: str, *, training: bool = False) -> str:
    return (TEMPLATES / f"{family}{'_training' * training}.jinja").read_text("utf-8")


def byte_tokenizer(family: str, template: str | None = None) -> Any:
    """One token per byte, "hello" also as "he" + "llo", and the family's control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special, added, stops, bos = FAMILIES[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    vocabulary = [*alphabet, "he", "ll", "llo", "hello"]
    backend = Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=stops[0],
        pad_token=stops[-1],
        additional_special_tokens=list(special),
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    tokenizer.chat_template = template or template_text(family)
    return tokenizer


def stop_ids(tokenizer: Any, family: str) -> list[int]:
    return list(tokenizer.convert_tokens_to_ids(list(FAMILIES[family].stops)))


# --- quirks, each alone, over the control tokens of Qwen 2.5 ---

_OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>"


def _chatml(message: str, opening: str = _OPEN) -> str:
    return "{% for m in messages %}" + message + "{% endfor %}" + opening


QUIRKS: dict[str, str] = {
    "newline after the stop token": _chatml(_TURN + "\n"),
    "two characters after the stop token": _chatml(_TURN + " \n"),
    "nothing after the stop token": _chatml(_TURN),
    "neighbours merged": _chatml(
        "{% if loop.first or messages[loop.index0 - 1].role != m.role %}<|im_start|>{{ m.role }}\n"
        "{% else %}\n---\n{% endif %}{{ m.content }}"
        "{% if loop.last or messages[loop.index0 + 1].role != m.role %}<|im_end|>\n{% endif %}"
    ),
    "opening prefilled, and kept": _chatml(
        "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n</think>\n{% endif %}"
        "{{ m.content }}<|im_end|>\n",
        _OPEN.replace("assistant\n", "assistant\n<think>\n</think>\n"),
    ),
    "content trimmed": _chatml(_TURN.replace("m.content", "m.content | trim") + "\n"),
    "sequence ended after the last message": _chatml(
        _TURN + "\n",
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}<|endoftext|>{% endif %}",
    ),
}
"""Templates that can be extended."""

BROKEN: dict[str, tuple[str, str]] = {
    "thinking stripped": (
        _chatml(
            "{% set c = m.content.split('</think>')[-1] if m.role == 'assistant' and not loop.last"
            " else m.content %}<|im_start|>{{ m.role }}\n{{ c }}"
            "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}<|im_end|>\n"
        ),
        "differently",
    ),
    "opening prefilled, and lost": (
        _chatml(_TURN.replace("m.content", "m.content.split('</think>')[-1]") + "\n",
                _OPEN.replace("assistant\n", "assistant\n<think>\n")),
        "opening",
    ),
    "numbered messages": (
        _chatml("<|im_start|>{{ loop.index }} {{ m.role }}\n{{ m.content }}<|im_end|>\n", "{% if "
                "add_generation_prompt %}<|im_start|>{{ messages | length + 1 }} assistant\n"
                "{% endif %}"),
        "depends on what came before",
    ),
    "count of messages at the top": (
        "{{ messages | length }}" + _chatml(_TURN + "\n"),
        "opening",
    ),
    "no user after an assistant": (
        _chatml("{% if loop.index > 2 and m.role == 'user' %}{{ raise_exception('roles!') }}"
                "{% endif %}" + _TURN + "\n"),
        "roles!",
    ),
    "no stop token": (_chatml("{{ m.role }}: {{ m.content }}\n", "assistant: "), "end a turn"),
}  # fmt: skip
"""Templates that can't, and a word of the reason."""
