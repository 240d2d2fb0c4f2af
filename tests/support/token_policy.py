"""A policy that exists only in token ids: the tokenizer, a player of the counter, its server."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from template_zoo import byte_tokenizer

from agentgym.testing.token_model import TokenModel
from agentgym.testing.token_server import TokenServer

FAMILY = "qwen2_5"


def saved_tokenizer(folder: Path) -> Any:
    """A byte-level tokenizer with Qwen's chat template and tool calls."""
    tokenizer = byte_tokenizer(FAMILY)
    tokenizer.save_pretrained(folder)
    return tokenizer


class CounterPlayer:
    """What it says to a prompt of `CounterEnv`, in ids: now and then several calls, or nonsense.

    Args:
        tokenizer: Byte-level, so that any text has many spellings in ids.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, body: Any) -> list[int] | None:
        """The ids of an answer, the same for the same prompt; None to what is no counter's task."""
        is_task = "Bring the counter" in self._tokenizer.decode(body["prompt"])
        return self.said(body["prompt"]) if is_task else None

    def said(self, prompt: Sequence[int]) -> list[int]:
        """The ids of an answer to a prompt."""
        text = self._tokenizer.decode(prompt)
        rng = random.Random(text)
        target = int(re.findall(r"from 0 to (\d+),", text)[-1])
        added = sum(map(int, re.findall(r'"amount": (\d+)', text)))
        turns = text.count("<|im_start|>assistant") - 1
        if added >= target and turns > 2:
            calls = [("submit", {})]
        elif turns == 1:
            calls = [("read", {}), ("read", {})]
        else:
            calls = [("add", {"amount": min(target - added, 3)})] if added < target else []
        written = [
            f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"
            for name, given in calls
        ]
        if turns == 2 and rng.random() < 0.5:
            written.append('<tool_call>\n{"name": "add", "argum')  # it can't write
        return [*self._spelt("\n".join(["hello hello", *written]), rng), self._end]

    @property
    def _end(self) -> int:
        return int(self._tokenizer.eos_token_id)

    def _spelt(self, text: str, rng: random.Random) -> list[int]:
        """A text's ids, not always those that the tokenizer has for it."""
        tokenizer = self._tokenizer
        pieces = re.split(r"(hello)", text)
        ids: list[int] = []
        for piece in pieces:
            if piece == "hello" and rng.random() < 0.7:
                ids += tokenizer.convert_tokens_to_ids(["he", "llo"])
            elif piece:
                ids += tokenizer(piece, add_special_tokens=False)["input_ids"]
        return ids


def counter_server(tokenizer: Any, *, episodes: int = 200) -> TokenServer:
    """A server whose policy plays the counter."""
    model = TokenModel(len(tokenizer), favoured={tokenizer.eos_token_id: 4.0})
    script = [CounterPlayer(tokenizer)] * (episodes * 10)
    return TokenServer(model, tokenizer=tokenizer, script=script)
