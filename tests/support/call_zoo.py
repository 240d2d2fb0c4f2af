"""Tokenizers made on the spot for every chat template that TRL bundles and that renders calls."""

from __future__ import annotations

import functools
import re
from typing import Any

from template_zoo import TEMPLATES

from agentgym.types import Message, ToolSpec

FORMAT_OF = {
    "deepseekv3": "deepseek",
    "diffusion_gemma": "gemma",
    **dict.fromkeys([f"gemma4{v}" for v in ("", "_v2", "_v3", "_v4", "_v5")], "gemma"),
    "glm4moe": "glm",
    "gptoss": "harmony",
    **dict.fromkeys(("lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"), "pythonic"),
    **dict.fromkeys(("llama3_1", "llama3_2"), "llama"),
    "muse_glimmer": "muse",
    **dict.fromkeys(
        [f"nemotron_3{v}" for v in ("_nano", "_super", "_ultra", "_5_lightning")], "qwen_xml"
    ),
    **dict.fromkeys(("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"), "hermes"),
    **dict.fromkeys(("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"), "qwen_xml"),
}
"""Bundled template to the format it writes calls in."""
SILENT = (
    "cohere", "cohere2", "deepseek_r1_distill", "gemma", "gemma3", "idefics3", "lfm2", "llama3",
    "llava_next", "phi3", "phi3_5", "qwen2_5_vl", "smolvlm",
)  # fmt: skip
"""Bundled templates that leave calls or tool results out."""
STOPS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|user|>", "<|observation|>", "<|return|>",
    "<|call|>", "<|eot|>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% else %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]"
    "{{ c.function.arguments | tojson }}{% endfor %}</s>{% endif %}{% endfor %}"
)
"""After Mistral's own, version 11."""
_CONTROL = re.compile(
    r"""<\|[a-z_"]+\|?>|<[a-z_]+\|>|<｜[^｜<>]+｜>|</?(?:tool_call|think|arg_key|arg_value)>"""
    r"|\[/?[A-Z_]{3,}\]"
)

SEARCH: ToolSpec = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {
            "type": "object",
            "properties": {
                "q": {"type": "string"},
                "n": {"type": "integer"},
                "price": {"type": "number"},
                "exact": {"type": "boolean"},
                "filters": {"type": "object"},
                "tags": {"type": "array"},
            },
        },
    },
}
LIST_ORDERS: ToolSpec = {
    "type": "function",
    "function": {
        "name": "list_orders",
        "description": "List.",
        "parameters": {"type": "object", "properties": {}},
    },
}
TOOLS = [SEARCH, LIST_ORDERS]
USER: Message = {"role": "user", "content": "find shoes"}


@functools.cache
def call_tokenizer(family: str) -> Any:
    """One token per byte, and every control text of a template, tags included, as control token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    template = (
        MISTRAL if family == "mistral" else (TEMPLATES / f"{family}.jinja").read_text("utf-8")
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    control = {found.group() for found in _CONTROL.finditer(template)} | {"<bos>", "</s>"}
    if family == "muse_glimmer":
        control |= {"<|eot|>", "<|eom|>"}
    stop = next((s for s in STOPS if s in control), "</s>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=stop,
        bos_token="<bos>",
        additional_special_tokens=sorted(control),
    )
    tokenizer.chat_template = template
    return tokenizer


def stop_ids(tokenizer: Any) -> list[int]:
    added = tokenizer.get_added_vocab()
    return [added[stop] for stop in (*STOPS, "</s>") if stop in added]


def called(*calls: tuple[str, dict[str, Any]], content: str = "", **more: Any) -> Message:
    """An assistant message."""
    entries = [
        {"id": f"abcdefgh{i}", "type": "function", "function": {"name": name, "arguments": args}}
        for i, (name, args) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": entries, **more}


def rendered(tokenizer: Any, message: Message) -> tuple[list[int], list[int]]:
    """The prompt's ids, as far as the message has them too, and the ids sampled behind it."""
    prompt = render(tokenizer, [USER], going_on=True)
    closed = render(tokenizer, [USER, message], going_on=False)
    same = 0
    while same < min(len(prompt), len(closed)) and prompt[same] == closed[same]:
        same += 1
    tag = max(prompt.rfind("<", 0, same), prompt.rfind("[", 0, same))
    same = tag if tag > prompt.rfind(">", 0, same) else same
    return ids_of(tokenizer, prompt[:same]), ids_of(tokenizer, closed[same:])


def render(tokenizer: Any, messages: list[Message], *, going_on: bool) -> str:
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=TOOLS, tokenize=False, add_generation_prompt=going_on
        )
    except TypeError:  # DeepSeek 3 wants arguments as text
        text = tokenizer.apply_chat_template(
            [as_text(message) for message in messages],
            tools=TOOLS,
            tokenize=False,
            add_generation_prompt=going_on,
        )
    return str(text)


def as_text(message: Message) -> Message:
    import json

    calls = [
        {**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}}
        for c in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
